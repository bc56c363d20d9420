//! Re-replication after a permanent loss of servers: the suite fills a cluster, kills servers, declares them
//! lost, and polls the master's recovery queue.
//!
//! Each server has a byte rate for copies, shared by the reads for other servers and its own writes: it
//! stands for the disks of more machines. A copied byte uses the rate of two servers, so `n` of them at
//! `rate` copy at most `n rate / 2`, and a single copy runs at `rate`.

use super::{
    operations,
    running::{Running, Setup},
};
use anyhow::{Result, ensure};
use copal_client::administration::{TaskStatus, requests};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    thread,
    time::{Duration, Instant},
};

/// Time limit of the copies.
const LIMIT: Duration = Duration::from_secs(1800);
/// Interval of polls.
const LOOK: Duration = Duration::from_millis(25);
/// Bytes of a file.
const FILE_BYTES: usize = 256 << 10;

/// Lost servers, and limits of the recovery.
pub(super) struct Plan {
    pub(super) servers: usize,
    pub(super) groups: u32,
    /// Bytes of each volume; there are as many as groups.
    pub(super) volume_bytes: u64,
    /// Byte rate that each server has for copies, per second.
    pub(super) rate: u64,
    /// Number of parallel copies; none: the master's default.
    pub(super) at_once: Option<usize>,
    /// Number of lost servers.
    pub(super) lost: usize,
}

/// Result of a recovery.
pub(super) struct Outcome {
    pub(super) seconds: f64,
    /// Seconds until no group had a single in-sync replica; 0: none ever had.
    pub(super) single_seconds: f64,
    /// Groups that had a single in-sync replica.
    pub(super) single_groups: u64,
    /// Copies made, and the bytes of the files in them.
    pub(super) copies: u64,
    pub(super) bytes: u64,
    /// Volumes that lost a replica.
    pub(super) volumes: u64,
    /// Copies that began although a group with fewer in-sync replicas could have run instead.
    pub(super) out_of_order: u64,
    /// Greatest number of parallel copies.
    pub(super) most_running: u64,
}

/// One poll of the queue.
struct Task {
    group: u64,
    source: String,
    target: String,
    whole_copies: u64,
}

impl Task {
    fn of(task: TaskStatus) -> Task {
        Task {
            group: task.gid.into(),
            source: task.src.unwrap_or_default(),
            target: task.dst.unwrap_or_default(),
            whole_copies: task.priority.whole_copies.unwrap_or_default().into(),
        }
    }
}

/// Fills a new cluster, loses servers, and polls until all groups are in sync.
pub(super) fn lose(binary: &Path, directory: &Path, plan: &Plan) -> Result<Outcome> {
    let mut master = Vec::new();
    if let Some(most) = plan.at_once {
        master = vec!["--copies-at-once".to_owned(), most.to_string()];
    }
    let setup = Setup {
        groups: plan.groups,
        master,
        data: ["--recovery-rate", &plan.rate.to_string(), "--memory", "96M"].map(str::to_owned).into(),
        ..Setup::of(plan.servers)
    };
    let mut running = Running::start(binary, directory, &setup)?;
    let begun = Instant::now();
    let volumes = operations::volumes(running.store(), plan.groups.into())?;
    let files = u64::from(plan.groups) * plan.volume_bytes.div_ceil(FILE_BYTES as u64);
    operations::create(running.store(), &volumes, files, FILE_BYTES, "f")?;
    eprintln!("{files} files in {:.0} s", begun.elapsed().as_secs_f64());
    let names: BTreeSet<String> =
        (plan.servers - plan.lost..plan.servers).map(|at| format!("data{at}")).collect();
    let lacking = lost_copies(&running, &names)?;
    ensure!(
        !lacking.is_empty(),
        "nothing to measure: the servers to lose hold no group, since a new cluster places its groups on the servers that join first"
    );
    let mut outcome = Outcome {
        seconds: 0.0,
        single_seconds: 0.0,
        single_groups: lacking.values().filter(|copies| **copies == 2).count() as u64,
        copies: lacking.values().sum(),
        bytes: 0,
        volumes: 0,
        out_of_order: 0,
        most_running: 0,
    };
    for vid in volumes.iter() {
        let copies = lacking.get(&u64::from(vid.birth_group().0)).copied();
        outcome.volumes += copies.unwrap_or_default();
        outcome.bytes += copies.unwrap_or_default() * (files / u64::from(plan.groups)) * FILE_BYTES as u64;
    }
    for at in plan.servers - plan.lost..plan.servers {
        running.kill(at)?;
    }
    running.wait_until(Duration::from_secs(60), |status| {
        status.servers.iter().filter(|server| server.state == "down").count() == plan.lost
    })?;
    // Copies for the first server begin before the second is declared lost, as in a sequence of losses.
    for name in &names {
        running.administer(&requests::LoseServer { name: name.clone() })?;
    }
    watch(&running, &mut outcome)?;
    Ok(outcome)
}

/// Number of replicas that each group has lost with these servers.
fn lost_copies(running: &Running, lost: &BTreeSet<String>) -> Result<BTreeMap<u64, u64>> {
    let mut lacking = BTreeMap::new();
    for group in running.administer(&requests::ListGroups {})?.groups {
        let away = group.members.iter().filter(|member| lost.contains(&member.name)).count() as u64;
        if away > 0 {
            lacking.insert(group.group.into(), away);
        }
    }
    Ok(lacking)
}

fn watch(running: &Running, outcome: &mut Outcome) -> Result<()> {
    let begun = Instant::now();
    let mut before: BTreeSet<(u64, String)> = BTreeSet::new();
    loop {
        let status = running.status()?;
        let elapsed = begun.elapsed();
        let (mut runs, mut waits) = (Vec::new(), Vec::new());
        for task in status.tasks {
            match task.state.as_str() {
                "running" => runs.push(Task::of(task)),
                "waiting" => waits.push(Task::of(task)),
                _ => {}
            }
        }
        outcome.most_running = outcome.most_running.max(runs.len() as u64);
        outcome.out_of_order += out_of_order(&before, &runs, &waits);
        before = runs.iter().map(|task| (task.group, task.target.clone())).collect();
        if status.groups.one_copy > 0 {
            outcome.single_seconds = elapsed.as_secs_f64();
        }
        if status.health == "healthy" {
            outcome.seconds = elapsed.as_secs_f64();
            return Ok(());
        }
        ensure!(elapsed < LIMIT, "not in sync after {} s: {}", LIMIT.as_secs(), status.sentence);
        thread::sleep(LOOK);
    }
}

/// Number of copies that began since the last poll although a waiting group with fewer in-sync replicas could
/// have run instead.
fn out_of_order(before: &BTreeSet<(u64, String)>, runs: &[Task], waits: &[Task]) -> u64 {
    let began = runs.iter().filter(|task| !before.contains(&(task.group, task.target.clone())));
    let is_before_its_turn = |begun: &&Task| {
        let others = || runs.iter().filter(|other| other.group != begun.group);
        waits
            .iter()
            .filter(|waiting| waiting.whole_copies < begun.whole_copies && waiting.whole_copies > 0)
            .any(|waiting| {
                !waiting.source.is_empty()
                    && !waiting.target.is_empty()
                    && others().all(|other| other.source != waiting.source && other.target != waiting.target)
            })
    };
    began.filter(is_before_its_turn).count() as u64
}

#[cfg(test)]
mod tests {
    use super::{Task, out_of_order};
    use std::collections::BTreeSet;

    fn task(group: u64, source: &str, target: &str, whole_copies: u64) -> Task {
        Task { group, source: source.to_owned(), target: target.to_owned(), whole_copies }
    }

    #[test]
    fn a_copy_is_out_of_order_only_if_a_more_urgent_one_could_have_run() {
        let none = BTreeSet::new();
        let runs = [task(1, "a", "b", 2), task(2, "c", "d", 1)];
        assert_eq!(out_of_order(&none, &runs, &[task(3, "a", "e", 1)]), 1);
        // Its source serves another copy of the same urgency.
        assert_eq!(out_of_order(&none, &runs, &[task(3, "c", "e", 1)]), 0);
        assert_eq!(out_of_order(&none, &runs, &[task(3, "a", "e", 2)]), 0);
        let before = [(1, "b".to_owned())].into();
        assert_eq!(out_of_order(&before, &runs, &[task(3, "a", "e", 1)]), 0);
    }
}
