//! The Multi-Queue in the paper's own words (elasticbf §3.2, §3.3).

use super::support::{Random, Store, negative, shape};
use crate::{
    Kind,
    rules::{Heat, LifeTime, NewHeat, Outcome, PaperMq, PaperMqOptions, PartitionId, Probe, Rule},
};

const KEYS: u32 = 1000;

fn paper(life_time: u64) -> PaperMq {
    PaperMq::new(PaperMqOptions { life_time: LifeTime::Gets(life_time), ..PaperMqOptions::default() })
}

/// `tables` tables of Bloom units in Q_0, and the bytes of one unit.
fn tables(rule: &mut PaperMq, tables: u32) -> (Store, u64) {
    let mut store = Store::default();
    for id in 0..tables {
        store.add(rule, id, shape(Kind::Bloom, KEYS, 0), 0.0, 0, 0);
    }
    (store, u64::from(Kind::Bloom.unit_bytes(KEYS)))
}

/// One Get that reads the table at time `now`.
fn get(rule: &mut PaperMq, store: &mut Store, table: u32, budget: u64, now: u64) {
    rule.observe(&[negative(table)], now);
    store.step(rule, budget, now);
}

fn ids(queue: &[PartitionId]) -> Vec<u32> {
    queue.iter().map(|id| id.0).collect()
}

#[test]
fn q_i_holds_the_tables_with_exactly_i_units_in_lru_order() {
    let mut rule = paper(1000);
    let (mut store, unit) = tables(&mut rule, 3);
    assert_eq!(ids(&rule.queue(0)), [0, 1, 2]);
    get(&mut rule, &mut store, 1, 10 * unit, 1);
    get(&mut rule, &mut store, 0, 10 * unit, 2);
    assert_eq!((ids(&rule.queue(0)), ids(&rule.queue(1))), (vec![2], vec![1, 0]));
    get(&mut rule, &mut store, 1, 10 * unit, 3);
    assert_eq!((ids(&rule.queue(1)), ids(&rule.queue(2))), (vec![0], vec![1]));
}

#[test]
fn a_table_is_expired_once_more_gets_than_its_expired_time_were_issued() {
    let mut rule = paper(10);
    let (mut store, unit) = tables(&mut rule, 2);
    get(&mut rule, &mut store, 0, unit, 5);
    assert_eq!(rule.expired_time(PartitionId(0)), Some(15));
    // Table 1 becomes the hotter one, but at 15 table 0 is not expired yet: larger than, not equal.
    get(&mut rule, &mut store, 1, unit, 14);
    get(&mut rule, &mut store, 1, unit, 15);
    assert_eq!((store.units(0), store.units(1)), (1, 0));
    get(&mut rule, &mut store, 1, unit, 16);
    assert_eq!((store.units(0), store.units(1)), (0, 1));
    // The table that paid was inserted into Q_0 at 16.
    assert_eq!(rule.expired_time(PartitionId(0)), Some(26));
}

#[test]
fn every_read_renews_the_expired_time() {
    let mut rule = paper(10);
    let (mut store, unit) = tables(&mut rule, 2);
    get(&mut rule, &mut store, 0, unit, 1);
    for now in [9, 17, 25] {
        get(&mut rule, &mut store, 0, unit, now);
        assert_eq!(rule.expired_time(PartitionId(0)), Some(now + 10));
        for _ in 0..5 {
            get(&mut rule, &mut store, 1, unit, now + 5);
        }
        assert_eq!((store.units(0), store.units(1)), (1, 0), "only expired tables pay");
    }
}

#[test]
fn payers_are_sought_from_q_m_down_to_q_1() {
    let mut rule = paper(100);
    let (mut store, unit) = tables(&mut rule, 4);
    // Table 0 is read first and has 1 unit, table 1 later and has 3, table 2 in between and has 2.
    get(&mut rule, &mut store, 0, 100 * unit, 1);
    for now in [2, 3] {
        get(&mut rule, &mut store, 2, 100 * unit, now);
    }
    for now in [4, 5, 6] {
        get(&mut rule, &mut store, 1, 100 * unit, now);
    }
    let budget = store.bytes();
    let units = |store: &Store| [0, 1, 2, 3].map(|table| store.units(table));
    assert_eq!(units(&store), [1, 3, 2, 0]);
    // All are expired. Table 0 was not read for the longest time, yet Q_3 pays first: table 1, which is then
    // fresh in Q_2.
    get(&mut rule, &mut store, 3, budget, 150);
    assert_eq!(units(&store), [1, 2, 2, 1]);
    // Then Q_2, where table 2 is the expired one, once two more reads make the second unit worth its loss.
    get(&mut rule, &mut store, 3, budget, 151);
    assert_eq!(units(&store), [1, 2, 2, 1]);
    get(&mut rule, &mut store, 3, budget, 152);
    assert_eq!(units(&store), [1, 2, 1, 2]);
    // Then Q_1.
    for now in 153..200 {
        get(&mut rule, &mut store, 3, budget, now);
    }
    assert_eq!(units(&store), [0, 2, 1, 3]);
}

#[test]
fn the_search_within_a_queue_begins_at_the_lru_side_and_ends_at_the_first_that_is_not_expired() {
    let mut rule = paper(100);
    let (mut store, unit) = tables(&mut rule, 5);
    for (now, table) in [(1, 3), (2, 1), (3, 0)] {
        get(&mut rule, &mut store, table, 3 * unit, now);
    }
    get(&mut rule, &mut store, 3, 3 * unit, 60);
    assert_eq!(ids(&rule.queue(1)), [1, 0, 3]);
    // At 103 table 1 is expired (2 + 100 < 103), table 0 is not.
    for now in [103, 103] {
        get(&mut rule, &mut store, 4, 3 * unit, now);
    }
    assert_eq!([0, 1, 3, 4].map(|table| store.units(table)), [1, 0, 1, 1]);
}

#[test]
fn without_enough_room_the_adjustment_is_skipped_and_no_filter_pays() {
    let mut rule = paper(100);
    let mut store = Store::default();
    // A small table that is expired, and a large one that would need more than the small one has.
    store.add(&mut rule, 0, shape(Kind::Bloom, 500, 0), 0.0, 0, 0);
    store.add(&mut rule, 1, shape(Kind::Bloom, 2000, 0), 0.0, 0, 0);
    let budget = u64::from(Kind::Bloom.unit_bytes(500));
    get(&mut rule, &mut store, 0, budget, 1);
    for now in 200..220 {
        get(&mut rule, &mut store, 1, budget, now);
    }
    assert_eq!((store.units(0), store.units(1)), (1, 0));
    assert_eq!(rule.expired_time(PartitionId(0)), Some(101), "it was not moved");
    // With a second expired table there is room.
    let budget = budget * 4;
    store.add(&mut rule, 2, shape(Kind::Bloom, 1500, 0), 0.0, 0, 0);
    get(&mut rule, &mut store, 2, budget, 221);
    assert_eq!(store.units(2), 1);
    get(&mut rule, &mut store, 1, budget, 222);
    assert_eq!(store.units(1), 0, "table 2 is not expired");
    get(&mut rule, &mut store, 1, budget, 400);
    assert_eq!([0, 1, 2].map(|table| store.units(table)), [0, 1, 0], "both were needed");
}

#[test]
fn a_colder_table_does_not_displace_a_hotter_one() {
    let mut rule = paper(10);
    let (mut store, unit) = tables(&mut rule, 2);
    for now in 1..=5 {
        get(&mut rule, &mut store, 0, unit, now);
    }
    // Expired, but its five accesses weigh more than the other's four.
    for now in 100..104 {
        get(&mut rule, &mut store, 1, unit, now);
        assert_eq!((store.units(0), store.units(1)), (1, 0));
    }
    // Five against five lowers nothing either; six against five does.
    get(&mut rule, &mut store, 1, unit, 104);
    assert_eq!(store.units(1), 0);
    get(&mut rule, &mut store, 1, unit, 105);
    assert_eq!((store.units(0), store.units(1)), (0, 1));
}

#[test]
fn every_access_counts_and_nothing_ages() {
    let mut rule = paper(10);
    let (mut store, unit) = tables(&mut rule, 1);
    for (i, outcome) in [Outcome::Hit, Outcome::Negative, Outcome::FalsePositive].into_iter().enumerate() {
        rule.observe(&[Probe { partition: PartitionId(0), outcome }], 1000 * i as u64);
        store.step(&mut rule, unit, 1000 * i as u64);
    }
    assert_eq!(rule.heat(PartitionId(0), 1_000_000), Heat(3.0));
    assert_eq!(rule.predict(shape(Kind::Bloom, KEYS, 0), Heat(100.0), 0), 0, "new tables start in Q_0");
}

#[test]
fn a_new_table_may_start_with_the_mean_frequency_of_its_queue() {
    for (new_heat, expected) in [(NewHeat::Zero, 0.0), (NewHeat::Inherited, 7.0), (NewHeat::QueueMean, 1.5)] {
        let options = PaperMqOptions { new_heat, ..PaperMqOptions::default() };
        let mut rule = PaperMq::new(options);
        let (mut store, _) = tables(&mut rule, 2);
        for (now, table) in [(1, 0), (2, 1), (3, 1)] {
            get(&mut rule, &mut store, table, 0, now);
        }
        store.add(&mut rule, 2, shape(Kind::Bloom, KEYS, 0), 7.0, 0, 3);
        assert_eq!(rule.heat(PartitionId(2), 3), Heat(expected), "{new_heat:?}");
    }
}

#[test]
fn a_relative_threshold_holds_small_adjustments_back() {
    let options = PaperMqOptions { min_relative_gain: 0.5, ..PaperMqOptions::default() };
    let mut rule = PaperMq::new(options);
    let (mut store, unit) = tables(&mut rule, 3);
    for now in 1..=3 {
        get(&mut rule, &mut store, now as u32 - 1, 0, now);
    }
    // E is 4 after the access and one unit of table 0 saves 1.7 of it.
    get(&mut rule, &mut store, 0, unit, 4);
    assert_eq!(store.units(0), 0);
    // E is 6: 3.4 of it.
    get(&mut rule, &mut store, 0, 0, 5);
    get(&mut rule, &mut store, 0, unit, 6);
    assert_eq!(store.units(0), 1);
}

#[test]
fn units_follow_the_workload_when_it_moves() {
    let mut rule = paper(40);
    let (mut store, unit) = tables(&mut rule, 100);
    let budget = 60 * unit;
    let (mut random, mut now) = (Random::new(8), 0);
    let units =
        |store: &Store, ids: std::ops::Range<u32>| ids.map(|id| u32::from(store.units(id))).sum::<u32>();
    let mut play = |store: &mut Store, hot: u64, gets: u64| {
        for _ in 0..gets {
            now += 1;
            let table = if random.below(10) > 0 { hot + random.below(10) } else { random.below(100) };
            get(&mut rule, store, table as u32, budget, now);
        }
    };
    play(&mut store, 0, 2000);
    let (hot, other) = (units(&store, 0..10), units(&store, 90..100));
    assert!(hot > 30 && other < 10, "{hot} units where nine of ten Gets go, {other} elsewhere");
    play(&mut store, 90, 6000);
    let (once_hot, now_hot) = (units(&store, 0..10), units(&store, 90..100));
    // Two each: a third would save less than the second of a formerly hot table, since nothing ages here.
    assert!(
        now_hot >= 20 && now_hot > other + 10 && once_hot < hot,
        "{now_hot} units at the new place, {once_hot} at the old"
    );
}

/// `E[Extra_IO]` by its definition.
fn expected_extra_io(rule: &PaperMq, store: &Store) -> f64 {
    let of = |(&id, &(shape, units)): (&PartitionId, &(crate::rules::Shape, u8))| {
        rule.heat(id, 0).0 * shape.kind.fpr(units)
    };
    store.held.iter().map(of).sum()
}

#[test]
fn expected_extra_io_never_rises_at_an_adjustment() {
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let mut rule = paper(1 + random.below(200));
        let mut store = Store::default();
        let kinds = [Kind::Ribbon, Kind::Bloom];
        for id in 0..40 {
            let kind = kinds[random.below(2) as usize];
            store.add(&mut rule, id, shape(kind, 100 + random.below(1900) as u32, 0), 0.0, 0, 0);
        }
        let budget = random.below(60_000);
        let mut adjustments = 0;
        for now in 1..2000 {
            let table = (random.below(40) * random.below(40) / 40) as u32;
            rule.observe(&[negative(table)], now);
            // The access itself raises E; the step's adjustment must not.
            let before = expected_extra_io(&rule, &store)
                + store.held[&PartitionId(table)].0.kind.fpr(store.units(table));
            let changes = store.step(&mut rule, budget, now);
            let after = expected_extra_io(&rule, &store);
            if changes.is_empty() {
                assert!((after - before).abs() < 1e-9 * before.max(1.0));
            } else {
                adjustments += 1;
                assert!(after < before, "seed {seed}, Get {now}: {before} to {after}");
            }
            assert!((rule.expected_extra_io() - after).abs() < 1e-6 * after.max(1.0), "kept by differences");
        }
        assert!(adjustments > 0 || budget < 1000);
    }
}
