//! Best static units for known heats: the upper bound for any rule.
//!
//! Extra I/O is the sum of `heat * fpr(units)`. Each further unit of a partition saves less than the previous
//! one. So repeatedly taking the unit that saves most per byte is optimal to within one unit.

use super::{Heat, Shape, marginal};
use std::{cmp::Ordering, collections::BinaryHeap};

struct NextUnit {
    gain_per_byte: f64,
    item: usize,
}

impl PartialEq for NextUnit {
    fn eq(&self, other: &NextUnit) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for NextUnit {}
impl PartialOrd for NextUnit {
    fn partial_cmp(&self, other: &NextUnit) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for NextUnit {
    fn cmp(&self, other: &NextUnit) -> Ordering {
        let gain = self.gain_per_byte.total_cmp(&other.gain_per_byte);
        gain.then(other.item.cmp(&self.item))
    }
}

/// Units for each partition, under a budget of bytes; among equals the first one gains.
pub fn units(partitions: &[(Shape, Heat)], budget_bytes: u64) -> Vec<u8> {
    let mut units = vec![0u8; partitions.len()];
    let mut free = budget_bytes;
    let next = |item: usize, units: u8| {
        let (shape, heat) = partitions[item];
        let gain = marginal(shape.kind, heat.0, units) / f64::from(shape.unit_bytes.max(1));
        (units < shape.units && gain > 0.0).then_some(NextUnit { gain_per_byte: gain, item })
    };
    let mut heap: BinaryHeap<NextUnit> = (0..partitions.len()).filter_map(|item| next(item, 0)).collect();
    while let Some(NextUnit { item, .. }) = heap.pop() {
        let bytes = u64::from(partitions[item].0.unit_bytes);
        if bytes <= free {
            free -= bytes;
            units[item] += 1;
            heap.extend(next(item, units[item]));
        }
    }
    units
}

/// Extra I/O of these units, in the measure of the heats (elasticbf §3.2, formula 1).
pub fn extra_io(partitions: impl IntoIterator<Item = (Shape, Heat, u8)>) -> f64 {
    let of = |(shape, heat, units): (Shape, Heat, u8)| heat.0 * shape.kind.fpr(units);
    partitions.into_iter().map(of).sum()
}
