//! Time to load the base set with fixed and with elastic filters.
//!
//! Paper: elasticbf §4.3, Figure 7: 4.823 and 4.818 MB/s, .1 % apart. Ours may cost 1 % (T10).
//! Loads alternate. Processor time is reported too, since wall time on a shared disk varies by more than 1 %.

use crate::{
    protocol::Safety,
    suite_runner::{LoadFacts, Role, Scale, SuiteRunner},
};
use anyhow::Result;
use clap::Args;
use copal_bench_harness::report::median;
use std::{collections::HashMap, fs, path::Path};

#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    scale: Scale,
    /// Bits per key
    #[arg(long, value_delimiter = ',', default_values_t = [4])]
    bits: Vec<u32>,
}

/// Engines with elastic and with fixed filters, by kind of unit.
const PAIRS: [(&str, &str); 2] =
    [("copal-ribbon-classes", "copal-ribbon-fixed"), ("copal-bloom-paper", "copal-bloom-fixed")];

/// The peers have no elastic filters: their loads are facts.
const NAMES: [&str; 8] = [
    "copal-ribbon-classes",
    "copal-ribbon-fixed",
    "copal-bloom-paper",
    "copal-bloom-fixed",
    "leveldb",
    "rocksdb",
    "rocksdb-tuned",
    "fjall",
];

const CAP: u64 = 512 << 20;

/// At 4 bits per key, 100 GB.
const PAPER: [(&str, f64); 2] = [("ElasticBF", 4.818), ("LevelDB", 4.823)];

pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    let mut runner = SuiteRunner::new(root, "elasticbf-fig7", &options.scale)?;
    for (name, speed) in PAPER {
        // Rounded to three digits, both would be equal.
        let label = format!("paper: {name}: load ({speed} MB/s)");
        runner.report.fact(label, speed * 1000.0, "kB/s");
    }
    let [(_, elastic), (_, fixed)] = PAPER;
    runner.report.fact("paper: time to load, ElasticBF / LevelDB", fixed / elastic, "x");
    let names = runner.chosen(&NAMES)?;
    for &bits in &options.bits {
        // Bloom units have 4 bits.
        let possible = |name: &&str| !name.starts_with("copal-bloom") || bits % 4 == 0;
        let names: Vec<&str> = names.iter().copied().filter(possible).collect();
        let mut loads: HashMap<&str, Vec<LoadFacts>> = HashMap::new();
        for round in 0..runner.scale.rounds {
            for step in 0..names.len() {
                let name = names[(round + step) % names.len()];
                let role = Role { store: format!("fig7-{name}"), ..runner.loading_role(f64::from(bits)) };
                let spec = runner.spec(name, &role)?;
                if spec.directory.exists() {
                    fs::remove_dir_all(&spec.directory)?;
                }
                let facts = runner.load(&spec, CAP, Safety::Bulk)?;
                loads.entry(name).or_default().push(facts);
                fs::remove_dir_all(&spec.directory)?;
            }
        }
        report(&mut runner, bits, &names, &loads);
    }
    runner.finish()
}

fn report(runner: &mut SuiteRunner<'_>, bits: u32, names: &[&str], loads: &HashMap<&str, Vec<LoadFacts>>) {
    let of =
        |name: &str, figure: fn(&LoadFacts) -> f64| median(loads.get(name)?.iter().map(figure).collect());
    let seconds: fn(&LoadFacts) -> f64 = |facts| facts.load_seconds + facts.merge_seconds;
    let cpu: fn(&LoadFacts) -> f64 = |facts| facts.cpu_seconds;
    for &name in names {
        let label = format!("{bits} bits: {name}");
        if let Some(speed) = of(name, LoadFacts::megabytes_per_second_merged) {
            runner.report.fact(format!("{label}: load"), speed, "MB/s");
        }
        if let Some(cpu) = of(name, cpu) {
            runner.report.detail(format!("{label}: processor time"), cpu, "s");
        }
    }
    for (elastic, fixed) in PAIRS {
        let ratio = |figure| Some(of(elastic, figure)? / of(fixed, figure)?);
        if let Some(ratio) = ratio(seconds) {
            let label = format!("T10 {bits} bits: time to load, {elastic} / {fixed}");
            runner.report.at_most(label, ratio, "x", 1.01);
        }
        if let Some(ratio) = ratio(cpu) {
            let label = format!("{bits} bits: processor time to load, {elastic} / {fixed}");
            runner.report.fact(label, ratio, "x");
        }
    }
}
