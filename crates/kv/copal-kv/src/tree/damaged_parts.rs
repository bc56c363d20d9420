//! Unreadable parts of a version, and the ranges that merges leave out because of them.
//!
//! Not here: listing them for users and dropping them (`quarantine`, `release`).

use crate::{
    format::entry::KeyRange,
    tree::version::{TableSlice, TreeVersion},
};

/// An unreadable part of a slice.
pub(crate) struct DamagedPart<'a> {
    pub(crate) slice: &'a TableSlice,
    pub(crate) range: KeyRange,
    pub(crate) what: String,
}

/// All parts of a version that were found damaged so far, in the order of its runs.
pub(crate) fn parts(version: &TreeVersion) -> Vec<DamagedPart<'_>> {
    let mut parts = Vec::new();
    for slice in version.runs.iter().flat_map(|run| &run.slices) {
        for lost in slice.table.table.lost_keys() {
            let range =
                KeyRange { start: lost.start, end: lost.end.unwrap_or_else(|| slice.range.end.clone()) };
            let range = range.intersect(&slice.range);
            if !range.is_empty() {
                let what = lost.error.to_string();
                parts.push(DamagedPart { slice, range, what });
            }
        }
    }
    parts
}

/// Key ranges that no merge may touch: ascending, disjoint.
pub(crate) fn ranges(version: &TreeVersion) -> Vec<KeyRange> {
    let mut all: Vec<KeyRange> = parts(version).into_iter().map(|part| part.range).collect();
    all.sort_by(|a, b| a.start.cmp(&b.start));
    let mut joined: Vec<KeyRange> = Vec::new();
    for range in all {
        match joined.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.clone().max(range.end),
            _ => joined.push(range),
        }
    }
    joined
}

/// The first stretch of `range` outside `apart`; moves the start of `range` to it. `None`: there is none.
pub(crate) fn next_free(range: &mut KeyRange, apart: &[KeyRange]) -> Option<KeyRange> {
    if let Some(inside) = apart.iter().find(|apart| apart.contains(&range.start)) {
        range.start = inside.end.clone();
    }
    let next = apart.iter().find(|apart| apart.start > range.start);
    let free = KeyRange {
        start: range.start.clone(),
        end: next.map_or(range.end.clone(), |next| next.start.clone().min(range.end.clone())),
    };
    (!free.is_empty()).then_some(free)
}

/// Whether `apart` covers all of `range`.
pub(crate) fn covers(apart: &[KeyRange], range: &KeyRange) -> bool {
    apart.iter().any(|apart| apart.covers(range))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn range(start: &'static str, end: &'static str) -> KeyRange {
        KeyRange { start: Bytes::from_static(start.as_bytes()), end: Bytes::from_static(end.as_bytes()) }
    }

    #[test]
    fn a_walk_skips_quarantined_ranges() {
        let apart = [range("b", "d"), range("f", "g"), range("x", "z")];
        let mut all = range("a", "y");
        let mut seen = Vec::new();
        while let Some(free) = next_free(&mut all, &apart) {
            all.start = free.end.clone();
            seen.push(free);
        }
        assert_eq!(seen, [range("a", "b"), range("d", "f"), range("g", "x")]);
        assert!(next_free(&mut range("b", "d"), &apart).is_none());
        assert_eq!(next_free(&mut range("c", "e"), &apart), Some(range("d", "e")));
        assert!(covers(&apart, &range("f", "g")) && !covers(&apart, &range("e", "g")));
    }
}
