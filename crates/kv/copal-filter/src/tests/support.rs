//! Keys of a partition, filled as the table writer fills them.

use crate::{FilterFit, KeyHash, Kind, PartitionFilterBuilder};

pub(super) const SEED: u64 = 0x00c0_ffee;

/// Hash of key number `i` of the key family `family`.
pub(super) fn hash(family: u32, i: u64) -> KeyHash {
    KeyHash::new(format!("family {family} key {i}").as_bytes(), SEED)
}

/// Fills one partition from `hashes` until it is full; returns its keys.
pub(super) fn fill(
    builder: &mut PartitionFilterBuilder,
    hashes: &mut impl Iterator<Item = KeyHash>,
) -> Vec<KeyHash> {
    let mut keys = Vec::new();
    for hash in hashes {
        match builder.add(hash) {
            FilterFit::Fits => keys.push(hash),
            FilterFit::Full => break,
        }
    }
    keys
}

/// `count` full partitions of a kind: their keys and pages as stored.
pub(super) fn partitions(kind: Kind, family: u32, count: u64) -> Vec<(Vec<KeyHash>, Vec<u8>)> {
    let mut builder = PartitionFilterBuilder::new(kind, SEED);
    let mut hashes = (0..).map(|i| hash(family, i));
    (0..count)
        .map(|uid| {
            let keys = fill(&mut builder, &mut hashes);
            let page = builder.finish(uid).unwrap();
            (keys, page.as_bytes().to_vec())
        })
        .collect()
}

/// Whether `seen` of `probes` agrees with probability `p` within three standard deviations.
pub(super) fn within_3_sigma(seen: u64, probes: u64, p: f64) -> bool {
    let (n, seen) = (probes as f64, seen as f64);
    (seen - n * p).abs() <= 3.0 * (n * p * (1.0 - p)).sqrt()
}
