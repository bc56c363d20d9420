//! Plans of memory over synthetic and recorded Gets: today's shares, single changes, and the market of
//! `copal-market`.
//!
//! Design: docs/design/kv.md#market
//! The pools and prices are those of `copal-market`, the columns those of `copal-filter`.

mod entrant;
mod gate;
mod optimum;
mod player;
mod recorded;
mod report;
mod store;
#[cfg(test)]
mod tests;
mod traces;

use anyhow::{Result, ensure};
use clap::Args;
use entrant::Entrant;
use player::{Player, Reads};
use report::Report;
use std::path::PathBuf;
use traces::{Gets, Trace, WALK};

/// Arguments of `copal-sim market`.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  copal-sim market
  copal-sim market --only zipf --plans market,today
  copal-sim market --trace backup.gets --budget-mib 16 --row-bytes 60")]
pub(crate) struct MarketArguments {
    /// Only loads whose name contains this
    #[arg(long, default_value = "")]
    only: String,
    /// Only these plans; the gate needs `market`, `rows only` and `blocks only`
    #[arg(long, value_delimiter = ',')]
    plans: Vec<String>,
    /// Play these recorded Gets (`Store::record_gets`, `copal --record-gets`) instead of synthetic ones
    #[arg(long, conflicts_with = "only")]
    trace: Vec<PathBuf>,
    /// Budget of recorded Gets, in MiB
    #[arg(long, default_value_t = 8)]
    budget_mib: u64,
    /// Bytes of each key and value of recorded Gets
    #[arg(long, default_value_t = 116)]
    row_bytes: u64,
    /// Parts of the Gets of each phase, in percent: fewer are faster, and less warm
    #[arg(long, default_value_t = 100)]
    percent: u64,
    /// Seed of all random numbers
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON instead of tables
    #[arg(long)]
    json: bool,
    /// End with an error unless the gate holds
    #[arg(long)]
    gate: bool,
}

/// Reads of one plan in each phase of a load.
struct Played {
    plan: Entrant,
    phases: Vec<Reads>,
    /// Shares of the pools at the end of each phase.
    shares: Vec<[f64; 4]>,
}

/// One load under all plans.
struct Compared {
    trace: Trace,
    /// Reads per Get of the best fixed content, by phase.
    optimum: Vec<f64>,
    played: Vec<Played>,
}

/// Runs the simulation and prints the result.
pub(crate) fn run(arguments: &MarketArguments) -> Result<()> {
    ensure!((1..=1000).contains(&arguments.percent), "--percent lies between 1 and 1000");
    let chosen: Vec<Entrant> = entrant::ALL
        .into_iter()
        .filter(|plan| arguments.plans.is_empty() || arguments.plans.iter().any(|name| name == plan.name))
        .collect();
    ensure!(
        !chosen.is_empty(),
        "no plan has such a name; there are {}",
        entrant::ALL.map(|plan| plan.name).join(", ")
    );
    let budget = arguments.budget_mib << 20;
    let mut traces = match arguments.trace.is_empty() {
        true => traces::all(),
        false => arguments
            .trace
            .iter()
            .map(|path| recorded::read(path, budget, arguments.row_bytes))
            .collect::<Result<_>>()?,
    };
    traces.retain(|trace| trace.name.contains(&arguments.only));
    ensure!(!traces.is_empty(), "no load has such a name");
    let compared = traces
        .into_iter()
        .map(|mut trace| {
            for phase in &mut trace.phases {
                phase.gets = (phase.gets * arguments.percent / 100).max(1);
            }
            compare(trace, &chosen, arguments.seed)
        })
        .collect();
    let report = Report { compared };
    let failures = gate::failures(&report.compared);
    match arguments.json {
        true => println!("{:#}", report.json(arguments.seed, &failures)),
        false => print!("{}", report.text(&failures)),
    }
    ensure!(!arguments.gate || failures.is_empty(), "the gate does not hold");
    Ok(())
}

fn compare(trace: Trace, plans: &[Entrant], seed: u64) -> Compared {
    let optimum =
        trace.phases.iter().map(|phase| optimum::reads_per_get(&trace, phase, trace.budget)).collect();
    let played = plans.iter().map(|plan| play(&trace, plan, seed)).collect();
    Compared { optimum, played, trace }
}

fn play(trace: &Trace, plan: &Entrant, seed: u64) -> Played {
    let mut player = Player::new(trace, plan, seed);
    let mut played = Played { plan: *plan, phases: Vec::new(), shares: Vec::new() };
    let mut before = player.reads();
    let mut total = 0;
    for (number, phase) in trace.phases.iter().enumerate() {
        let mut gets = Gets::new(trace, phase, seed.wrapping_mul(1 << 20) + number as u64);
        let mut done = 0;
        while done < phase.gets {
            let beside = trace.beside;
            if beside.merge_every > 0 && total % beside.merge_every == beside.merge_every / 2 {
                player.merge();
            }
            let key = gets.next();
            player.get(key);
            (done, total) = (done + 1, total + 1);
            if beside.walk_every > 0 && total % beside.walk_every == 0 {
                let from = key.id;
                for step in 1..=WALK {
                    player.get(store::Key { id: (from + step) % trace.store.rows, is_absent: false });
                }
            }
        }
        let now = player.reads();
        played.phases.push(now.minus(&before));
        played.shares.push(player.shares());
        before = now;
    }
    played
}
