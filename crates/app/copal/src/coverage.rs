//! Sums the ranges of a check: bytes that were compared with a checksum, bytes without data, and bytes of
//! neither kind.
//!
//! Not here: where the ranges come from (`copal_object`'s check).

use copal_object::{RangeCoverage, SummedData, UnusedSpace};
use serde_json::{Value, json};
use std::{collections::BTreeMap, ops::Range};

/// Ranges by start, merged where they touch, and bytes by kind.
#[derive(Debug, Default)]
pub(crate) struct CoverageReport {
    known: BTreeMap<u64, u64>,
    summed: BTreeMap<&'static str, u64>,
    unused: BTreeMap<&'static str, u64>,
}

impl CoverageReport {
    pub(crate) fn add(&mut self, range: &Range<u64>, covered: RangeCoverage) {
        let bytes = range.end - range.start;
        let (kinds, name) = match covered {
            RangeCoverage::Summed(what) => (&mut self.summed, summed_name(what)),
            RangeCoverage::Unused(why) => (&mut self.unused, unused_name(why)),
        };
        *kinds.entry(name).or_default() += bytes;
        self.join(range.clone());
    }

    fn join(&mut self, mut range: Range<u64>) {
        while let Some((&start, &end)) = self.known.range(..=range.end).next_back() {
            if end < range.start {
                break;
            }
            self.known.remove(&start);
            range = start.min(range.start)..end.max(range.end);
        }
        self.known.insert(range.start, range.end);
    }

    /// Ranges of `0..device_bytes` that the check did not report.
    pub(crate) fn gaps(&self, device_bytes: u64) -> Vec<Range<u64>> {
        let mut gaps = Vec::new();
        let mut at = 0;
        for (&start, &end) in &self.known {
            if start > at {
                gaps.push(at..start);
            }
            at = at.max(end);
        }
        if at < device_bytes {
            gaps.push(at..device_bytes);
        }
        gaps
    }

    pub(crate) fn as_json(&self, device_bytes: u64) -> Value {
        let gaps: Vec<Value> =
            self.gaps(device_bytes).iter().map(|gap| json!({ "from": gap.start, "to": gap.end })).collect();
        json!({
            "device_bytes": device_bytes,
            "summed": self.summed,
            "unused": self.unused,
            "neither": gaps,
        })
    }

    /// One line per kind.
    pub(crate) fn as_text(&self, device_bytes: u64) -> String {
        let lines = |title: &str, kinds: &BTreeMap<&'static str, u64>| {
            let line = |(name, bytes): (&&str, &u64)| format!("  {bytes:>16}  {name}\n");
            format!("{title}\n{}", kinds.iter().map(line).collect::<String>())
        };
        let neither: u64 = self.gaps(device_bytes).iter().map(|gap| gap.end - gap.start).sum();
        format!(
            "{}{}neither\n  {neither:>16}  of {device_bytes} bytes\n",
            lines("bytes compared with a checksum", &self.summed),
            lines("bytes that hold nothing", &self.unused),
        )
    }
}

/// One range as JSON.
pub(crate) fn range_as_json(range: &Range<u64>, covered: RangeCoverage) -> Value {
    let (state, what) = match covered {
        RangeCoverage::Summed(what) => ("summed", summed_name(what)),
        RangeCoverage::Unused(why) => ("unused", unused_name(why)),
    };
    json!({ "coverage": { "from": range.start, "to": range.end, "state": state, "what": what } })
}

fn summed_name(what: SummedData) -> &'static str {
    match what {
        SummedData::Superblock { .. } => "superblock",
        SummedData::Checkpoint => "checkpoint",
        SummedData::Record { .. } => "journal record",
        SummedData::Object(_) => "object",
        SummedData::Sums(_) => "sums of an object",
        SummedData::Frame(_) => "frame of a stream",
        _ => "other",
    }
}

fn unused_name(why: UnusedSpace) -> &'static str {
    match why {
        UnusedSpace::Free => "free",
        UnusedSpace::Waiting => "freed, not yet reusable",
        UnusedSpace::Journal => "journal without a record",
        UnusedSpace::Stream => "stream behind its last frame",
        UnusedSpace::Padding => "behind a superblock",
        UnusedSpace::BehindEnd => "behind the end of the store",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_do_not_depend_on_the_order_of_the_ranges() {
        let mut coverage = CoverageReport::default();
        for range in [30..40, 0..10, 35..50, 10..20, 60..61, 0..5] {
            coverage.add(&range, RangeCoverage::Unused(UnusedSpace::Free));
        }
        assert_eq!(coverage.gaps(70), [20..30, 50..60, 61..70]);
        assert_eq!(coverage.known.len(), 3);
        coverage.add(&(20..60), RangeCoverage::Summed(SummedData::Checkpoint));
        assert_eq!(coverage.gaps(61), []);
    }
}
