//! Entries of an ingested table have the sequence of the ingest for every reader and merge.

use super::support::{ID, Model, SEED, build, cache, open, options};
use crate::{
    format::{
        entry::{EntryKind, MAX_SEQ},
        entry_cursor::Cursor,
    },
    table::{Scan, TableCursor},
};
use copal_filter::{KeyHash, Kind};
use std::cmp::Reverse;

const AT: u64 = 500;

#[test]
fn look_ups_and_seeks_go_by_the_sequence_of_the_ingest() {
    let key = |i: u64| (i * 2).to_be_bytes().to_vec();
    let model: Model =
        (0..3000).map(|i| ((key(i), Reverse(0)), (EntryKind::Put, vec![i as u8; 20]))).collect();
    let (bytes, meta) = build(&model, options(false, Kind::Ribbon));
    assert_eq!((meta.object, meta.max_seq), (ID, 0));
    let table = open(bytes, &cache());
    table.set_sequence(AT);
    let mut cursor = TableCursor::new(&table, Scan::default());
    let position = |cursor: &TableCursor| {
        let entry = cursor.entry()?;
        assert_eq!(entry.seq, AT);
        Some(entry.key.to_vec())
    };
    for i in (0..3000).step_by(37).chain([2999]) {
        let hash = KeyHash::new(&key(i), SEED);
        for seq in [0, AT - 1, AT, AT + 1, MAX_SEQ] {
            let found = table.get(&key(i), seq, &hash).unwrap();
            assert_eq!(found.map(|found| found.seq), (seq >= AT).then_some(AT), "key {i} at {seq}");
            // Newest first: a position at or before the entry's own sequence comes before the entry, a later
            // one after it.
            cursor.seek(&key(i), seq).unwrap();
            let first = if seq >= AT { i } else { i + 1 };
            assert_eq!(position(&cursor), (first < 3000).then(|| key(first)), "seek {i} at {seq}");
            cursor.seek_for_prev(&key(i), seq).unwrap();
            let last = if seq <= AT { Some(i) } else { i.checked_sub(1) };
            assert_eq!(position(&cursor), last.map(key), "seek for prev {i} at {seq}");
        }
    }
}
