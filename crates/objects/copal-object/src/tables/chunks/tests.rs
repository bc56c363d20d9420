//! The chunks compared with an ordered map.

use super::*;
use crate::{
    CreateOptions,
    format::{
        ops::{ObjectTraits, RecordOp},
        sum_rule::SumRule,
    },
    tables::{ObjectTables, OpEffect, StreamEntry},
};
use std::collections::BTreeMap;

fn entry(mark: u64) -> TableEntry {
    let what = ObjectTraits::of(&CreateOptions::default(), SumRule::Hashes);
    let stream = StreamEntry { trimmed: mark, ..StreamEntry::new(what, 1) };
    TableEntry::Stream(Arc::new(stream))
}

fn mark(entry: &TableEntry) -> u64 {
    match entry {
        TableEntry::Stream(stream) => stream.trimmed,
        TableEntry::Object(_) => unreachable!("this test makes streams only"),
    }
}

fn marks(chunks: &EntryChunks) -> Vec<(u64, u64)> {
    chunks.iter().map(|(id, entry)| (id, mark(entry))).collect()
}

#[test]
fn chunks_hold_what_a_map_holds_and_a_clone_does_not_change() {
    for most in [2, 4, 16] {
        let mut random = copal_testkit::Random::new(most as u64);
        let mut next = move |below| random.below(below);
        let mut chunks = EntryChunks::new(most);
        let mut model: BTreeMap<u64, u64> = BTreeMap::new();
        let mut frozen = (chunks.clone(), model.clone());
        for step in 0..6000u64 {
            // The store grows, shrinks to almost nothing, and grows again.
            let removes = if step / 1000 % 2 == 0 { 1 } else { 4 };
            let id = next(500);
            match next(6) {
                choice if choice < removes => {
                    assert_eq!(chunks.remove(id).as_ref().map(mark), model.remove(&id), "step {step}");
                }
                5 => {
                    if let Some(found) = chunks.get_mut(id) {
                        *found = entry(step);
                        model.insert(id, step);
                    }
                }
                _ => {
                    chunks.insert(id, entry(step));
                    model.insert(id, step);
                }
            }
            assert_eq!(chunks.get(id).map(mark), model.get(&id).copied());
            assert_eq!(chunks.contains(id), model.contains_key(&id));
            assert_eq!(chunks.len(), model.len() as u64);
            let found: Vec<u64> = chunks.iter_from(id).take(3).map(|(id, _)| id).collect();
            let expected: Vec<u64> = model.range(id..).take(3).map(|(&id, _)| id).collect();
            assert_eq!(found, expected, "step {step}");
            if step % 200 == 0 {
                assert_eq!(marks(&frozen.0), frozen.1.into_iter().collect::<Vec<_>>(), "step {step}");
                frozen = (chunks.clone(), model.clone());
            }
            assert!(chunks.chunks.iter().all(|(_, chunk)| (1..=most).contains(&chunk.ids.len())));
            // Two neighbours are joined as soon as they are short.
            assert!(chunks.chunks.len() <= 2 + 8 * chunks.len() as usize / most, "step {step}");
        }
        assert_eq!(marks(&chunks), model.into_iter().collect::<Vec<_>>());
    }
}

#[test]
fn ascending_ids_leave_full_chunks() {
    let mut chunks = EntryChunks::new(CHUNK_ENTRIES);
    for id in 0..10 * CHUNK_ENTRIES as u64 {
        chunks.insert(id, entry(id));
    }
    assert_eq!(chunks.chunks.len(), 10);
    let unused = chunks.chunks.iter().map(|(_, chunk)| chunk.entries.capacity() - chunk.entries.len());
    assert_eq!(unused.sum::<usize>(), 0);
}

/// A frozen table costs a pointer for each chunk, and an operation copies one chunk.
#[test]
fn an_operation_beside_a_frozen_table_copies_one_chunk() {
    let mut tables = ObjectTables::new(4096, 1 << 20);
    let what = ObjectTraits::of(&CreateOptions::default(), SumRule::Hashes);
    for id in 0..20 * CHUNK_ENTRIES as u64 {
        tables.apply(&RecordOp::Create { id, what }, 1, &mut OpEffect::default()).unwrap();
    }
    let frozen = tables.entries.clone();
    for id in [0, 5, 900] {
        tables.apply(&RecordOp::Length { id, len: 7 }, 2, &mut OpEffect::default()).unwrap();
    }
    let pairs = frozen.chunks.iter().zip(&tables.entries.chunks);
    let copied = pairs.filter(|(old, new)| !Arc::ptr_eq(&old.1, &new.1)).count();
    assert_eq!(copied, 1);
}
