//! The best fixed content of memory for true probabilities: rows, blocks and columns by reads saved per byte.
//!
//! Each block is kept whole, or some of its rows are. Per block the choices form a curve of reads saved over
//! bytes. Its upper hull
//! gives pieces of falling worth, and the greedy choice over all pieces is optimal to within one.

use super::{
    store::Store,
    traces::{Phase, Trace, probabilities},
};
use copal_filter::Kind;
use copal_market::ENTRY_BYTES;
use std::collections::HashMap;

/// Bytes of a row beside its own.
const ROW_OVERHEAD: f64 = 64.0;

struct Piece {
    bytes: f64,
    saved: f64,
}

/// Reads per Get that remain.
pub(super) fn reads_per_get(trace: &Trace, phase: &Phase, total: u64) -> f64 {
    let store = &trace.store;
    let mut of_block: HashMap<u64, HashMap<u64, f64>> = HashMap::new();
    let mut negatives = vec![0.0; store.partitions() as usize];
    let mut reads = 0.0;
    for (key, probability) in probabilities(trace, phase) {
        let home = store.home(key);
        for run in 0..home.min(store.runs()) {
            negatives[store.place(run, key).partition as usize] += probability;
        }
        if !key.is_absent {
            reads += probability;
            *of_block.entry(store.place(home, key).block).or_default().entry(key.id).or_default() +=
                probability;
        }
    }
    let mut pieces = columns(store, &negatives);
    reads += negatives.iter().sum::<f64>();
    let mut blocks: Vec<_> = of_block.into_iter().collect();
    blocks.sort_unstable_by_key(|&(block, _)| block);
    for (_, rows) in blocks {
        let mut rows: Vec<f64> = rows.into_values().collect();
        pieces.extend(hull(store, &mut rows));
    }
    pieces.sort_by(|a, b| (b.saved / b.bytes).total_cmp(&(a.saved / a.bytes)));
    let index = u64::from(store.partitions()) * (store.index_bytes() + ENTRY_BYTES);
    let mut left = total.saturating_sub(index) as f64;
    for piece in pieces {
        if piece.bytes <= left {
            left -= piece.bytes;
            reads -= piece.saved;
        }
    }
    reads.max(0.0)
}

fn columns(store: &Store, negatives: &[f64]) -> Vec<Piece> {
    let kind = Kind::Ribbon;
    let mut pieces = Vec::new();
    for (partition, &heat) in negatives.iter().enumerate() {
        let bytes = f64::from(kind.unit_bytes(store.keys_of(partition as u32)));
        for units in 0..kind.units() {
            pieces.push(Piece { bytes, saved: heat * (kind.fpr(units) - kind.fpr(units + 1)) });
        }
    }
    pieces
}

/// Pieces of the upper hull over the rows, hottest first, and the whole block.
fn hull(store: &Store, rows: &mut [f64]) -> Vec<Piece> {
    rows.sort_unstable_by(|a, b| b.total_cmp(a));
    let row = store.row_bytes as f64 + ROW_OVERHEAD;
    let mut points = vec![(0.0, 0.0)];
    let mut saved = 0.0;
    for (count, probability) in rows.iter().enumerate() {
        saved += probability;
        points.push(((count + 1) as f64 * row, saved));
    }
    let block = (store.block_bytes() + ENTRY_BYTES) as f64;
    points.retain(|&(bytes, _)| bytes < block);
    points.push((block, saved));
    let mut upper: Vec<(f64, f64)> = Vec::new();
    for point in points {
        while let [.., a, b] = upper[..]
            && (b.1 - a.1) * (point.0 - b.0) <= (point.1 - b.1) * (b.0 - a.0)
        {
            upper.pop();
        }
        upper.push(point);
    }
    upper
        .windows(2)
        .map(|pair| Piece { bytes: pair[1].0 - pair[0].0, saved: pair[1].1 - pair[0].1 })
        .collect()
}
