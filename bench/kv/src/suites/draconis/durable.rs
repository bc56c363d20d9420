//! Figures 7 and 8: throughput and compactions of durable writes.

use super::{
    ENGINES, Options, loads, name_of, notes,
    place::EnginePlace,
    workload::{KeyOrder, LoadResult, WriteLoad},
};
use crate::protocol::Kind;
use anyhow::Result;
use copal_bench_harness::{chart::BarChart, model_disk::ModelDisk, report::Report};
use std::{fs, path::Path};

const PAPER_7: &str = "\"the difference in throughput between the two write patterns is very small for both hardware\"; \
    \"250X more throughput running on the SSD than on the hard disk drive\" (3.2.3, figure 7).";
const PAPER_8: &str = "\"random writes still produce significantly more compactions\" (3.2.3, figure 8).";
/// Speeds of the two patterns are alike within this share.
const ALIKE: f64 = 0.25;

/// Runs both loads once on each engine and stores the two figures.
pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    let scratch = options.scratch(root);
    let mut reports = [(); 2].map(|()| Report::new(root, root));
    let place = EnginePlace::make(options.machine_disk()?, &scratch, 2 << 30, &mut reports[0])?;
    let writes = options.durable_writes;
    let mut throughput = BarChart::new("Durable writes a second", "writes a second");
    let mut compactions = BarChart::new("Compactions of durable writes", "compactions");
    for kind in ENGINES {
        let mut runs = Vec::new();
        for load in loads(writes, &[writes], true) {
            runs.push((load, load.run(kind, &place)?));
        }
        let [report7, report8] = &mut reports;
        speeds(report7, kind, &runs, &options.models(), &mut throughput)?;
        counts(report8, kind, &runs, &mut compactions);
    }
    drop(place);
    fs::remove_dir_all(&scratch)?;
    throughput.store(root, "draconis-fig7")?;
    compactions.store(root, "draconis-fig8")?;
    for (report, (name, paper)) in
        reports.iter_mut().zip([("draconis-fig7", PAPER_7), ("draconis-fig8", PAPER_8)])
    {
        notes(report, paper);
        report.finish(root, name)?;
    }
    Ok(())
}

type LoadRuns = [(WriteLoad, LoadResult)];

fn speeds(
    report: &mut Report,
    kind: Kind,
    runs: &LoadRuns,
    wanted: &[ModelDisk],
    chart: &mut BarChart,
) -> Result<()> {
    let name = name_of(kind);
    let mut models = Vec::new();
    for (load, result) in runs {
        let row = format!("{name}, {}", load.name());
        report.fact(format!("machine: {row}"), result.per_second().round(), "/s");
        chart.bar(format!("machine: {row}"), result.per_second());
        let Some((text, traced)) = &result.trace else { continue };
        let rate = |model: ModelDisk| {
            Ok::<_, anyhow::Error>(*traced as f64 / model.replay(&text.0)?.time.as_secs_f64())
        };
        let (ssd, hdd) = (rate(ModelDisk::Ssd)?, rate(ModelDisk::Hdd)?);
        for (model, rate) in [(ModelDisk::Ssd, ssd), (ModelDisk::Hdd, hdd)] {
            if !wanted.contains(&model) {
                continue;
            }
            report.fact(format!("{}: {row}", model.name()), rate, "/s");
            chart.bar(format!("{}: {row}", model.name()), rate);
        }
        if wanted.len() < 2 {
            continue;
        }
        let ratio = ssd / hdd;
        report.at_least(format!("models: {row}: SSD / HDD, at least"), ratio, "x", 100.0);
        report.at_most(format!("models: {row}: SSD / HDD, at most"), ratio, "x", 300.0);
        models.push((ssd, hdd));
    }
    if let [in_order, skewed] = &models[..] {
        let row = format!("{name}, in key order / skewed");
        report.within(format!("SSD model: {row}"), in_order.0 / skewed.0, "x", 1.0, ALIKE);
        report.within(format!("HDD model: {row}"), in_order.1 / skewed.1, "x", 1.0, ALIKE);
    }
    Ok(())
}

fn counts(report: &mut Report, kind: Kind, runs: &LoadRuns, chart: &mut BarChart) {
    let name = name_of(kind);
    let mut in_order = 0.0;
    for (load, result) in runs {
        let row = format!("{name}, {}: compactions", load.name());
        chart.bar(format!("{name}, {}", load.name()), result.compactions);
        report.detail(format!("{name}, {}: tables from memory", load.name()), result.tables, "");
        match (kind, load.order) {
            (_, KeyOrder::Ascending) => {
                in_order = result.compactions;
                report.fact(row, in_order, "");
            }
            (Kind::Leveldb, _) => report.at_least(row, result.compactions, "", in_order + 1.0),
            _ => report.fact(row, result.compactions, ""),
        }
    }
}
