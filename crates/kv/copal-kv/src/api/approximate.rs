//! Estimates the bytes of a key range without reading it.

use crate::{Keyspace, format::entry::KeyRange, tree::version::TableSlice};
use std::ops::Bound;

impl Keyspace {
    /// Estimated bytes of a range in tables, separated values included. Reads nothing.
    ///
    /// The estimate is exact to a partition of each table (about 2,000 keys) and assumes that values are
    /// spread evenly over a table. It leaves out entries that only memtables hold. It includes deleted
    /// entries until a merge drops them.
    #[must_use]
    pub fn approximate_bytes(&self, range: (Bound<&[u8]>, Bound<&[u8]>)) -> u64 {
        let range = self.key_range(range);
        if range.is_empty() {
            return 0;
        }
        let version = self.engine().super_version().version.clone();
        let slices = version.runs.iter().flat_map(|run| run.overlapping(&range));
        slices.map(|slice| bytes_within(slice, &range)).sum()
    }
}

fn bytes_within(slice: &TableSlice, range: &KeyRange) -> u64 {
    let (table, meta) = (&slice.table.table, &slice.table.meta);
    let values: u64 = meta.values.iter().map(|(_, bytes)| bytes).sum();
    let all = meta.bytes + values;
    let first = (&range.start).max(&slice.range.start).max(&meta.start);
    let end = (&range.end).min(&slice.range.end).min(&meta.end);
    let partitions = u64::from(table.partitions());
    if partitions == 0 || (first == &meta.start && end == &meta.end) {
        return all;
    }
    let within = table.partitions_between(first, end).len() as u64;
    (u128::from(all) * u128::from(within) / u128::from(partitions)) as u64
}
