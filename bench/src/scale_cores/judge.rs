//! Rows of the report, and their targets.

use super::{
    backup_rows, cluster_rows, engine_rows,
    results::{Results, STAGE, counted},
    thread_times,
};
use copal_bench_harness::report::Report;

/// Cores of the targets, and of the runs that they are compared with.
const MANY: usize = 16;
const ONE: usize = 1;
/// Cores of the data server in its target: the clients need as many.
const SERVER_MANY: usize = 8;

/// Least speed on 16 cores, of that on one.
const BACKUP_SPEED: f64 = 8.0;
/// Greatest wall time of a first backup, of restic's.
const OF_RESTIC: f64 = 0.4;
/// Greatest share of a stage outside of the pools, in percent of all processor time.
const SERIAL_PERCENT: f64 = 4.0;
/// Least share of a stage that is printed; a smaller one is stored.
const SHOWN_PERCENT: f64 = 0.5;
const PEAK_MEGABYTES: f64 = 100.0;
/// Least speed of look-ups in memory by 16 threads, of one thread's.
const GETS_SPEED: f64 = 10.0;
/// Least gain of writes by 16 threads, of RocksDB's gain.
const OF_ROCKSDB: f64 = 0.8;
/// Least speed of small puts on 8 cores, of that on one.
const PUTS_SPEED: f64 = 4.0;
/// Greatest processor time of a put among many clients, of that of one client.
const PUT_COST: f64 = 1.1;

pub(super) fn judge(report: &mut Report, results: &Results) {
    for row in backup_rows::ROWS {
        for program in ["copal", "restic"] {
            backup_facts(report, results, row, program);
        }
        backup_targets(report, results, row);
        stages(report, results, row);
    }
    for row in super::ROWS.iter().filter(|row| row.starts_with("engine")) {
        engine(report, results, row);
    }
    for (row, _) in cluster_rows::SIZES {
        cluster(report, results, row);
    }
}

fn backup_facts(report: &mut Report, results: &Results, row: &str, program: &str) {
    for cores in results.cores(row, program) {
        let value = |name: &str| results.value(row, program, cores, name);
        let name = format!("{row}, {program}, {}", counted(cores, "core"));
        if let Some(wall) = value("wall") {
            report.fact(format!("{name}: wall"), wall, "s");
        }
        if let Some(cpu) = value("cpu per GiB") {
            report.fact(format!("{name}: processor time"), cpu, "s/GiB");
        }
        if let Some(speed) = speed(results, row, program, cores) {
            report.detail(format!("{name}: speed, of one core's"), speed, "x");
        }
        match value("peak MB") {
            Some(peak) if program == "copal" => {
                report.at_most(format!("{name}: peak memory"), peak, "MB", PEAK_MEGABYTES);
            }
            Some(peak) => report.fact(format!("{name}: peak memory"), peak, "MB"),
            None => {}
        }
    }
}

/// Speed of a backup row, of that on one core.
fn speed(results: &Results, row: &str, program: &str, cores: usize) -> Option<f64> {
    Some(results.value(row, program, ONE, "wall")? / results.value(row, program, cores, "wall")?)
}

fn backup_targets(report: &mut Report, results: &Results, row: &str) {
    if let Some(speed) = speed(results, row, "copal", MANY) {
        let name = format!("{row}, copal, {MANY} cores: speed, of one core's");
        match row {
            // The disk that is written bounds it.
            "restore" => report.fact(name, speed, "x"),
            _ => report.at_least(name, speed, "x", BACKUP_SPEED),
        }
    }
    for cores in results.cores(row, "restic") {
        let wall = |program| results.value(row, program, cores, "wall");
        if let (Some(ours), Some(theirs)) = (wall("copal"), wall("restic")) {
            let name = format!("{row}, {}: wall, of restic's", counted(cores, "core"));
            match (row, cores) {
                ("first-backup", MANY) => report.at_most(name, ours / theirs, "x", OF_RESTIC),
                _ => report.fact(name, ours / theirs, "x"),
            }
        }
    }
}

/// Shares of the stages, on the largest number of cores; a stage outside of the pools bounds the speed (Amdahl).
fn stages(report: &mut Report, results: &Results, row: &str) {
    for cores in results.cores(row, "copal") {
        let is_last = results.cores(row, "copal").last() == Some(&cores);
        let Some(all) = results.value(row, "copal", cores, "cpu").filter(|all| *all > 0.0) else { continue };
        let mut largest: f64 = 0.0;
        for stage in results.stages(row, "copal", cores) {
            let seconds = results.value(row, "copal", cores, &format!("{STAGE}{stage}")).unwrap_or(0.0);
            let percent = seconds / all * 100.0;
            let name = format!("{row}, {}: share of {stage}", counted(cores, "core"));
            let is_pool = thread_times::is_pool(&stage) || stage == thread_times::LOST;
            if !is_pool {
                largest = largest.max(seconds / all);
            }
            match (is_last, is_pool) {
                (false, _) => report.detail(name, percent, "%"),
                (true, false) if percent < SHOWN_PERCENT => report.detail(name, percent, "%"),
                (true, true) => report.fact(name, percent, "%"),
                (true, false) => report.at_most(name, percent, "%", SERIAL_PERCENT),
            }
        }
        if is_last && largest > 0.0 {
            let name =
                format!("{row}, {}: speed that its largest serial stage allows", counted(cores, "core"));
            report.fact(name, 1.0 / largest, "x");
        }
    }
}

fn engine(report: &mut Report, results: &Results, row: &str) {
    let gain = |engine: &str, cores: usize| {
        let speed = |cores| results.value(row, engine, cores, "per_second");
        Some(speed(cores)? / speed(ONE)?)
    };
    for engine in engine_rows::ENGINES {
        for cores in results.cores(row, engine) {
            let value = |name: &str| results.value(row, engine, cores, name).unwrap_or(0.0);
            let name = format!("{row}, {engine}, {}", counted(cores, "thread"));
            report.fact(name.clone(), value("per_second"), "/s");
            report.fact(format!("{name}: processor time of each"), value("cpu_us"), "us");
            report.detail(format!("{name}: p99"), value("p99_us"), "us");
            for detail in ["merges", "paced_seconds", "stalled_seconds"] {
                report.detail(format!("{name}: {detail}"), value(detail), "");
            }
            if cores > ONE
                && let Some(gain) = gain(engine, cores)
            {
                let name = format!("{name}: speed, of one thread's");
                if (row, engine, cores) == ("engine-gets", "copal", MANY) {
                    report.at_least(name, gain, "x", GETS_SPEED);
                } else {
                    report.fact(name, gain, "x");
                }
            }
        }
    }
    for cores in results.cores(row, "rocksdb").into_iter().filter(|cores| *cores > ONE) {
        if let (Some(ours), Some(theirs)) = (gain("copal", cores), gain("rocksdb", cores)) {
            let name = format!("{row}, {}: gain by threads, of RocksDB's", counted(cores, "thread"));
            if cores == MANY && ["engine-writes", "engine-mixed"].contains(&row) {
                report.at_least(name, ours / theirs, "x", OF_ROCKSDB);
            } else {
                report.fact(name, ours / theirs, "x");
            }
        }
    }
}

fn cluster(report: &mut Report, results: &Results, row: &str) {
    let all = results.cores(row, "copal");
    for cores in &all {
        for clients in results.clients(row, *cores) {
            let value = |name: &str| results.value_at(row, "copal", *cores, clients, name).unwrap_or(0.0);
            let name = format!("{row}, {}, {}", counted(*cores, "core"), counted(clients, "client"));
            for operation in ["puts", "gets"] {
                report.fact(format!("{name}: {operation}"), value(&format!("{operation} per second")), "/s");
                let server = value(&format!("{operation}: server us"));
                report.fact(format!("{name}: {operation}: server's processor time of each"), server, "us");
                let own = value(&format!("{operation}: clients us"));
                report.detail(format!("{name}: {operation}: clients' processor time of each"), own, "us");
            }
        }
    }
    let best = |cores: usize| {
        let clients = results.clients(row, cores).into_iter();
        let speeds =
            clients.filter_map(|clients| results.value_at(row, "copal", cores, clients, "puts per second"));
        speeds.max_by(f64::total_cmp)
    };
    for cores in all.iter().copied().filter(|cores| *cores > ONE) {
        if let (Some(one), Some(many)) = (best(ONE), best(cores)) {
            let name = format!(
                "{row}, {}: puts with the best number of clients, of one core's",
                counted(cores, "core")
            );
            match (row, cores) {
                ("cluster-4k", SERVER_MANY) => report.at_least(name, many / one, "x", PUTS_SPEED),
                _ => report.fact(name, many / one, "x"),
            }
        }
    }
    let Some(last) = all.last().copied() else { return };
    let cost = |clients: usize| results.value_at(row, "copal", last, clients, "puts: server us");
    for clients in results.clients(row, last).into_iter().filter(|clients| *clients > 1) {
        if let (Some(one), Some(many)) = (cost(1), cost(clients)) {
            let cores = counted(last, "core");
            let name = format!("{row}, {cores}, {clients} clients: processor time of a put, of one client's");
            report.at_most(name, many / one, "x", PUT_COST);
        }
    }
}
