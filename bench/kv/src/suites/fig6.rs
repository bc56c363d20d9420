//! Gets per second by filter bits per key.
//!
//! Paper: elasticbf §4.2, Figure 6: elastic filters of 4 bits are as good as LevelDB's with 8, and gain 10 %
//! at 8. Copal's files hold every unit, so one load serves all bits; the peers are loaded once for each. The
//! counterparts of the paper's pair are `copal-bloom-paper`, with its units and rule, and
//! `copal-bloom-fixed`, without both, in one engine.

use super::{compare_with_peers, contestants, name_the_fallen, ratio_row};
use crate::{
    keys::Skew,
    protocol::Request,
    suite_runner::{Entrant, Scale, SuiteRunner},
};
use anyhow::Result;
use clap::Args;
use std::{collections::HashMap, path::Path};

#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    scale: Scale,
    /// Bits per key
    #[arg(long, value_delimiter = ',', default_values_t = [2, 4, 8])]
    bits: Vec<u32>,
    /// Percent of the data as memory
    #[arg(long, default_value_t = 4.0)]
    cap: f64,
}

const NAMES: [&str; 8] = [
    "copal",
    "copal-ribbon-classes",
    "copal-bloom-paper",
    "copal-bloom-fixed",
    "leveldb",
    "rocksdb",
    "rocksdb-tuned",
    "fjall",
];

/// Figures of the paper's text: ElasticBF's Gets/s over LevelDB's. The lines themselves are a picture.
const PAPER: [(&str, f64); 3] = [
    ("ElasticBF / LevelDB, Gets/s, any bits: more than", 1.0),
    ("ElasticBF at 4 bits / LevelDB at 8 bits, Gets/s: similar", 1.0),
    ("ElasticBF / LevelDB, Gets/s, 8 bits", 1.1),
];

pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    let mut runner = SuiteRunner::new(root, "elasticbf-fig6", &options.scale)?;
    for (what, value) in PAPER {
        runner.report.fact(format!("paper: {what}"), value, "x");
    }
    let names = runner.chosen(&NAMES)?;
    let mut at_four = HashMap::new();
    for &bits in &options.bits {
        // Bloom units have 4 bits. A rule may give one to every second partition; a fixed number cannot.
        let possible = |name: &&str| *name != "copal-bloom-fixed" || bits % 4 == 0;
        let names: Vec<&str> = names.iter().copied().filter(possible).collect();
        let mut entrants = contestants(&mut runner, &names, f64::from(bits), options.cap)?;
        runner.describe(&entrants);
        for skew in [Skew::Uniform, Skew::Zipf(0.99)] {
            let gets = |round: usize| Request::Gets {
                keys: runner.scale.keys(),
                skew,
                missing: 0.5,
                ops: 0,
                seconds: runner.scale.slice_seconds(),
                threads: 1,
                seed: round as u64 + 1,
            };
            runner.rounds(&mut entrants, 1, |round| gets(round + 100))?;
            runner.await_merges(&mut entrants)?;
            runner.rounds(&mut entrants, runner.scale.rounds, gets)?;
            let label = format!("{bits} bits, {}", skew.name());
            for entrant in &entrants {
                if let Some(speed) = entrant.per_second() {
                    runner.report.fact(format!("{label}: {}", entrant.name), speed, "Gets/s");
                }
                if let Some(reads) = entrant.per_op(|one| one.traffic.reads as f64) {
                    runner.report.detail(format!("{label}: {}: reads per Get", entrant.name), reads, "");
                }
            }
            compare_with_peers(&mut runner.report, &label, &entrants, Entrant::per_second);
            name_the_fallen(&mut runner.report, &label, &entrants);
            let gets_per_read = |entrant: &Entrant| {
                let reads = entrant.per_op(|one| one.traffic.reads as f64);
                reads.filter(|&reads| reads > 0.0).map(|reads| 1.0 / reads)
            };
            ratio_row(
                &mut runner.report,
                &format!("{label}: Gets per read"),
                &entrants,
                ("copal-ribbon-classes", "copal-bloom-fixed"),
                gets_per_read,
                1.0,
            );
            as_in_the_paper(&mut runner, &entrants, (bits, skew), &mut at_four);
        }
        for entrant in entrants {
            entrant.close()?;
        }
    }
    runner.finish()
}

/// Compares the paper's elastic filters and copal's with fixed ones, as the paper does. `at_four`: Gets/s at
/// 4 bits, by engine and skew.
fn as_in_the_paper(
    runner: &mut SuiteRunner<'_>,
    entrants: &[Entrant],
    (bits, skew): (u32, Skew),
    at_four: &mut HashMap<(&'static str, String), f64>,
) {
    let fixed = super::find(entrants, "copal-bloom-fixed").and_then(Entrant::per_second);
    for name in ["copal-bloom-paper", "copal-ribbon-classes"] {
        let Some(ours) = super::find(entrants, name).and_then(Entrant::per_second) else {
            continue;
        };
        if bits == 4 {
            at_four.insert((name, skew.name()), ours);
        }
        let Some(fixed) = fixed else { continue };
        runner.report.at_least(
            format!("{bits} bits, {}: {name} / copal-bloom-fixed", skew.name()),
            ours / fixed,
            "x",
            if bits == 8 { PAPER[2].1 } else { PAPER[0].1 },
        );
        if let (8, Some(four)) = (bits, at_four.get(&(name, skew.name()))) {
            let label = format!("{}: {name} at 4 bits / copal-bloom-fixed at 8 bits", skew.name());
            runner.report.at_least(label, four / fixed, "x", PAPER[1].1);
        }
    }
}
