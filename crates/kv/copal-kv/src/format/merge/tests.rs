//! A merge of any children equals the sorted list of all their entries, in both directions.

use super::MergingCursor;
use crate::{
    Error,
    format::{
        entry::{Entry, EntryKind, compare},
        entry_cursor::Cursor,
    },
};
use copal_testkit::Random;
use std::cmp::Ordering;

/// Entries in memory. Every move fails once the fuse has burnt down.
struct List {
    entries: Vec<Row>,
    at: Option<usize>,
    fuse: u32,
}

impl List {
    fn go(&mut self, to: Option<usize>) -> Result<(), Error> {
        self.at = to.filter(|&at| at < self.entries.len());
        if self.fuse == 0 {
            self.at = None;
            return Err(Error::Corrupt { what: "fuse".to_owned() });
        }
        self.fuse -= 1;
        Ok(())
    }

    fn before(&self, key: &[u8], seq: u64, last: Ordering) -> usize {
        self.entries.partition_point(|(k, s, _)| compare((k, *s), (key, seq)) <= last)
    }
}

impl Cursor for List {
    fn first(&mut self) -> Result<(), Error> {
        self.go(Some(0))
    }

    fn last(&mut self) -> Result<(), Error> {
        self.go(self.entries.len().checked_sub(1))
    }

    fn seek(&mut self, key: &[u8], seq: u64) -> Result<(), Error> {
        self.go(Some(self.before(key, seq, Ordering::Less)))
    }

    fn seek_for_prev(&mut self, key: &[u8], seq: u64) -> Result<(), Error> {
        self.go(self.before(key, seq, Ordering::Equal).checked_sub(1))
    }

    fn next(&mut self) -> Result<(), Error> {
        self.go(self.at.map(|at| at + 1))
    }

    fn prev(&mut self) -> Result<(), Error> {
        self.go(self.at.and_then(|at| at.checked_sub(1)))
    }

    fn entry(&self) -> Option<Entry<'_>> {
        let (key, seq, child) = &self.entries[self.at?];
        Some(Entry { key, seq: *seq, kind: EntryKind::Put, value: std::slice::from_ref(child) })
    }
}

/// Key, sequence, child.
type Row = (Vec<u8>, u64, u8);

/// Random children, and all their entries, sorted with the newer child first.
fn children(random: &mut Random) -> (Vec<List>, Vec<Row>) {
    let mut all = Vec::new();
    let lists = (0..random.below(7) as u8)
        .map(|child| {
            let mut entries: Vec<_> = (0..random.below(25))
                .map(|_| (vec![random.below(6) as u8; random.below(3) as usize], random.below(8), child))
                .collect();
            entries.sort_by(|a, b| compare((&a.0, a.1), (&b.0, b.1)));
            entries.dedup();
            all.extend(entries.iter().cloned());
            List { entries, at: None, fuse: u32::MAX }
        })
        .collect();
    all.sort_by(|a, b| compare((&a.0, a.1), (&b.0, b.1)).then(a.2.cmp(&b.2)));
    (lists, all)
}

#[test]
fn any_walk_over_a_merge_is_a_walk_over_the_sorted_list() {
    let mut random = Random::new(5);
    for _ in 0..400 {
        let (lists, all) = children(&mut random);
        let mut merged = MergingCursor::new(lists);
        let mut at: Option<usize> = None;
        for _ in 0..120 {
            let key = vec![random.below(7) as u8; random.below(3) as usize];
            let seq = random.below(9);
            let until = |last| all.partition_point(|(k, s, _)| compare((k, *s), (&key, seq)) <= last);
            at = match random.below(14) {
                0 => {
                    merged.first().unwrap();
                    Some(0)
                }
                1 => {
                    merged.last().unwrap();
                    all.len().checked_sub(1)
                }
                2 => {
                    merged.seek(&key, seq).unwrap();
                    Some(until(Ordering::Less))
                }
                3 => {
                    merged.seek_for_prev(&key, seq).unwrap();
                    until(Ordering::Equal).checked_sub(1)
                }
                4..9 => {
                    merged.next().unwrap();
                    at.map(|at| at + 1)
                }
                _ => {
                    merged.prev().unwrap();
                    at.and_then(|at| at.checked_sub(1))
                }
            }
            .filter(|&at| at < all.len());
            let entry = merged.entry().map(|entry| (entry.key.to_vec(), entry.seq, entry.value[0]));
            assert_eq!(entry, at.map(|at| all[at].clone()));
            assert_eq!(merged.child(), at.map(|at| usize::from(all[at].2)));
            assert_eq!(merged.value(), at.map_or(vec![], |at| vec![all[at].2]));
        }
    }
}

#[test]
fn after_a_childs_error_the_merge_is_not_valid_and_can_be_sought_again() {
    let mut random = Random::new(6);
    let mut errors = 0;
    for _ in 0..300 {
        let (mut lists, all) = children(&mut random);
        for list in &mut lists {
            list.fuse = random.below(40) as u32;
        }
        let mut merged = MergingCursor::new(lists);
        let mut moved = merged.first();
        for step in 0..200 {
            if moved.is_err() {
                break;
            }
            moved = if step % 5 < 3 { merged.next() } else { merged.prev() };
        }
        if moved.is_ok() {
            continue;
        }
        errors += 1;
        assert!(!merged.valid());
        merged.next().unwrap();
        assert!(!merged.valid());
        for list in &mut merged.children {
            list.fuse = u32::MAX;
        }
        merged.last().unwrap();
        let entry = merged.entry().map(|entry| (entry.key.to_vec(), entry.seq, entry.value[0]));
        assert_eq!(entry, all.last().cloned());
    }
    assert!(errors > 50);
}
