//! Race test of the real adjuster: tables open, close and change runs while it reads units.

use super::tests::{KEYS, Random, assert_exact, assert_kept, assert_loaded, get, key, open, table_bytes};
use crate::{
    memory::cache::TableCache,
    session::options::{FilterMemory, FilterOptions},
    table::Table,
};
use bytes::Bytes;
use copal_filter::{Kind, rules::RuleKind};
use std::sync::{Arc, Barrier};

const MERGERS: u64 = 2;
const STEPS: u64 = 150;
/// About two columns for each partition of the tables that are open at a time.
const LIMIT: u64 = 4 * 3 * 512;

/// Does random merges; returns the remaining tables.
fn merge(cache: &Arc<TableCache>, stored: &[Bytes], seed: u64) -> Vec<(u64, Arc<Table>)> {
    let mut random = Random::new(seed);
    let mut tables: Vec<(u64, Arc<Table>)> = Vec::new();
    for _ in 0..STEPS {
        let at = random.below(tables.len().max(1) as u64) as usize;
        match (random.below(6), tables.get(at)) {
            (0, _) | (_, None) if tables.len() < 3 => {
                let number = random.below(stored.len() as u64);
                tables.push((number, open(&stored[number as usize], cache)));
            }
            (1, Some(_)) => drop(tables.swap_remove(at)),
            (2, Some((number, table))) => {
                // Moves part of it to another run; nothing settles before the next table opens.
                let from = key(*number, random.below(KEYS));
                let rest = Bytes::copy_from_slice(&from)..Bytes::from_static(&[0xff]);
                table.keep_filters(random.below(3) as u8, &[rest]);
            }
            (_, Some((number, table))) => {
                for i in 0..100 {
                    get(table, *number, 2 * random.below(KEYS) + i % 2);
                }
            }
            (_, None) => {}
        }
        assert_kept(cache, LIMIT);
    }
    tables
}

#[test]
fn the_account_is_exact_after_tables_came_and_went_during_adjusting() {
    let stored: Vec<Bytes> = (0..4).map(|number| table_bytes(Kind::Ribbon, number)).collect();
    for seed in 0..12 {
        let filters = FilterOptions {
            rule: RuleKind::ALL[seed as usize % RuleKind::ALL.len()],
            memory: [FilterMemory::Bytes(u64::MAX), FilterMemory::BitsPerKey(3.0)][seed as usize / 6],
            background: false,
            ..FilterOptions::default()
        };
        let cache = TableCache::new(1 << 20, LIMIT, filters);
        let together = Barrier::new(MERGERS as usize + 1);
        let tables: Vec<_> = std::thread::scope(|scope| {
            let (cache, stored, together) = (&cache, &stored, &together);
            let mergers: Vec<_> = (0..MERGERS)
                .map(|merger| {
                    scope.spawn(move || {
                        together.wait();
                        merge(cache, stored, 1 + seed * MERGERS + merger)
                    })
                })
                .collect();
            together.wait();
            for _ in 0..STEPS {
                cache.adjust_filters();
            }
            let left = mergers.into_iter().map(|merger| merger.join().unwrap());
            left.flatten().collect()
        });
        cache.adjust_filters();
        assert_exact(&cache, LIMIT);
        assert_loaded(&cache, &tables);
        drop(tables);
        assert_exact(&cache, 0);
    }
}
