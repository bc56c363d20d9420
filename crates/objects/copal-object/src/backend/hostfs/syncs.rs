//! Syncs under way: what was taken from the list of dirty files, and is not durable before its sync has
//! ended.
//!
//! Whoever syncs takes the dirty files and names off the list first, so that what is written meanwhile is
//! dirty again. Another thread that finds the list empty has therefore to ask here as well.
//! Invariants
//! - A sync is here from the moment it takes something off the list until it has ended, well or not.
//!
//! Not here: the calls, and waiting (`files`).

use std::collections::{BTreeMap, BTreeSet};

/// The syncs under way, by ticket.
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
    /// A sync of `files`, and of names, begins; returns its ticket.
    pub(super) fn begin(&mut self, files: BTreeSet<u32>, names: bool) -> u64 {
        self.tickets += 1;
        self.running.insert(self.tickets, FileSync { files, names });
        self.tickets
    }

    /// It has ended.
    pub(super) fn end(&mut self, ticket: u64) {
        self.running.remove(&ticket);
    }

    /// Tickets of those that have not ended.
    pub(super) fn running(&self) -> Vec<u64> {
        self.running.keys().copied().collect()
    }

    /// Whether one of `tickets` still syncs names or file `only`; without it, whether one still syncs
    /// anything.
    pub(super) fn concern(&self, tickets: &[u64], only: Option<u32>) -> bool {
        let concerns = |sync: &FileSync| only.is_none_or(|number| sync.names || sync.files.contains(&number));
        tickets.iter().filter_map(|ticket| self.running.get(ticket)).any(concerns)
    }
}
