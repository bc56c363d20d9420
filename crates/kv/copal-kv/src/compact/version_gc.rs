//! Version GC: decides which entries survive a merge. Pure: cursor in, verdicts out.
//!
//! Invariants
//! - Of the versions that no reader can tell apart (one stripe between held sequences) the newest survives
//!   (KV-18).
//! - A version is dropped when a range tombstone of its own stripe covers it.
//! - A tombstone is dropped when nothing older lies below and every held sequence sees it.

use super::deletions::WalkDeletions;
use crate::{
    Error,
    format::{
        entry::{EntryKind, KeyRange, KeyspaceId, RangeTombstone, border_between, keyspace_of},
        entry_cursor::Cursor,
        range_tombstones::RangeTombstones,
        stripes::SequenceStripes,
    },
};
use bytes::Bytes;

/// Judges the entries of one merge, in order.
pub(crate) struct SurvivingVersions {
    tombstones: RangeTombstones,
    stripes: SequenceStripes,
    /// No data older than the inputs lies below them.
    bottom: bool,
    key: Vec<u8>,
    /// Stripe of the previous version of the same key.
    stripe: Option<u64>,
    /// Tombstones that reached the bottom, by keyspace, and whether the tombstone of the current key has met
    /// no older version yet.
    found: Vec<(KeyspaceId, WalkDeletions)>,
    is_unmet: bool,
}

/// Verdict on an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VersionVerdict {
    /// The entry is kept. `droppable`: only for a held sequence, or because it is a tombstone.
    Keep {
        droppable: bool,
    },
    Drop,
}

impl SurvivingVersions {
    pub(crate) fn new(
        tombstones: &[RangeTombstone],
        stripes: SequenceStripes,
        bottom: bool,
    ) -> SurvivingVersions {
        SurvivingVersions {
            tombstones: RangeTombstones::in_stripes(tombstones, &stripes),
            stripes,
            bottom,
            key: Vec::new(),
            stripe: None,
            found: Vec::new(),
            is_unmet: false,
        }
    }

    /// A border between the last judged key and `key`: `key` itself, or for a long key a prefix that differs
    /// from the last one.
    pub(crate) fn border_before(&self, key: &[u8]) -> Bytes {
        border_between(&self.key, key)
    }

    /// Per keyspace, the dropped tombstones with nothing below, and how many of them deleted something.
    pub(crate) fn found(&self) -> &[(KeyspaceId, WalkDeletions)] {
        &self.found
    }

    fn found_in(&mut self, key: &[u8]) -> Option<&mut WalkDeletions> {
        let keyspace = keyspace_of(key)?;
        if self.found.last().is_none_or(|(last, _)| *last != keyspace) {
            self.found.push((keyspace, WalkDeletions::default()));
        }
        self.found.last_mut().map(|(_, found)| found)
    }

    /// Judges the entry at the cursor.
    pub(crate) fn judge(&mut self, cursor: &impl Cursor) -> Result<VersionVerdict, Error> {
        let Some(entry) = cursor.entry() else {
            return Ok(VersionVerdict::Drop);
        };
        let newest = *entry.key != self.key[..];
        if newest {
            self.key.clear();
            self.key.extend_from_slice(entry.key);
            self.stripe = None;
            self.is_unmet = false;
        }
        let stripe = self.stripes.of(entry.seq);
        let shadowed = self.stripe == Some(stripe);
        self.stripe = Some(stripe);
        let covered = self
            .tombstones
            .first_after(entry.key, entry.seq)
            .is_some_and(|seq| self.stripes.of(seq) == stripe);
        let delete = entry.kind == EntryKind::Delete;
        let done_deleting = delete && self.bottom && self.stripes.is_oldest(entry.seq);
        if newest && done_deleting {
            self.is_unmet = true;
            self.found_in(entry.key).into_iter().for_each(|found| found.deletions += 1);
        } else if self.is_unmet && !delete {
            self.is_unmet = false;
            self.found_in(entry.key).into_iter().for_each(|found| found.hits += 1);
        }
        if shadowed || covered || done_deleting {
            return Ok(VersionVerdict::Drop);
        }
        Ok(VersionVerdict::Keep { droppable: !newest || delete })
    }

    /// The range tombstones that survive inside `range`, clipped to it.
    pub(crate) fn tombstones(&self, range: &KeyRange) -> Vec<RangeTombstone> {
        let mut kept = Vec::new();
        for fragment in self.tombstones.clipped(range) {
            let mut stripe = None;
            for seq in fragment.seqs {
                let own = self.stripes.of(seq);
                let done = self.bottom && self.stripes.is_oldest(seq);
                if stripe != Some(own) && !done {
                    let (start, end): (Bytes, Bytes) = (fragment.start.clone(), fragment.end.clone());
                    kept.push(RangeTombstone { start, end, seq });
                }
                stripe = Some(own);
            }
        }
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::memtable::Memtable;
    use copal_object::ObjectId;
    use std::sync::Arc;

    type Model = Vec<(u64, EntryKind)>;

    fn reads(versions: &Model, tombstones: &[u64], at: u64) -> Option<u64> {
        let (seq, kind) = versions.iter().filter(|(seq, _)| *seq <= at).max_by_key(|(seq, _)| *seq)?;
        let cover = tombstones.iter().filter(|seq| **seq <= at).max().copied().unwrap_or(0);
        (*kind == EntryKind::Put && cover < *seq).then_some(*seq)
    }

    /// Every held sequence and the newest reader see the same before and after, for any history.
    #[test]
    fn no_reader_can_tell_that_a_merge_happened() {
        let mut random = copal_testkit::Random::new(7);
        let mut next = move |bound| random.below(bound);
        for round in 0..2000 {
            let bottom = round % 2 == 0;
            let (mut versions, mut ranges, mut held) = (Model::new(), Vec::new(), Vec::new());
            let table = Arc::new(Memtable::new(1, ObjectId(1)));
            let key = Bytes::from_static(b"\0\0\0\x01k");
            for seq in 1..=10 {
                match next(5) {
                    0 => held.push(seq - 1),
                    1 => {
                        let (start, end) = (Bytes::from_static(b"\0"), Bytes::from_static(b"\x01"));
                        ranges.push(RangeTombstone { start, end, seq });
                    }
                    op => {
                        let kind = if op == 2 { EntryKind::Delete } else { EntryKind::Put };
                        versions.push((seq, kind));
                        table.insert(key.clone(), seq, kind, Bytes::new());
                    }
                }
            }
            let mut survivors = SurvivingVersions::new(&ranges, SequenceStripes::new(held.clone()), bottom);
            let mut cursor = table.cursor();
            cursor.first().unwrap();
            let mut after = Model::new();
            while let Some(entry) = cursor.entry() {
                if survivors.judge(&cursor).unwrap() != VersionVerdict::Drop {
                    after.push((entry.seq, entry.kind));
                }
                cursor.next().unwrap();
            }
            let all = KeyRange { start: Bytes::from_static(b"\0"), end: Bytes::from_static(b"\x01") };
            let kept: Vec<u64> = survivors.tombstones(&all).iter().map(|tombstone| tombstone.seq).collect();
            let before: Vec<u64> = ranges.iter().map(|tombstone| tombstone.seq).collect();
            for at in held.iter().copied().chain([u64::MAX]) {
                assert_eq!(
                    reads(&versions, &before, at),
                    reads(&after, &kept, at),
                    "{versions:?} {before:?} {held:?}"
                );
            }
            if bottom && held.is_empty() {
                let expected = reads(&versions, &before, u64::MAX);
                assert_eq!(after.len(), usize::from(expected.is_some()), "only the live version stays");
                assert!(kept.is_empty());
            }
        }
    }
}
