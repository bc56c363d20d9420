//! Syncs in progress: files and names taken off the dirty list that are not durable before their sync ends.
//!
//! A sync first takes the dirty files and names off the list, so that later writes make them dirty again. A
//! thread that finds the list empty must therefore check this list as well.
//! Invariants
//! - A sync is listed from the moment it takes entries off the dirty list until it has ended, with or without
//!   success.
//!
//! Not here: the calls, and waiting (`files`).

use std::collections::{BTreeMap, BTreeSet};

/// Syncs in progress, by ticket.
#[derive(Default)]
pub(super) struct FileSyncs {
    running: BTreeMap<u64, FileSync>,
    tickets: u64,
}

struct FileSync {
    files: BTreeSet<u32>,
    names: bool,
}

impl FileSyncs {
    /// Begins a sync of `files`, and of names; returns its ticket.
    pub(super) fn begin(&mut self, files: BTreeSet<u32>, names: bool) -> u64 {
        self.tickets += 1;
        self.running.insert(self.tickets, FileSync { files, names });
        self.tickets
    }

    /// Ends a sync.
    pub(super) fn end(&mut self, ticket: u64) {
        self.running.remove(&ticket);
    }

    /// Tickets of the syncs in progress.
    pub(super) fn running(&self) -> Vec<u64> {
        self.running.keys().copied().collect()
    }

    /// Whether one of `tickets` still syncs names or file `only`; without `only`, whether one is still in
    /// progress.
    pub(super) fn concern(&self, tickets: &[u64], only: Option<u32>) -> bool {
        let concerns = |sync: &FileSync| only.is_none_or(|number| sync.names || sync.files.contains(&number));
        tickets.iter().filter_map(|ticket| self.running.get(ticket)).any(concerns)
    }
}
