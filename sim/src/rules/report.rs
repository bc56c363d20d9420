//! Results as tables of text and as JSON.

use super::{Arguments, access::Access, play::Reads, printed};
use copal_filter::{Kind, rules::RuleKind};
use serde_json::{Value, json};
use std::fmt::Write;

/// Best and equal units for known rates.
pub(super) struct Static {
    pub(super) kind: Kind,
    pub(super) access: Access,
    pub(super) negative_probes: f64,
    pub(super) fixed_units: u8,
    pub(super) fixed: f64,
    pub(super) best: f64,
}

/// One rule on one kind of units under one access.
pub(super) struct Moving {
    pub(super) kind: Kind,
    pub(super) rule: RuleKind,
    /// `None`: a recorded trace.
    pub(super) access: Option<Access>,
    /// Windows before and after the hot set moved.
    pub(super) halves: [Vec<Reads>; 2],
    pub(super) units_by_run: Vec<Vec<u64>>,
}

pub(super) struct Report {
    pub(super) statics: Vec<Static>,
    pub(super) moving: Vec<Moving>,
}

fn name(kind: Kind) -> &'static str {
    match kind {
        Kind::Ribbon => "ribbon",
        Kind::Bloom => "bloom",
    }
}

fn access_name(access: Option<Access>) -> String {
    access.map_or_else(|| "recorded".to_owned(), |access| access.to_string())
}

fn figure(figure: Option<f64>) -> String {
    figure.map_or_else(|| "-".to_owned(), |figure| format!("{figure:.3}"))
}

impl Moving {
    /// Last window before the move, first after it, last of all.
    fn three(&self) -> [Reads; 3] {
        let [before, after] = &self.halves;
        let pick = |reads: Option<&Reads>| reads.copied().unwrap_or_default();
        [pick(before.last()), pick(after.first()), pick(after.last())]
    }

    fn printed(&self) -> (Option<f64>, Option<f64>) {
        self.access.map_or((None, None), |access| printed::moving(self.rule, self.kind, access))
    }
}

/// A figure with its target.
struct Row {
    name: String,
    value: f64,
    target: f64,
    /// Whether the target is a lower bound.
    at_least: bool,
}

impl Row {
    fn ok(&self) -> bool {
        if self.at_least { self.value >= self.target } else { self.value <= self.target }
    }
}

impl Report {
    fn find(&self, kind: Kind, rule: RuleKind, access: Option<Access>) -> Option<Reads> {
        let found =
            self.moving.iter().find(|row| (row.kind, row.rule, row.access) == (kind, rule, access))?;
        Some(found.three()[2])
    }

    /// Targets of the design whose figures this run has; all for the last window.
    fn rows(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        for ours in self.moving.iter().filter(|row| (row.kind, row.rule) == (Kind::Ribbon, RuleKind::Classes))
        {
            let (reads, at) = (ours.three()[2], access_name(ours.access));
            let mut row = |name: &str, value: f64, target: f64, at_least: bool| {
                rows.push(Row { name: format!("{name}, {at}"), value, target, at_least });
            };
            match ours.access {
                Some(Access::Uniform) => row("extra I/O per Get", reads.extra_per_get(), 0.07, false),
                Some(Access::Zipf(0.99)) => row("extra I/O per Get", reads.extra_per_get(), 0.05, false),
                _ => {}
            }
            row("filter pages read per Get", reads.pages_per_get(), 0.005, false);
            if let Some(fixed) = self.find(Kind::Bloom, RuleKind::Fixed { units: u8::MAX }, ours.access) {
                row(
                    "all reads of fixed Bloom over ours",
                    fixed.total_per_get() / reads.total_per_get(),
                    2.2,
                    true,
                );
            }
            if let Some(paper) = self.find(Kind::Bloom, RuleKind::Paper, ours.access) {
                let ratio = paper.false_per_get() / reads.false_per_get();
                row("false reads of the paper's units and rule over ours", ratio, 3.0, true);
            }
            if let Some(paper) = self.find(Kind::Ribbon, RuleKind::Paper, ours.access) {
                let ratio = paper.extra_per_get() / reads.extra_per_get();
                row("extra I/O of the paper's rule on columns over ours", ratio, 1.3, true);
            }
        }
        rows
    }

    pub(super) fn text(&self) -> String {
        let mut out = String::new();
        self.write(&mut out);
        out
    }

    /// Writing to a string cannot fail.
    fn write(&self, out: &mut String) {
        if !self.statics.is_empty() {
            let _ = writeln!(out, "Extra I/O per Get when all rates are known, and the design's figures");
            let _ = writeln!(out, "units      access      probes   equal  printed    best  printed");
            for row in &self.statics {
                let _ = writeln!(
                    out,
                    "{:10} {:10} {:7.2} {:7.3} {:>8} {:7.3} {:>8}",
                    name(row.kind),
                    row.access.to_string(),
                    row.negative_probes,
                    row.fixed,
                    figure(printed::fixed(row.kind)),
                    row.best,
                    figure(printed::best(row.kind, row.access)),
                );
            }
            let _ = writeln!(out);
        }
        let _ = writeln!(out, "Reads per Get that a perfect filter would save: false reads, filter pages");
        let _ = writeln!(
            out,
            "units      rule      access       settled  pages printed |   moved  pages |     end  pages printed | all reads"
        );
        for row in &self.moving {
            let [settled, moved, end] = row.three();
            let printed = row.printed();
            let _ = writeln!(
                out,
                "{:10} {:9} {:10} {:9.4} {:6.4} {:>7} | {:7.4} {:6.4} | {:7.4} {:6.4} {:>7} | {:9.4}",
                name(row.kind),
                row.rule.to_string(),
                access_name(row.access),
                settled.false_per_get(),
                settled.pages_per_get(),
                figure(printed.0),
                moved.false_per_get(),
                moved.pages_per_get(),
                end.false_per_get(),
                end.pages_per_get(),
                figure(printed.1),
                end.total_per_get(),
            );
        }
        let rows = self.rows();
        if !rows.is_empty() {
            let _ = writeln!(out, "\nTargets, in the last window");
        }
        for row in rows {
            let (sign, ok) = (if row.at_least { ">=" } else { "<=" }, if row.ok() { "" } else { "  MISSED" });
            let _ = writeln!(out, "{:64} {:7.4} {sign} {}{ok}", row.name, row.value, row.target);
        }
    }

    pub(super) fn json(&self, arguments: &Arguments) -> Value {
        let statics: Vec<Value> = self
            .statics
            .iter()
            .map(|row| {
                json!({
                    "units": name(row.kind),
                    "access": row.access.to_string(),
                    "negative_probes_per_get": row.negative_probes,
                    "equal_units": row.fixed_units,
                    "equal_extra_io_per_get": row.fixed,
                    "best_extra_io_per_get": row.best,
                    "printed_equal": printed::fixed(row.kind),
                    "printed_best": printed::best(row.kind, row.access),
                })
            })
            .collect();
        let window = |reads: &Reads| {
            json!({
                "gets": reads.gets,
                "false_reads": reads.false_reads,
                "page_reads": reads.page_reads,
                "hits": reads.hits,
                "extra_io_per_get": reads.extra_per_get(),
            })
        };
        let moving: Vec<Value> = self
            .moving
            .iter()
            .map(|row| {
                json!({
                    "units": name(row.kind),
                    "rule": row.rule.to_string(),
                    "access": access_name(row.access),
                    "before": row.halves[0].iter().map(window).collect::<Vec<_>>(),
                    "after": row.halves[1].iter().map(window).collect::<Vec<_>>(),
                    "printed_settled": row.printed().0,
                    "printed_end": row.printed().1,
                    "partitions_by_run_and_units": row.units_by_run,
                })
            })
            .collect();
        json!({
            "tree": arguments.tree.0,
            "static_tree": arguments.static_tree,
            "bits_per_key": arguments.bits,
            "missing_share": arguments.missing,
            "batch_gets": arguments.batch,
            "seed": arguments.seed,
            "real_filters": arguments.real_filters,
            "life_time_gets_per_table": arguments.life_time,
            "half_life_gets_per_partition": arguments.half_life,
            "merge_every_gets": arguments.merge_every,
            "inherit": format!("{:?}", arguments.inherit).to_lowercase(),
            "static": statics,
            "moving": moving,
            "rows": self.rows().iter().map(|row| json!({
                "name": row.name,
                "value": row.value,
                "target": row.target,
                "at_least": row.at_least,
                "ok": row.ok(),
            })).collect::<Vec<_>>(),
        })
    }
}
