//! Time to load the base set with fixed and with elastic filters.
//!
//! Paper: elasticbf §4.3, Figure 7: 4.823 and 4.818 MB/s, .1 % apart. Ours may cost 1 % (T10).
//! Loads alternate; processor time stands beside wall time, which on a shared disk wanders by more than 1 %.

use super::BITS;
use crate::{
    lab::{Lab, LoadFacts, Role, Scale},
    protocol::Safety,
};
use anyhow::Result;
use clap::Args;
use std::{fs, path::Path};
use xtask::report::median;

#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    scale: Scale,
}

/// Elastic and fixed, by kind of unit.
const PAIRS: [(&str, &str); 2] = [
    ("copal-ribbon-classes", "copal-ribbon-fixed"),
    ("copal-bloom-paper", "copal-bloom-fixed"),
];

const CAP: u64 = 512 << 20;

/// At 4 bits per key, 100 GB.
const PAPER: [(&str, f64); 2] = [("ElasticBF", 4.818), ("LevelDB", 4.823)];

pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    let mut lab = Lab::new(root, "elasticbf-fig7", &options.scale)?;
    for (name, speed) in PAPER {
        lab.report.fact(format!("paper: {name}: load"), speed, "MB/s");
    }
    let [(_, elastic), (_, fixed)] = PAPER;
    lab.report
        .fact("paper: time to load, ElasticBF / LevelDB", fixed / elastic, "x");
    for (elastic, fixed) in PAIRS {
        let mut facts: [Vec<LoadFacts>; 2] = [Vec::new(), Vec::new()];
        for round in 0..lab.scale.rounds {
            for step in 0..2 {
                let which = (round + step) % 2;
                let name = [elastic, fixed][which];
                let role = Role {
                    store: format!("fig7-{name}"),
                    ..lab.loading_role(BITS)
                };
                let spec = lab.spec(name, &role)?;
                if spec.directory.exists() {
                    fs::remove_dir_all(&spec.directory)?;
                }
                facts[which].push(lab.load(&spec, CAP, Safety::Bulk)?);
                fs::remove_dir_all(&spec.directory)?;
            }
        }
        let of = |which: usize, figure: fn(&LoadFacts) -> f64| {
            median(facts[which].iter().map(figure).collect()).unwrap_or(0.0)
        };
        let seconds = |facts: &LoadFacts| facts.load_seconds + facts.settle_seconds;
        let cpu = |facts: &LoadFacts| facts.cpu_seconds;
        for (which, name) in [elastic, fixed].into_iter().enumerate() {
            lab.report.fact(
                format!("{name}: load"),
                of(which, LoadFacts::megabytes_per_second_settled),
                "MB/s",
            );
            lab.report
                .detail(format!("{name}: processor time"), of(which, cpu), "s");
        }
        lab.report.at_most(
            format!("T10: time to load, {elastic} / {fixed}"),
            of(0, seconds) / of(1, seconds),
            "x",
            1.01,
        );
        lab.report.fact(
            format!("processor time to load, {elastic} / {fixed}"),
            of(0, cpu) / of(1, cpu),
            "x",
        );
    }
    lab.finish()
}
