//! A real agent under the paper's load of one host, in a process with at most 100 MB.
//!
//! The load has as many candidate chunks as the changed chunks of a host's images, asked about in the rounds
//! of a job.
//!
//! Paper: low-profile-dedup §5, table 1 (memory of a host)

use super::fleet::{Fleet, PASSWORD};
use anyhow::{Context, Result, ensure};
use copal_agent::agent::FleetClient;
use copal_backup::{
    IndexHome, Repository, Unlock,
    peers::{Peers, ShortId},
};
use copal_bench_harness::report::Report;
use copal_client::{ClientProfile, ClusterStore};
use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};
use uuid::Uuid;
use xtask::{copal, dataset::random::Random};

/// Number of chunks: 220 GB of a host in chunks of 16 KiB.
const CHUNKS: u64 = 13_400_000;
const ROUNDS: u64 = 12;
/// VMs of a host.
const VMS: u64 = 25;
const LIMIT_BYTES: f64 = 100e6;
const PATIENCE: Duration = Duration::from_secs(600);

/// Adds the rows of a real agent.
pub(super) fn measure(root: &Path, scratch: &Path, report: &mut Report) -> Result<()> {
    let scratch = scratch.join("real-agent");
    if scratch.exists() {
        fs::remove_dir_all(&scratch)?;
    }
    fs::create_dir_all(&scratch)?;
    let binary = copal::build_release(root)?;
    let mut fleet = Fleet::start(&binary, &scratch.join("fleet"), "4%")?;
    // The agent only answers; it runs no job.
    let plan = fleet.directory.join("h0.plan");
    fs::write(&plan, r#"{"v":1,"vms":[{"vm":"none","disks":{"sda":"none.raw"}}]}"#)?;
    let plan = plan.to_str().context("the scratch directory has a name in UTF-8")?;
    let group = Group::make();
    let within = group.as_ref().map(|group| group.0.as_path());
    fleet.start_agent("h0", &["--memory", "96M", "--plan", plan], within)?;
    let pid = fleet.agents[0].id();

    let store = ClusterStore::connect(&ClientProfile::read(&fleet.profile())?, PATIENCE)?.rooted("vms")?;
    let unlock = Unlock::Password(PASSWORD.to_owned().into());
    let repository = Repository::open(Arc::new(store), IndexHome::Memory, &unlock)?;
    let spool = tempfile::tempdir_in(&scratch)?;
    let client =
        FleetClient::connect(&repository, "bench", spool.path(), PATIENCE)?.context("the agent answers")?;
    let began = Instant::now();
    let mut random = Random::new(&[11]);
    let mut unanswered = 0;
    for round in 0..ROUNDS {
        let mut answers = 0;
        for vm in 0..VMS {
            let count = CHUNKS / ROUNDS / VMS;
            let mut ids = (0..count).map(|_| io::Result::Ok(drawn(&mut random)));
            let sent = client.send(Uuid::from_u128(u128::from(vm) + 1), &mut ids)?;
            let said = client.receive(sent);
            answers += said.len() as u64;
            let none = copal_backup::peers::Answer::UNANSWERED;
            unanswered += said.iter().filter(|answer| **answer == none).count();
        }
        println!("round {}: {answers} answers, {:.0} s", round + 1, began.elapsed().as_secs_f64());
    }
    let took = began.elapsed().as_secs_f64();
    let peak = peak_bytes(pid)?;
    report.fact("a real agent: candidate chunks", CHUNKS as f64 / 1e6, "million");
    report.exactly("a real agent: chunks without an answer", unanswered as f64, "", 0.0);
    report.at_most("a real agent: resident memory, most", peak / 1e6, "MB", LIMIT_BYTES / 1e6);
    report.fact("a real agent: in a control group of 100 MB", f64::from(u8::from(group.is_some())), "");
    report.fact(
        "a real agent: files of its detector",
        bytes_below(&fleet.directory.join("h0.state"))? / 1e6,
        "MB",
    );
    report.fact("a real agent: all answers", took, "s");
    report.fact("a real agent: messages", client.message_bytes() as f64 / 1e6, "MB");
    drop((client, fleet));
    fs::remove_dir_all(&scratch)?;
    Ok(())
}

fn drawn(random: &mut Random) -> ShortId {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&random.next().to_be_bytes());
    id[8..].copy_from_slice(&random.next().to_be_bytes());
    id
}

/// A control group whose processes may use 100 MB.
struct Group(PathBuf);

impl Group {
    /// `None` if no group can be made here; then only the peak is reported.
    fn make() -> Option<Group> {
        let name = format!("copal-bench-{}", std::process::id());
        for (root, limit) in
            [("/sys/fs/cgroup", "memory.max"), ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")]
        {
            let group = Path::new(root).join(&name);
            if !Path::new(root).join("cgroup.procs").exists() || fs::create_dir(&group).is_err() {
                continue;
            }
            if fs::write(group.join(limit), (LIMIT_BYTES as u64).to_string()).is_ok() {
                return Some(Group(group));
            }
            // An empty, useless group.
            let _ = fs::remove_dir(&group);
        }
        None
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Its process has normally ended by now; otherwise the group stays.
        let _ = fs::remove_dir(&self.0);
    }
}

fn peak_bytes(pid: u32) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).context("the agent has ended")?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().nth(1));
    Ok(kilobytes.context("the kernel tells the peak")?.parse::<f64>()? * 1024.0)
}

fn bytes_below(directory: &Path) -> Result<f64> {
    ensure!(directory.is_dir(), "{} is no directory", directory.display());
    let mut bytes = 0.0;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        bytes += match entry.file_type()?.is_dir() {
            true => bytes_below(&entry.path())?,
            false => entry.metadata()?.len() as f64,
        };
    }
    Ok(bytes)
}
