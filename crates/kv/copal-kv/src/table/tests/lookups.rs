//! Look-ups and cursors agree with a `BTreeMap`.

use super::{
    super::{Scan, Table},
    support::{Model, Random, SEED, build, cache, mixed, open, options},
};
use crate::{
    format::{
        entry::{Entry, EntryKind, MAX_SEQ},
        entry_cursor::Cursor,
    },
    table::{TableCursor, TableVerifier},
};
use copal_filter::{KeyHash, Kind};
use std::{cmp::Reverse, ops::Bound, sync::Arc};

type Row<'a> = Option<(&'a (Vec<u8>, Reverse<u64>), &'a (EntryKind, Vec<u8>))>;

fn assert_at(entry: Option<Entry<'_>>, row: Row<'_>, what: &str) {
    match (entry, row) {
        (None, None) => {}
        (Some(entry), Some(((key, seq), (kind, value)))) => {
            let same =
                (entry.key, entry.seq, entry.kind, entry.value) == (&key[..], seq.0, *kind, &value[..]);
            assert!(same, "{what}: at {entry:?}, expected {key:?}@{}", seq.0);
        }
        (entry, row) => panic!("{what}: at {entry:?}, expected {row:?}"),
    }
}

/// A key of the model, or one near it, or a random one.
fn some_key(random: &mut Random, model: &Model) -> Vec<u8> {
    let keys: Vec<&Vec<u8>> = model.keys().map(|(key, _)| key).collect();
    let mut key = keys[random.below(keys.len() as u64) as usize].clone();
    match random.below(6) {
        0 => key.push(random.next_u64() as u8),
        1 => drop(key.pop()),
        2 => {
            if let Some(last) = key.last_mut() {
                *last = last.wrapping_add(1);
            }
        }
        3 => key = random.bytes(6),
        _ => {}
    }
    key
}

fn check_lookups(table: &Table, model: &Model, random: &mut Random, rounds: usize) {
    for _ in 0..rounds {
        let key = some_key(random, model);
        let seq = if random.below(2) == 0 { MAX_SEQ } else { random.below(1001) };
        let found = table.get(&key, seq, &KeyHash::new(&key, SEED)).unwrap();
        let expected = model.range((key.clone(), Reverse(seq))..).next().filter(|((k, _), _)| *k == key);
        let found = found.map(|f| (f.seq, f.kind, f.value.to_vec()));
        assert_eq!(found, expected.map(|((_, seq), (kind, value))| (seq.0, *kind, value.clone())));
    }
}

fn check_cursor(table: &Arc<Table>, model: &Model, random: &mut Random, rounds: usize) {
    let mut cursor = TableCursor::new(
        table,
        Scan {
            whole: random.below(2) == 0,
            window: Some(4096 << random.below(7)),
            ahead: random.below(2) == 0,
            ..Scan::default()
        },
    );
    let mut at: Option<(Vec<u8>, Reverse<u64>)> = None;
    for _ in 0..rounds {
        let (key, seq) = (some_key(random, model), random.below(1001));
        let to = (key.clone(), Reverse(seq));
        let row = match random.below(12) {
            0 => {
                cursor.first().unwrap();
                model.first_key_value()
            }
            1 => {
                cursor.last().unwrap();
                model.last_key_value()
            }
            2 => {
                cursor.seek(&key, seq).unwrap();
                model.range(to..).next()
            }
            3 => {
                cursor.seek_for_prev(&key, seq).unwrap();
                model.range(..=to).next_back()
            }
            4..8 => {
                cursor.next().unwrap();
                at.and_then(|at| model.range((Bound::Excluded(at), Bound::Unbounded)).next())
            }
            _ => {
                cursor.prev().unwrap();
                at.and_then(|at| model.range(..at).next_back())
            }
        };
        assert_at(cursor.entry(), row, "cursor");
        assert_eq!(cursor.valid(), row.is_some());
        if let Some((_, (_, value))) = row {
            assert_eq!(cursor.value(), value);
        }
        at = row.map(|(at, _)| at.clone());
    }
}

fn check_whole(table: &Arc<Table>, model: &Model) {
    let mut cursor = TableCursor::new(table, Scan::default());
    cursor.first().unwrap();
    for row in model {
        assert_at(cursor.entry(), Some(row), "forward");
        cursor.next().unwrap();
    }
    assert!(!cursor.valid());
    cursor.last().unwrap();
    for row in model.iter().rev() {
        assert_at(cursor.entry(), Some(row), "backward");
        cursor.prev().unwrap();
    }
    assert!(!cursor.valid());
}

#[test]
fn tables_of_any_shape_answer_like_a_map() {
    let mut random = Random::new(1);
    for round in 0..24 {
        let keys = [1, 2, 17, 300, 3000][round % 5];
        let model = mixed(&mut random, keys);
        let kind = [Kind::Ribbon, Kind::Bloom][round % 2];
        let (bytes, meta) = build(&model, options(round % 2 == 0, kind));
        assert_eq!(meta.bytes, bytes.len() as u64);
        assert_eq!(meta.entries, model.len() as u64);
        let table = open(bytes, &cache());
        let mut bounded = meta.clone();
        bounded.cut_bounds();
        assert_eq!(table.meta(), &bounded);
        assert!(model.keys().all(|(key, _)| table.meta().covers(key)));
        check_whole(&table, &model);
        check_lookups(&table, &model, &mut random, 400);
        check_cursor(&table, &model, &mut random, 400);
        let report = TableVerifier::new(&table).verify(copal_device::IoClass::Background).unwrap();
        assert!(report.is_clean(), "{:?}", report.damaged);
        assert_eq!(report.entries, model.len() as u64);
    }
}
