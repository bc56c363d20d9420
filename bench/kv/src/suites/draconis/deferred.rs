//! Figures 4, 5 and 6: throughput, tables from memory, and compactions of deferred writes, by key space.

use super::{
    ENGINES, ENTRY_BYTES, Options, loads, name_of, notes,
    place::EnginePlace,
    workload::{KeyOrder, LoadResult, WriteLoad},
};
use crate::protocol::Kind;
use anyhow::Result;
use copal_bench_harness::{chart::LineChart, model_disk::ModelDisk, report::Report};
use copal_device::emulated::ReplaySummary;
use std::{fs, path::Path};

const PAPER_4: &str = "\"in a more realistic skewed workload, LevelDB's write throughput drops by more than 4X\" (3.2.2, \
    figure 4).";
const PAPER_5: &str = "\"LevelDB creates the same number of level-0 SSTables regardless of the workload and hardware\" \
    (3.2.2, figure 5).";
const PAPER_6: &str = "\"The sequential workload creates zero LevelDB compaction as compared to over thirty thousands \
    compactions during the skewed random workload\" (3.2.2, figure 6).";

struct EngineRun {
    kind: Kind,
    load: WriteLoad,
    result: LoadResult,
    models: Vec<ModelRun>,
}

/// The recorded commands on a model.
struct ModelRun {
    model: ModelDisk,
    /// Writes a second that the disk and the processor allow.
    rate: f64,
    commands: ReplaySummary,
}

/// Runs all loads once and stores the three figures.
pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    let scratch = options.scratch(root);
    let mut reports = [(); 3].map(|()| Report::new(root, root));
    let writes = options.size_bytes() / ENTRY_BYTES;
    let size = options.size_bytes() * 3 + (1 << 30);
    let place = EnginePlace::make(options.machine_disk()?, &scratch, size, &mut reports[0])?;
    let mut runs = Vec::new();
    for load in loads(writes, &[writes / 16, writes / 4, writes], false) {
        for kind in ENGINES {
            let mut result = load.run(kind, &place)?;
            let models = on_models(&mut result, &options.models())?;
            tell(kind, &load, &result);
            runs.push(EngineRun { kind, load, result, models });
        }
    }
    drop(place);
    fs::remove_dir_all(&scratch)?;
    throughput(&mut reports[0], root, &runs)?;
    tables(&mut reports[1], root, &runs)?;
    compactions(&mut reports[2], root, &runs)?;
    let figures = [("draconis-fig4", PAPER_4), ("draconis-fig5", PAPER_5), ("draconis-fig6", PAPER_6)];
    for (report, (name, paper)) in reports.iter_mut().zip(figures) {
        notes(report, paper);
        report.finish(root, name)?;
    }
    Ok(())
}

#[expect(clippy::print_stdout, reason = "a load takes minutes")]
fn tell(kind: Kind, load: &WriteLoad, result: &LoadResult) {
    println!("{}, {}: {:.0} writes/s", name_of(kind), load.name(), result.per_second());
}

fn on_models(result: &mut LoadResult, models: &[ModelDisk]) -> Result<Vec<ModelRun>> {
    let Some((text, writes)) = result.trace.take() else { return Ok(Vec::new()) };
    models
        .iter()
        .map(|&model| {
            let commands = model.replay(&text.0)?;
            let rate = writes as f64 / commands.time.as_secs_f64().max(result.cpu_seconds);
            Ok(ModelRun { model, rate, commands })
        })
        .collect()
}

/// The runs of an engine: the one in key order, and the others by key space.
fn of_engine(runs: &[EngineRun], kind: Kind) -> (&EngineRun, Vec<(u64, &EngineRun)>) {
    let own = || runs.iter().filter(move |run| run.kind == kind);
    let ascending = own().find(|run| run.load.order == KeyOrder::Ascending);
    let skewed = own().filter_map(|run| match run.load.order {
        KeyOrder::Skewed { keys } => Some((keys, run)),
        KeyOrder::Ascending => None,
    });
    (ascending.unwrap_or(&runs[0]), skewed.collect())
}

fn throughput(report: &mut Report, root: &Path, runs: &[EngineRun]) -> Result<()> {
    let mut chart = LineChart::new("Deferred writes a second by key space", "keys", "writes a second");
    for kind in ENGINES {
        let name = name_of(kind);
        let (ascending, skewed) = of_engine(runs, kind);
        let rate = |run: &EngineRun, model: Option<ModelDisk>| match model {
            None => Some(run.result.per_second()),
            Some(model) => run.models.iter().find(|own| own.model == model).map(|own| own.rate),
        };
        for model in [None, Some(ModelDisk::Ssd), Some(ModelDisk::Hdd)] {
            let disk = model.map_or("machine", ModelDisk::name);
            let Some(in_order) = rate(ascending, model) else { continue };
            report.fact(format!("{disk}: {name}, {}", ascending.load.name()), in_order.round(), "/s");
            for (_, run) in &skewed {
                let Some(own) = rate(run, model) else { continue };
                report.fact(format!("{disk}: {name}, {}", run.load.name()), own.round(), "/s");
                let row =
                    format!("{disk}: {name}, in key order / {} (the paper: more than 4)", run.load.name());
                match kind {
                    // The ratio grows with the bytes written; the direction must hold.
                    Kind::Leveldb => report.at_least(row, in_order / own, "x", 1.0),
                    _ => report.fact(row, in_order / own, "x"),
                }
            }
            let points = |run: &dyn Fn(&EngineRun) -> Option<f64>| -> Vec<(f64, f64)> {
                skewed.iter().filter_map(|(keys, own)| Some((*keys as f64, run(own)?))).collect()
            };
            chart.series(format!("{name}, skewed, {disk}"), points(&|run| rate(run, model)));
            chart.series(format!("{name}, in key order, {disk}"), points(&|_| Some(in_order)));
        }
        for run in std::iter::once(ascending).chain(skewed.iter().map(|(_, run)| *run)) {
            let row = format!("machine: {name}, {}", run.load.name());
            report.detail(format!("{row}: processor seconds"), run.result.cpu_seconds, "s");
            report.detail(format!("{row}: seconds until no merge was due"), run.result.still_seconds, "s");
            for ModelRun { model, commands, .. } in &run.models {
                let row = format!("{}: {name}, {}", model.name(), run.load.name());
                report.detail(format!("{row}: seconds of the disk"), commands.time.as_secs_f64(), "s");
                report.detail(format!("{row}: read commands"), commands.reads as f64, "");
                report.detail(format!("{row}: bytes read"), commands.read_bytes as f64, "B");
                report.detail(format!("{row}: write commands"), commands.writes as f64, "");
                report.detail(format!("{row}: bytes written"), commands.write_bytes as f64, "B");
                report.detail(format!("{row}: flushes"), commands.flushes as f64, "");
                report.detail(format!("{row}: moves of the head"), commands.counters.seeks as f64, "");
            }
        }
    }
    chart.store(root, "draconis-fig4")
}

fn tables(report: &mut Report, root: &Path, runs: &[EngineRun]) -> Result<()> {
    let mut chart = LineChart::new("Tables written from memory, by key space", "keys", "tables");
    for kind in ENGINES {
        let name = name_of(kind);
        let (ascending, skewed) = of_engine(runs, kind);
        report.fact(format!("{name}, in key order: tables from memory"), ascending.result.tables, "");
        for (_, run) in &skewed {
            let row = format!("{name}, {}: tables from memory, by those in key order", run.load.name());
            let ratio = run.result.tables / ascending.result.tables.max(1.0);
            match kind {
                Kind::Leveldb => report.within(row, ratio, "x", 1.0, 0.1),
                _ => report.fact(row, ratio, "x"),
            }
        }
        let points = skewed.iter().map(|(keys, run)| (*keys as f64, run.result.tables));
        chart.series(format!("{name}, skewed"), points);
        chart.series(
            format!("{name}, in key order"),
            skewed.iter().map(|(keys, _)| (*keys as f64, ascending.result.tables)),
        );
    }
    chart.store(root, "draconis-fig5")
}

fn compactions(report: &mut Report, root: &Path, runs: &[EngineRun]) -> Result<()> {
    let mut chart = LineChart::new("Compactions of skewed writes, by key space", "keys", "compactions");
    for kind in ENGINES {
        let name = name_of(kind);
        let (ascending, skewed) = of_engine(runs, kind);
        let row = format!("{name}, in key order: compactions");
        match kind {
            Kind::Leveldb => report.exactly(row, ascending.result.compactions, "", 0.0),
            _ => report.fact(row, ascending.result.compactions, ""),
        }
        for (_, run) in &skewed {
            let row = format!("{name}, {}: compactions", run.load.name());
            match kind {
                Kind::Leveldb => report.at_least(row, run.result.compactions, "", 1.0),
                _ => report.fact(row, run.result.compactions, ""),
            }
            let row = format!("{name}, {}: bytes written by compactions", run.load.name());
            report.detail(row, run.result.merged_bytes, "B");
        }
        let points = skewed.iter().map(|(keys, run)| (*keys as f64, run.result.compactions));
        chart.series(name, points);
    }
    chart.store(root, "draconis-fig6")
}
