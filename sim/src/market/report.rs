//! Tables and JSON of a comparison.

use super::Compared;
use serde_json::{Value, json};
use std::fmt::Write;

/// See the module.
pub(super) struct Report {
    pub(super) compared: Vec<Compared>,
}

impl Report {
    pub(super) fn text(&self, failures: &[String]) -> String {
        let mut text = String::new();
        for one in &self.compared {
            let _ = writeln!(text, "{} ({} MiB)", one.trace.name, one.trace.budget >> 20);
            let _ = write!(text, "  {:26}", "reads per Get by phase");
            for phase in 0..one.trace.phases.len() {
                let _ = write!(text, "{:>9}", phase + 1);
            }
            let _ = writeln!(text, "{:>9}{:>8}{:>22}", "bytes", "turns", "rows/blocks/index/cols");
            for played in &one.played {
                let _ = write!(text, "  {:26}", played.plan.name);
                for reads in &played.phases {
                    let _ = write!(text, "{:>9.4}", reads.reads as f64 / reads.gets as f64);
                }
                let gets: u64 = played.phases.iter().map(|reads| reads.gets).sum();
                let bytes: u64 = played.phases.iter().map(|reads| reads.bytes).sum();
                let grown: u64 = played.phases.iter().map(|reads| reads.grown).sum();
                let _ = write!(text, "{:>9.0}", bytes as f64 / gets as f64);
                let _ = write!(text, "{:>8.2}", grown as f64 / one.trace.budget as f64);
                let shares = played.shares.last().copied().unwrap_or_default();
                let _ =
                    writeln!(text, "{:>22}", shares.map(|share| format!("{:.0}", share * 100.0)).join("/"));
            }
            let _ = write!(text, "  {:26}", "best fixed content");
            for best in &one.optimum {
                let _ = write!(text, "{best:>9.4}");
            }
            let _ = writeln!(text, "\n");
        }
        for failure in failures {
            let _ = writeln!(text, "gate: {failure}");
        }
        if failures.is_empty() {
            let _ = writeln!(text, "gate: holds");
        }
        text
    }

    pub(super) fn json(&self, seed: u64, failures: &[String]) -> Value {
        let loads = self.compared.iter().map(|one| {
            let plans = one.played.iter().map(|played| {
                let phases = played.phases.iter().zip(&played.shares).map(|(reads, shares)| {
                    json!({
                        "gets": reads.gets,
                        "reads": reads.reads,
                        "bytes": reads.bytes,
                        "false_positives": reads.false_positives,
                        "filter_pages": reads.filter_pages,
                        "index_pages": reads.index_pages,
                        "turns": reads.grown as f64 / one.trace.budget as f64,
                        "shares": shares,
                    })
                });
                json!({ "plan": played.plan.name, "phases": phases.collect::<Vec<_>>() })
            });
            json!({
                "load": one.trace.name,
                "budget": one.trace.budget,
                "optimum_reads_per_get": one.optimum,
                "plans": plans.collect::<Vec<_>>(),
            })
        });
        json!({ "v": 1, "seed": seed, "loads": loads.collect::<Vec<_>>(), "gate_failures": failures })
    }
}
