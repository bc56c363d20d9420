//! The greedy optimum against every possible assignment, and the class rule against the optimum.

use super::support::{Random, Store, negative, shape};
use crate::{
    Kind,
    rules::{Classes, Heat, Shape, marginal, optimum},
};

fn io(partitions: &[(Shape, Heat)], units: &[u8]) -> f64 {
    optimum::extra_io(partitions.iter().zip(units).map(|(&(shape, heat), &units)| (shape, heat, units)))
}

fn bytes(partitions: &[(Shape, Heat)], units: &[u8]) -> u64 {
    partitions
        .iter()
        .zip(units)
        .map(|((shape, _), &units)| u64::from(shape.unit_bytes) * u64::from(units))
        .sum()
}

/// The least extra I/O of all assignments within the budget.
fn exhaustive(partitions: &[(Shape, Heat)], budget: u64) -> f64 {
    let mut best = f64::INFINITY;
    let mut units = vec![0u8; partitions.len()];
    loop {
        if bytes(partitions, &units) <= budget {
            best = best.min(io(partitions, &units));
        }
        let Some(at) = (0..units.len()).find(|&at| units[at] < 6) else {
            return best;
        };
        units[at] += 1;
        units[..at].fill(0);
    }
}

#[test]
fn the_greedy_optimum_is_the_optimum() {
    let mut random = Random::new(3);
    for round in 0..150 {
        let kind = [Kind::Ribbon, Kind::Bloom][round % 2];
        let partitions: Vec<(Shape, Heat)> = (0..4)
            .map(|_| {
                let mut shape = shape(kind, 2000 >> random.below(5), 0);
                shape.units = shape.units.min(6);
                (shape, Heat(f64::from(1u32 << random.below(8))))
            })
            .collect();
        // A budget that a price per byte spends to the last byte: there greedy is exactly optimal.
        let price = 2f64.powi(-(random.below(12) as i32)) * 0.9;
        let worth = |&(shape, heat): &(Shape, Heat)| {
            let pays = |units: &u8| marginal(kind, heat.0, units - 1) / f64::from(shape.unit_bytes) >= price;
            (1..=shape.units).take_while(pays).last().unwrap_or(0)
        };
        let priced: Vec<u8> = partitions.iter().map(worth).collect();
        let budget = bytes(&partitions, &priced);
        assert_eq!(optimum::units(&partitions, budget), priced);
        let (greedy, best) = (io(&partitions, &priced), exhaustive(&partitions, budget));
        assert!((greedy - best).abs() < 1e-9 * best.max(1.0), "{greedy} instead of {best}");
        // Elsewhere it leaves less than a unit unused.
        let more = budget + random.below(300);
        let units = optimum::units(&partitions, more);
        assert!(bytes(&partitions, &units) <= more && io(&partitions, &units) <= greedy);
    }
}

/// Extra I/O per Get at which the class rule settles, relative to the optimum, and its loads per Get then.
fn settled(kinds: &[Kind], skew: f64, partitions: u32, seed: u64) -> (f64, f64) {
    let mut random = Random::new(seed);
    let mut rule = Classes::default();
    let mut store = Store::default();
    let mut heats = Vec::new();
    for id in 0..partitions {
        let shape =
            shape(kinds[random.below(kinds.len() as u64) as usize], 500 + random.below(1500) as u32, 0);
        store.add(&mut rule, id, shape, 0.0, 0, 0);
        heats.push((shape, Heat(f64::from(id + 1).powf(-skew))));
    }
    let sum: f64 = heats.iter().map(|(_, heat)| heat.0).sum();
    heats.iter_mut().for_each(|(_, heat)| heat.0 /= sum);
    let mut reached = 0.0;
    let cumulative: Vec<f64> = heats
        .iter()
        .map(|(_, heat)| {
            reached += heat.0;
            reached
        })
        .collect();
    let budget = heats.iter().map(|(shape, _)| u64::from(shape.keys)).sum::<u64>() / 2;
    let mut now = 0;
    let mut get = |store: &mut Store, gets: u64| {
        for _ in 0..gets {
            let at = random.below(1 << 52) as f64 / (1u64 << 52) as f64;
            let id = cumulative.partition_point(|&end| end < at).min(partitions as usize - 1);
            now += 1;
            crate::rules::Rule::observe(&mut rule, &[negative(id as u32)], now);
            if now.is_multiple_of(64) {
                store.step(&mut rule, budget, now);
            }
        }
    };
    // Eight half-lives to settle, four to measure.
    get(&mut store, 8 * 32 * u64::from(partitions));
    let before = store.loads;
    let (mut io, windows) = (0.0, 16);
    for _ in 0..windows {
        get(&mut store, 8 * u64::from(partitions));
        let units = (0..partitions).map(|id| store.units(id));
        io += optimum::extra_io(heats.iter().zip(units).map(|(&(shape, heat), units)| (shape, heat, units)));
    }
    let best = optimum::units(&heats, budget);
    let best = optimum::extra_io(heats.iter().zip(best).map(|(&(shape, heat), units)| (shape, heat, units)));
    (io / f64::from(windows) / best, (store.loads - before) as f64 / (128 * partitions) as f64)
}

#[test]
fn the_class_rule_settles_near_the_optimum_without_moving_to_and_fro() {
    let all = [Kind::Ribbon, Kind::Bloom];
    for (kinds, skew) in
        [(&all[..1], 0.0), (&all[..1], 0.8), (&all[..1], 1.2), (&all[1..2], 0.8), (&all[..], 0.8)]
    {
        let (factor, loads) = settled(kinds, skew, 300, 5);
        assert!(factor < 1.25, "{kinds:?}, skew {skew}: {factor} times the optimum");
        assert!(loads <= 0.005, "{kinds:?}, skew {skew}: {loads} loads per Get");
    }
}
