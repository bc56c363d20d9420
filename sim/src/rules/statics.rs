//! Best fixed units for known rates: the lower bound of every rule.

use super::{
    access::{Access, probabilities},
    key::Key,
    tree::Tree,
};
use copal_filter::rules::{Heat, optimum};

/// Negative probes per Get of every partition of the tree.
pub(super) fn heats(tree: &Tree, access: Access, missing_share: f64) -> Vec<f64> {
    let mut heats = vec![0.0; tree.shapes.len()];
    for (id, probability) in probabilities(access, tree.keys).into_iter().enumerate() {
        for (present, share) in [(true, 1.0 - missing_share), (false, missing_share)] {
            let key = Key::numbered(id as u64, tree.keys, present);
            let end = tree.run_of(key).unwrap_or(tree.runs.len());
            for run in 0..end {
                heats[tree.partition(run, key) as usize] += probability * share;
            }
        }
    }
    heats
}

/// Extra I/O per Get with these units everywhere.
pub(super) fn fixed(tree: &Tree, heats: &[f64], units: u8) -> f64 {
    let all = tree.shapes.iter().zip(heats).map(|(&shape, &heat)| (shape, Heat(heat), units));
    optimum::extra_io(all)
}

/// Extra I/O per Get with the best units for these heats.
pub(super) fn best(tree: &Tree, heats: &[f64], budget_bytes: u64) -> f64 {
    let partitions: Vec<_> =
        tree.shapes.iter().zip(heats).map(|(&shape, &heat)| (shape, Heat(heat))).collect();
    let units = optimum::units(&partitions, budget_bytes);
    optimum::extra_io(partitions.into_iter().zip(units).map(|((shape, heat), units)| (shape, heat, units)))
}
