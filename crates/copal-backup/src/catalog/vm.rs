//! What the log of one VM amounts to: a pure fold over its records.

use super::log::Entry;
use super::record::{Record, SessionId};
use crate::request::SnapshotId;

/// A snapshot that is visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Published {
    pub(crate) snapshot: SnapshotId,
    pub(crate) sequence: u64,
    /// What the clock showed when it became visible; may go back.
    pub(crate) created_ms: u64,
    /// The store's order of events: ascends, within a VM strictly.
    pub(crate) stored_ms: u64,
    pub(crate) manifest: [u8; 32],
    /// Every chunk of it was decoded once and was what it should be.
    pub(crate) is_verified: bool,
    /// It may not be forgotten before; 0: it is not held.
    pub(crate) held_until_ms: u64,
}

/// State of one VM's log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct VmState {
    /// Number the next record gets.
    pub(crate) next_number: u64,
    /// Sequence the next snapshot gets.
    pub(crate) next_sequence: u64,
    /// Visible snapshots, oldest first.
    pub(crate) published: Vec<Published>,
    /// Forgotten snapshots whose space was not returned yet.
    pub(crate) forgotten: Vec<SnapshotId>,
    /// Sessions that neither published nor were fenced.
    pub(crate) open: Vec<SessionId>,
    /// Sessions that were fenced.
    pub(crate) fenced: Vec<SessionId>,
    newest_ms: u64,
}

impl VmState {
    /// The state after all records.
    pub(crate) fn replay(entries: &[Entry]) -> VmState {
        let mut state = VmState::default();
        entries.iter().for_each(|entry| state.apply(entry));
        state
    }

    /// The state after one more record.
    pub(crate) fn apply(&mut self, entry: &Entry) {
        self.next_number = entry.number + 1;
        match &entry.record {
            Record::Open { session, .. } => self.open.push(*session),
            Record::Fence { session } => {
                self.open.retain(|open| open != session);
                self.fenced.push(*session);
            }
            Record::Publish {
                session,
                snapshot,
                sequence,
                manifest,
                clock_ms,
            } => {
                // A fenced session cannot publish. Its record would never be written by this program; a
                // record that stands behind the fence is void.
                if !self.open.contains(session) {
                    return;
                }
                self.open.retain(|open| open != session);
                self.newest_ms = entry.created_ms.max(self.newest_ms + 1);
                self.next_sequence = sequence + 1;
                self.published.push(Published {
                    snapshot: *snapshot,
                    sequence: *sequence,
                    created_ms: clock_ms.unwrap_or(self.newest_ms),
                    stored_ms: self.newest_ms,
                    manifest: *manifest,
                    is_verified: false,
                    held_until_ms: 0,
                });
            }
            Record::Forget { snapshots } => {
                for snapshot in snapshots {
                    if self
                        .published
                        .iter()
                        .any(|published| published.snapshot == *snapshot)
                    {
                        self.forgotten.push(*snapshot);
                    }
                }
                self.published
                    .retain(|published| !snapshots.contains(&published.snapshot));
            }
            Record::Deleted { snapshots } => {
                self.forgotten.retain(|forgotten| !snapshots.contains(forgotten))
            }
            Record::Verified { snapshots } => {
                self.named(snapshots)
                    .for_each(|published| published.is_verified = true);
            }
            Record::Hold { snapshots, until_ms } => {
                self.named(snapshots)
                    .for_each(|published| published.held_until_ms = *until_ms);
            }
            Record::Init { .. } | Record::VmAdded { .. } => {}
        }
    }

    fn named<'a>(&'a mut self, snapshots: &'a [SnapshotId]) -> impl Iterator<Item = &'a mut Published> {
        self.published
            .iter_mut()
            .filter(|published| snapshots.contains(&published.snapshot))
    }
}
