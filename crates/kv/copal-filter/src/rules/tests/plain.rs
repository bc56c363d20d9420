//! The two rules that ignore probes: fixed, and best for each run.

use super::support::{Store, shape};
use crate::{
    Kind,
    rules::{Fixed, Heat, Monkey, Rule, optimum},
};

#[test]
fn fixed_gives_everybody_the_same() {
    let mut rule = Fixed::new(4);
    let mut store = Store::default();
    for id in 0..10 {
        store.add(&mut rule, id, shape(Kind::Ribbon, 2000, 0), 100.0 * f64::from(id), 0, 0);
    }
    store.step(&mut rule, u64::MAX, 0);
    assert!((0..10).all(|id| store.units(id) == 4), "no more than asked for");
    // Room for 34 columns: three each, and a fourth for the first four.
    store.step(&mut rule, 34 * 256, 1);
    assert_eq!((0..10).map(|id| store.units(id)).collect::<Vec<_>>(), [4, 4, 4, 4, 3, 3, 3, 3, 3, 3]);
    assert!(store.step(&mut rule, 34 * 256, 2).is_empty(), "nothing moves without a reason");
    store.remove(&mut rule, 0);
    store.step(&mut rule, 34 * 256, 3);
    assert_eq!((1..10).map(|id| u32::from(store.units(id))).sum::<u32>(), 34);
    assert_eq!(rule.predict(shape(Kind::Bloom, 2000, 0), Heat(9.0), 3), 3);
}

#[test]
fn monkey_gives_small_runs_more_and_is_optimal_for_uniform_access() {
    for kind in [Kind::Ribbon, Kind::Bloom] {
        let mut rule = Monkey::new();
        let mut store = Store::default();
        let runs = [1, 1, 9, 90];
        let mut id = 0;
        let mut heats = Vec::new();
        for (level, &partitions) in runs.iter().enumerate() {
            for _ in 0..partitions {
                let shape = shape(kind, 2021, level as u8);
                store.add(&mut rule, id, shape, 0.0, 0, 0);
                heats.push((shape, Heat(1.0 / f64::from(partitions))));
                id += 1;
            }
        }
        for bits in 1..8 {
            let budget = bits * 101 * 2021 / 8;
            store.step(&mut rule, budget, 0);
            let held =
                heats.iter().enumerate().map(|(id, &(shape, heat))| (shape, heat, store.units(id as u32)));
            let best = optimum::units(&heats, budget);
            let best = heats.iter().zip(best).map(|(&(shape, heat), units)| (shape, heat, units));
            let (ours, best) = (optimum::extra_io(held), optimum::extra_io(best));
            assert!(ours < best * 1.001, "{kind:?} at {bits} bits: {ours} instead of {best}");
            let levels = [0, 2, 20].map(|id| store.units(id));
            assert!(levels.is_sorted_by(|small, large| small >= large), "{levels:?}");
            let next = rule.predict(shape(kind, 2021, 3), Heat(0.0), 0);
            assert!(store.units(100) == next && store.units(11).abs_diff(next) <= 1);
        }
    }
}
