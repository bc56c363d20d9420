//! Output of the simulator: formulas and simulation side by side, as a table or as JSON.

use super::{Arguments, Found, closed_form::DeathRates};
use serde_json::json;

pub(super) fn print(arguments: &Arguments, found: &Found) {
    let dead = found.dead_volumes(arguments);
    let sum: f64 = dead.iter().sum();
    let runs = f64::from(arguments.runs);
    let copied_after_s = (found.copied > 0).then(|| found.copied_after_s / found.copied as f64);
    let formulas = arguments.formulas();
    if arguments.json {
        let of = |which: &DeathRates| which.json(arguments.volume_seconds());
        let value = json!({
            "servers": arguments.servers, "volumes": arguments.volumes, "years": arguments.years,
            "groups": arguments.groups, "replicas": arguments.replicas, "runs": arguments.runs, "seed": arguments.seed,
            "transient_rate": arguments.transient_rate, "permanent_rate": arguments.permanent_rate,
            "transient_time_s": arguments.transient_time, "permanent_time_s": arguments.permanent_time,
            "failures_a_run": found.failures as f64 / runs, "coincidences_a_run": found.coincidences as f64 / runs,
            "dead_groups": found.dead_groups.iter().sum::<u64>(), "copied_after_s": copied_after_s,
            "dead_volumes": {"by_permanent_failures": dead, "sum": sum},
            "paper": formulas.as_ref().map(|(paper, _)| of(paper)),
            "constant_times": formulas.as_ref().map(|(_, exact)| of(exact)),
        });
        println!("{value}");
        return;
    }
    println!(
        "{} servers, {} volumes in {} groups, {} years, {} runs: {:.0} failures a run",
        arguments.servers,
        arguments.volumes,
        arguments.groups,
        arguments.years,
        arguments.runs,
        found.failures as f64 / runs
    );
    println!("lost volumes a run       paper   constant times   simulated");
    let volume_seconds = arguments.volume_seconds();
    let columns = formulas.map(|both| [both.0, both.1].map(|rates| (rates, volume_seconds)));
    let line = |name: String, at: Option<usize>, simulated: f64| {
        let [paper, exact] = match &columns {
            None => ["-".to_owned(), "-".to_owned()],
            Some(both) => both.map(|(rates, seconds)| {
                let rate = at.map_or_else(|| rates.sum(), |at| rates.by_permanent[at]);
                format!("{:.3}", rate * seconds)
            }),
        };
        println!("{name:20} {paper:>9} {exact:>16} {simulated:>11.3}");
    };
    for (permanent, &simulated) in dead.iter().enumerate() {
        let transient = dead.len() - 1 - permanent;
        line(format!("{transient} TF / {permanent} PF"), Some(permanent), simulated);
    }
    line("sum".to_owned(), None, sum);
    println!(
        "{} groups were lost in all runs; {:.6} % of the volumes a run",
        found.dead_groups.iter().sum::<u64>(),
        sum * 100.0 / arguments.volumes as f64
    );
    if let Some(seconds) = copied_after_s {
        println!("new replicas were in sync {seconds:.0} s after a permanent failure, on average");
    }
}
