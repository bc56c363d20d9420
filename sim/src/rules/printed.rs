//! Figures that the design stated before the implementation, for comparison.
//!
//! Model: half of the Gets missing, two flushed runs and four levels, 4 bits per key. Static figures on 10 M
//! keys; moving ones on 1,002 tables and 160,000 Gets whose hot set moves half-way.

use super::access::Access;
use copal_filter::{Kind, rules::RuleKind};

fn column(access: Access) -> Option<usize> {
    [Access::Uniform, Access::Zipf(0.99), Access::Zipf(1.1), Access::Zipf(1.2)]
        .into_iter()
        .position(|known| known == access)
}

/// Extra I/O per Get of the best static units.
pub(super) fn best(kind: Kind, access: Access) -> Option<f64> {
    let row = match kind {
        Kind::Ribbon => [0.054, 0.036, 0.024, 0.015],
        Kind::Bloom => [0.158, 0.104, 0.068, 0.040],
    };
    column(access).map(|column| row[column])
}

/// The same with equal units everywhere.
pub(super) fn fixed(kind: Kind) -> Option<f64> {
    match kind {
        Kind::Ribbon => Some(0.35),
        Kind::Bloom => Some(0.80),
    }
}

/// Extra I/O per Get of a rule, settled, and settled again after the move.
pub(super) fn moving(rule: RuleKind, kind: Kind, access: Access) -> (Option<f64>, Option<f64>) {
    let column = column(access);
    match (rule, kind, column) {
        (RuleKind::Paper, Kind::Bloom, Some(0)) => (Some(0.267), None),
        (RuleKind::Paper, Kind::Bloom, Some(1)) => (Some(0.19), Some(0.21)),
        (RuleKind::Paper, Kind::Bloom, Some(3)) => (Some(0.10), None),
        (RuleKind::Paper, Kind::Ribbon, Some(0)) => (Some(0.081), None),
        (RuleKind::Paper, Kind::Ribbon, Some(1)) => (Some(0.066), Some(0.069)),
        (RuleKind::Classes, Kind::Ribbon, Some(0)) => (Some(0.053), None),
        (RuleKind::Classes, Kind::Ribbon, Some(1)) => (Some(0.040), Some(0.040)),
        (RuleKind::Classes, Kind::Ribbon, Some(3)) => (Some(0.026), None),
        _ => (None, None),
    }
}
