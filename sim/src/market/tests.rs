//! The simulator is exact, and the market holds its gate on short loads of each kind.

use super::*;
use store::{Key, Store};

fn market(name: &str) -> Entrant {
    entrant::ALL.into_iter().find(|plan| plan.name == name).unwrap()
}

fn short(name: &str, percent: u64) -> Trace {
    let mut trace = traces::all().into_iter().find(|trace| trace.name == name).unwrap();
    trace.phases.iter_mut().for_each(|phase| phase.gets = phase.gets * percent / 100);
    trace
}

#[test]
fn a_seed_gives_one_result() {
    let play_once = |seed| play(&short("zipf 1.2, scattered", 10), &market("market"), seed).phases;
    assert_eq!(play_once(7), play_once(7));
    assert_ne!(play_once(7), play_once(8));
}

#[test]
fn a_set_that_fits_reads_each_block_once() {
    let trace = short("everything fits", 100);
    let played = play(&trace, &market("market"), 1);
    let blocks = trace.store.rows.div_ceil(trace.store.block_rows());
    let pages = u64::from(trace.store.partitions()) * 2;
    let all: u64 = played.phases.iter().map(|reads| reads.reads).sum();
    assert!(all <= blocks + pages + 20, "{all} reads of {blocks} blocks and {pages} pages");
}

/// Symptom: rows took half of the memory where each row was asked for alike, and Gets read 1.3 times as much.
/// Cause: a block that left for another block handed its rows on before the new one came, so the rows took
/// its bytes as free
/// ones. Fix: rows ask after the entry for which the block left.
#[test]
fn bytes_of_a_block_that_leaves_belong_to_the_asker() {
    let plans = ["blocks only", "market"].map(market);
    let compared = compare(short("small rows, all alike", 100), &plans, 5);
    let reads = compared.played.iter().map(|played| played.phases.last().unwrap().reads as f64);
    let [blocks, market] = reads.collect::<Vec<_>>()[..] else { panic!("two plans") };
    assert!(market <= 1.05 * blocks, "{market} reads, {blocks} with blocks only");
}

/// Symptom: with scattered heat blocks kept a tenth of the memory, and Gets read 1.05 times as much. Cause: a
/// hit on a row that
/// its block would hand on counted as a loss of blocks. Fix: it does not count.
#[test]
fn scattered_heat_leaves_the_memory_to_rows() {
    let played = play(&short("zipf .99, scattered", 60), &market("market"), 5);
    let [rows, blocks, ..] = played.shares.last().unwrap();
    assert!(*rows > 0.85 && *blocks < 0.06, "{rows} {blocks}");
}

#[test]
fn the_gate_holds_on_short_loads() {
    let plans = ["today", "rows only", "blocks only", "market"].map(market);
    for name in
        ["hot range that moves", "200 keyspaces, half missing", "zipf 1.2, scattered", "everything fits"]
    {
        let compared = [compare(short(name, 100), &plans, 3)];
        let failures: Vec<String> = gate::failures(&compared);
        assert!(failures.is_empty(), "{failures:?}");
    }
}

/// The gate sees a market that is none: without free columns and with rows of today it fails.
#[test]
fn the_gate_fails_for_a_plan_of_shares() {
    let plans = [
        market("rows only"),
        market("blocks only"),
        Entrant { name: "market", ..market("blocks beside rows") },
    ];
    let failures = gate::failures(&[compare(short("90 % misses", 60), &plans, 3)]);
    assert!(failures.iter().any(|failure| failure.contains("with one cache")), "{failures:?}");
}

#[test]
fn every_row_has_one_home_and_each_partition_its_keys() {
    let store = Store::new(100_000, 116);
    let mut of_partition = vec![0u32; store.partitions() as usize];
    for partition in 0..store.partitions() {
        of_partition[partition as usize] = store.keys_of(partition);
        for block in store.blocks_of(partition) {
            assert!(store.blocks_of(partition + 1).all(|other| other != block), "{partition} {block}");
        }
        if partition + 2 == store.partitions() {
            break;
        }
    }
    of_partition[store.partitions() as usize - 1] = store.keys_of(store.partitions() - 1);
    assert_eq!(of_partition.iter().map(|&keys| u64::from(keys)).sum::<u64>(), store.rows);
    let homes: Vec<usize> = (0..store.rows).map(|id| store.home(Key { id, is_absent: false })).collect();
    assert!(homes.iter().all(|&home| home < store.runs()));
    assert!(homes.iter().filter(|&&home| home + 1 == store.runs()).count() > 90_000);
    assert_eq!(store.home(Key { id: 5, is_absent: true }), store.runs());
}

#[test]
fn the_best_content_of_a_large_memory_reads_nothing() {
    let trace = short("everything fits", 1);
    let at = |bytes| optimum::reads_per_get(&trace, &trace.phases[1], bytes);
    assert!(at(64 << 20) < 0.001);
    assert!(at(0) > 1.0 && at(1 << 20) > at(2 << 20));
}

#[test]
fn recorded_gets_are_a_load() {
    let mut gets = String::from("copal gets 1\nkeys 2000\n");
    for i in 0..4_000u64 {
        gets.push_str(&format!("{}{:016x}\n", if i % 3 == 0 { '-' } else { '+' }, i % 500));
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), gets).unwrap();
    let trace = recorded::read(file.path(), 8 << 20, 100).unwrap();
    assert_eq!((trace.phases.len(), trace.phases[0].gets), (4, 1_000));
    assert_eq!(trace.recorded.iter().filter(|key| key.is_absent).count(), 1_334);
    let played = play(&trace, &market("market"), 1);
    assert_eq!(played.phases.iter().map(|reads| reads.gets).sum::<u64>(), 4_000);
    assert!(recorded::read(std::path::Path::new("/nowhere"), 1, 1).is_err());
}
