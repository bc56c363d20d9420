//! Output of the simulator: the paper's tables 1 and 2 beside the simulated figures, or JSON.

use super::outcome::Outcome;
use super::{Arguments, Found};
use serde_json::json;

/// The paper's figures of a scheme.
struct Printed {
    scheme: &'static str,
    memory_mb: &'static str,
    local_io_gb: &'static str,
    storage_gb: &'static str,
    network_gb: &'static str,
    span_h: &'static str,
    per_vm_h: &'static str,
}

const PAPER: [Printed; 3] = [
    Printed {
        scheme: "dirty-bit",
        memory_mb: "<10",
        local_io_gb: "220",
        storage_gb: "22000",
        network_gb: "22000",
        span_h: "1.25",
        per_vm_h: "0.05",
    },
    Printed {
        scheme: "synchronous",
        memory_mb: "40",
        local_io_gb: "453",
        storage_gb: "4840",
        network_gb: "5500",
        span_h: "50.40",
        per_vm_h: "2.75 even, 50.40 skewed",
    },
    Printed {
        scheme: "collaborative",
        memory_mb: "90",
        local_io_gb: "491",
        storage_gb: "4840",
        network_gb: "5500",
        span_h: "2.36",
        per_vm_h: "0.23",
    },
];

pub(super) fn print(arguments: &Arguments, found: &Found) {
    if arguments.json {
        let value = json!({
            "hosts": arguments.hosts, "vms": arguments.vms, "skew": found.fleet.skew(), "seed": arguments.seed,
            "scale": arguments.scale, "days": arguments.days, "rounds": arguments.rounds,
            "slow": arguments.slow, "slowdown": arguments.slowdown,
            "dirty_gb": found.fleet.dirty_bytes() / 1e9,
            "schemes": found.outcomes.iter().map(Outcome::json).collect::<Vec<_>>(),
        });
        println!("{value}");
        return;
    }
    println!(
        "{} hosts, {} VMs, the largest {:.1} times the average, {:.0} GB in dirty segments",
        arguments.hosts,
        arguments.vms,
        found.fleet.skew(),
        found.fleet.dirty_bytes() / 1e9
    );
    println!(
        "{:54} {:>7} {:>8} {:>8} {:>8} {:>8} {:>7}  per VM h",
        "", "MB", "I/O GB", "stored", "network", "messages", "span h"
    );
    for outcome in &found.outcomes {
        if let Some(paper) = PAPER.iter().find(|paper| paper.scheme == outcome.scheme) {
            println!(
                "{:54} {:>7} {:>8} {:>8} {:>8} {:>8} {:>7}  {}",
                format!("{}, the paper", paper.scheme),
                paper.memory_mb,
                paper.local_io_gb,
                paper.storage_gb,
                paper.network_gb,
                "",
                paper.span_h,
                paper.per_vm_h
            );
        }
        let memory =
            outcome.memory_bytes.map_or_else(|| "-".to_owned(), |bytes| format!("{:.1}", bytes / 1e6));
        println!(
            "{:54} {:>7} {:>8.1} {:>8.0} {:>8.0} {:>8.2} {:>7.2}  {:.3}",
            outcome.scheme,
            memory,
            outcome.local_io_gb(),
            outcome.storage_gb(),
            outcome.network_gb(),
            outcome.messages_gb(),
            outcome.span_h(),
            outcome.per_vm_h()
        );
        if outcome.bytes.given_up > 0.0 {
            let given_up = outcome.given_up_gb();
            println!("{:54} {given_up:.1} GB were given up at the end for chunks that became popular", "");
        }
        if outcome.chunks.unresolved > 0 {
            let share = 100.0 * outcome.chunks.unresolved as f64 / outcome.chunks.all as f64;
            println!("{:54} {share:.3} % of the chunks were stored without an answer", "");
        }
    }
    if arguments.slow > 0 {
        println!("The other hosts end after:");
        for outcome in &found.outcomes {
            println!("{:54} {:>7.2} h", outcome.scheme, outcome.healthy_span_h());
        }
    }
}
