//! Filter units and adjusting rules over the shape of an LSM tree.
//!
//! Paper: elasticbf §4.1 (half of the Gets missing, uniform and zipf), §3.2, §3.3 (its rule). The rules are
//! those of `copal-filter`. With `--real-filters` the filters are real too, so their rates are not assumed.

mod access;
mod filters;
pub(crate) mod key;
mod merge;
mod play;
mod printed;
pub(crate) mod random;
mod report;
mod statics;
pub(crate) mod table1;
#[cfg(test)]
mod tests;
pub(crate) mod trace;
mod tree;

use access::{Access, Gets};
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use copal_filter::{
    Kind,
    rules::{Classes, ClassesOptions, LifeTime, NewHeat, PaperMq, PaperMqOptions, Rule, RuleKind},
};
use key::Key;
use merge::Inheritance;
use play::{Driving, Player};
use report::{Moving, Report, Static};
use std::{
    fs::File,
    io::{BufReader, BufWriter},
    path::PathBuf,
};
use tree::{Runs, Tree};

/// Arguments of `copal-sim rules`. The defaults are those of the design's figures, except for the lifeTime,
/// which is the paper's.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// Kinds of units: ribbon, bloom
    #[arg(long, value_delimiter = ',', default_value = "ribbon,bloom", value_parser = kind)]
    units: Vec<Kind>,
    /// Rules: fixed, fixed:N, monkey, paper, classes
    #[arg(long, value_delimiter = ',', default_value = "fixed,monkey,paper,classes")]
    rules: Vec<RuleKind>,
    /// Distributions: uniform, zipf:SKEW
    #[arg(long, value_delimiter = ',', default_value = "uniform,zipf:0.99,zipf:1.10,zipf:1.20")]
    access: Vec<Access>,
    /// Filter bits in memory per key of the store
    #[arg(long, default_value_t = 4.0)]
    bits: f64,
    /// Share of the Gets whose key does not exist
    #[arg(long, default_value_t = 0.5)]
    missing: f64,
    /// Number of Gets; the hot set moves after half of them
    #[arg(long, default_value_t = 160_000)]
    gets: u64,
    /// Windows of each half that are counted apart; the report shows the last of each half
    #[arg(long, default_value_t = 4)]
    windows: u64,
    /// The tree: flushed:P, leveled:P, lazy:P (P partitions), or the partitions of each run, newest first
    #[arg(long, default_value = "flushed:1002")]
    tree: Runs,
    /// The tree of the static figures, which need no Gets; `none` leaves them out
    #[arg(long, default_value = "flushed:4948")]
    static_tree: String,
    /// Gets between two steps of a rule; the paper's rule acts at every Get
    #[arg(long, default_value_t = 64)]
    batch: u64,
    /// lifeTime of the paper's rule, in Gets per table: 0.4 in the paper, 1.0 in the design's figures
    #[arg(long, default_value_t = 0.4)]
    life_time: f64,
    /// Let new tables of the paper's rule inherit the frequency of the tables they were merged from
    #[arg(long)]
    paper_inherits: bool,
    /// Half-life of the class rule, in Gets per partition
    #[arg(long, default_value_t = 32.0)]
    half_life: f64,
    /// Least ratio of gain to loss at which the class rule acts
    #[arg(long, default_value_t = 2.0)]
    gain_over_loss: f64,
    /// Least saved reads per half-life at which the class rule acts
    #[arg(long, default_value_t = 1.0)]
    min_saved_reads: f64,
    /// Let the class rule count true hits as heat too
    #[arg(long)]
    count_hits: bool,
    /// Gets between two merges of 16 partitions of the bottom run; 0: no merges
    #[arg(long, default_value_t = 0, conflicts_with = "real_filters")]
    merge_every: u64,
    /// State that outputs of merges inherit: nothing, heat, or heat and units
    #[arg(long, default_value = "units")]
    inherit: Inheritance,
    /// Keep the hot set where it is
    #[arg(long)]
    no_move: bool,
    /// Build and query every filter, instead of drawing from its rate
    #[arg(long)]
    real_filters: bool,
    /// Play these recorded Gets once, instead of synthetic ones
    #[arg(long, conflicts_with = "access")]
    trace: Option<PathBuf>,
    /// Seed of all random numbers
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON instead of tables
    #[arg(long)]
    json: bool,
}

/// Arguments of `copal-sim record`.
#[derive(Args, Debug)]
pub(crate) struct RecordArguments {
    /// Distribution: uniform, zipf:SKEW
    #[arg(long, default_value = "zipf:0.99")]
    access: Access,
    /// Share of the Gets whose key does not exist
    #[arg(long, default_value_t = 0.5)]
    missing: f64,
    /// Number of Gets; the hot set moves after half of them
    #[arg(long, default_value_t = 160_000)]
    gets: u64,
    /// Number of keys of the store
    #[arg(long, default_value_t = 2_000_000)]
    keys: u64,
    /// Seed of all random numbers
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// File to write
    out: PathBuf,
}

fn kind(name: &str) -> Result<Kind> {
    Ok(match name {
        "ribbon" => Kind::Ribbon,
        "bloom" => Kind::Bloom,
        _ => bail!("no kind of units is called {name:?}; there are ribbon and bloom"),
    })
}

/// Runs the simulation and prints the result.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    ensure!(arguments.windows > 0 && arguments.batch > 0, "--windows and --batch are at least 1");
    ensure!((0.0..=1.0).contains(&arguments.missing), "--missing lies between 0 and 1");
    let report = Report { statics: statics(arguments)?, moving: moving(arguments)? };
    if arguments.json {
        println!("{:#}", report.json(arguments));
    } else {
        print!("{}", report.text());
    }
    Ok(())
}

/// Writes a synthetic trace, for use without a recorded one (`Store::record_gets` of the engine).
pub(crate) fn record(arguments: &RecordArguments) -> Result<()> {
    ensure!(arguments.keys > 0, "--keys must be above 0");
    let file =
        File::create(&arguments.out).with_context(|| format!("creating {}", arguments.out.display()))?;
    let mut writer = trace::Writer::new(BufWriter::new(file), arguments.keys)?;
    let mut gets = Gets::new(arguments.access, arguments.keys, arguments.missing, arguments.seed);
    for i in 0..arguments.gets {
        if i == arguments.gets / 2 {
            gets.move_hot_set();
        }
        let key = gets.next();
        let bytes = [key.position.to_be_bytes(), key.home.map_or([0; 8], u64::to_be_bytes)].concat();
        writer.get(&bytes, key.home.is_some())?;
    }
    writer.finish()
}

fn budget_bytes(tree: &Tree, bits: f64) -> u64 {
    let keys: u64 = tree.shapes.iter().map(|shape| u64::from(shape.keys)).sum();
    (bits * keys as f64 / 8.0) as u64
}

fn statics(arguments: &Arguments) -> Result<Vec<Static>> {
    if arguments.static_tree == "none" || arguments.trace.is_some() {
        return Ok(Vec::new());
    }
    let runs: Runs = arguments.static_tree.parse()?;
    let trees: Vec<(Kind, Tree)> =
        arguments.units.iter().map(|&kind| (kind, Tree::modelled(&runs, kind))).collect();
    let mut rows = Vec::new();
    for &access in &arguments.access {
        let Some((_, first)) = trees.first() else { break };
        // The positions of keys do not depend on the kind of units.
        let heats = statics::heats(first, access, arguments.missing);
        for (kind, tree) in &trees {
            let budget = budget_bytes(tree, arguments.bits);
            // As many units as the bits pay for, rounded: a little less than a unit's bits pay for one.
            let bits_per_unit = f64::from(kind.unit_bytes(2021)) * 8.0 / 2021.0;
            let everywhere = (arguments.bits / bits_per_unit).round() as u8;
            rows.push(Static {
                kind: *kind,
                access,
                negative_probes: heats.iter().sum(),
                fixed_units: everywhere,
                fixed: statics::fixed(tree, &heats, everywhere),
                best: statics::best(tree, &heats, budget),
            });
        }
    }
    Ok(rows)
}

fn build(arguments: &Arguments, rule: RuleKind) -> Box<dyn Rule> {
    match rule {
        RuleKind::Paper => Box::new(PaperMq::new(PaperMqOptions {
            life_time: LifeTime::PerPartition(arguments.life_time),
            new_heat: if arguments.paper_inherits { NewHeat::Inherited } else { NewHeat::Zero },
            ..PaperMqOptions::default()
        })),
        RuleKind::Classes => Box::new(Classes::new(ClassesOptions {
            half_life_gets: arguments.half_life,
            gain_over_loss: arguments.gain_over_loss,
            min_saved_reads: arguments.min_saved_reads,
            count_hits: arguments.count_hits,
        })),
        other => other.build(),
    }
}

/// Plays the Gets in order; returns the reads of both halves.
fn halves(
    arguments: &Arguments,
    player: &mut Player,
    gets: u64,
    mut next: impl FnMut(bool) -> Option<Key>,
) -> Result<[Vec<play::Reads>; 2]> {
    let first = player.play(gets / 2, arguments.windows, || next(false))?;
    let second = player.play(gets - gets / 2, arguments.windows, || next(true))?;
    Ok([first, second])
}

fn moving(arguments: &Arguments) -> Result<Vec<Moving>> {
    let recorded = match &arguments.trace {
        None => None,
        Some(path) => {
            let file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
            Some(trace::read(BufReader::new(file)).with_context(|| format!("reading {}", path.display()))?)
        }
    };
    let runs = match &recorded {
        None => arguments.tree.clone(),
        Some(trace) => {
            arguments.tree.scaled(trace.store_keys.div_ceil(u64::from(copal_filter::KEYS_PER_PARTITION)))
        }
    };
    let mut rows = Vec::new();
    for &kind in &arguments.units {
        let tree = if arguments.real_filters {
            Tree::real(&runs, kind, recorded.as_ref().map_or(&[], |trace| &trace.found))?
        } else {
            Tree::modelled(&runs, kind)
        };
        let accesses = if recorded.is_some() {
            vec![None]
        } else {
            arguments.access.iter().copied().map(Some).collect()
        };
        for access in accesses {
            for &rule in &arguments.rules {
                let paper = rule == RuleKind::Paper;
                let driving = Driving {
                    budget_bytes: budget_bytes(&tree, arguments.bits),
                    batch: if paper { 1 } else { arguments.batch },
                    paper,
                    merge_every: arguments.merge_every,
                    inheritance: arguments.inherit,
                };
                let mut player = Player::new(tree.clone(), arguments.seed, build(arguments, rule), driving)?;
                let halves = match (&recorded, access) {
                    (Some(trace), _) => {
                        let mut gets = trace.gets.iter().copied();
                        halves(arguments, &mut player, trace.gets.len() as u64, |_| gets.next())?
                    }
                    (None, Some(access)) => {
                        let mut gets = Gets::new(access, tree.keys, arguments.missing, arguments.seed);
                        let mut moved = arguments.no_move;
                        halves(arguments, &mut player, arguments.gets, |second| {
                            if second && !moved {
                                gets.move_hot_set();
                                moved = true;
                            }
                            Some(gets.next())
                        })?
                    }
                    (None, None) => continue,
                };
                rows.push(Moving { kind, rule, access, halves, units_by_run: player.units_by_run() });
            }
        }
    }
    Ok(rows)
}
