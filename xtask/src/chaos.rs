//! Long runs of the tests that kill processes under load, for a cluster and for a fleet.
//!
//! The cluster test also freezes processes and cuts links: three masters over a MariaDB, each process in a
//! network namespace of its own. The whole run has its own namespaces (network, mounts, processes), so the
//! kernel removes everything when the run ends, even after a crash. It needs no root where the kernel permits
//! user namespaces.

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::{
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
};

const TEST: &str = "chaos::no_acknowledged_file_is_lost_when_any_process_is_killed_or_frozen";
const FLEET_TEST: &str = "fleet_chaos::no_published_snapshot_is_lost_when_any_process_of_a_fleet_is_killed";
const REMOTE_TEST: &str = "fleet_chaos::object_store::no_published_snapshot_is_lost_when_hosts_over_an_object_store_are_killed_or_stopped";
/// Exit code of a successful run on a machine where links could not be cut.
const WITHOUT_LINKS: u8 = 3;

/// Store below the repository of a fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum FleetStore {
    /// A cluster of three servers, which are killed too
    Cluster,
    /// An object server of the testkit, behind a network with faults
    S3,
}

/// Parameters of a run.
pub(crate) struct Trial {
    /// Duration of the faults; recovery and the final checks take more time.
    pub(crate) minutes: u64,
    /// Seed of fault times, fault kinds and load.
    pub(crate) seed: u64,
    /// Use a release build instead of the profile `demo`.
    pub(crate) release: bool,
}

/// Runs the cluster test and prints its output; the exit code is 3 where links could not be cut.
pub(crate) fn run(root: &Path, trial: &Trial) -> Result<ExitCode> {
    let test = build(root, trial.release)?;
    let outer = outer();
    if outer.is_none() {
        println!(
            "this machine permits no network namespaces (needs root or kernel.unprivileged_userns_clone, and `scripts/install-deps.sh chaos`): links \
             are not cut"
        );
    }
    let mut command = match &outer {
        None => Command::new(&test),
        Some(outer) => {
            let mut command = Command::new(outer[0]);
            // `ip netns` keeps its names in /run; the tmpfs makes that private to this run.
            let script = "mount -t tmpfs tmpfs /run && exec \"$0\" \"$@\"";
            command.args(&outer[1..]).args(["sh", "-c", script]).arg(&test);
            command
        }
    };
    let status = command
        .args([TEST, "--exact", "--nocapture"])
        .env("COPAL_CHAOS_SECONDS", (trial.minutes * 60).to_string())
        .env("COPAL_CHAOS_SEED", trial.seed.to_string())
        .env("COPAL_CHAOS_MASTERS", "3")
        .env("COPAL_CHAOS_SPACES", if outer.is_some() { "1" } else { "0" })
        .current_dir(root.join("crates/app/copal"))
        .status()
        .context("the test runs")?;
    ensure!(
        status.success(),
        "seed {}: acknowledged data was lost, replicas differ, or a process logged a warning; see the output above",
        trial.seed
    );
    Ok(match outer {
        Some(_) => ExitCode::SUCCESS,
        None => ExitCode::from(WITHOUT_LINKS),
    })
}

/// Kills processes of a fleet for `rounds` rounds while it backs up, deletes, repairs and cleans up.
pub(crate) fn run_fleet(root: &Path, store: FleetStore, rounds: u64, seed: u64, release: bool) -> Result<()> {
    let name = match store {
        FleetStore::Cluster => FLEET_TEST,
        FleetStore::S3 => REMOTE_TEST,
    };
    let test = build(root, release)?;
    let status = Command::new(&test)
        .args([name, "--exact", "--nocapture"])
        .env("COPAL_FLEET_CHAOS_ROUNDS", rounds.to_string())
        .env("COPAL_CHAOS_SEED", seed.to_string())
        .current_dir(root.join("crates/app/copal"))
        .status()
        .context("the test runs")?;
    ensure!(
        status.success(),
        "seed {seed}: published data was lost, or unreferenced data is still stored; see the output above"
    );
    Ok(())
}

/// Builds the integration tests of `copal` and returns the path of their binary.
fn build(root: &Path, release: bool) -> Result<PathBuf> {
    let mut cargo = Command::new("cargo");
    cargo.args(["test", "--no-run", "--message-format=json-render-diagnostics"]);
    cargo.args(["--locked", "--package", "copal", "--test", "it"]);
    cargo.args(["--profile", if release { "release" } else { "demo" }]);
    let built = cargo.current_dir(root).stderr(Stdio::inherit()).output().context("cargo runs")?;
    ensure!(built.status.success(), "the tests of copal do not build");
    let messages = String::from_utf8_lossy(&built.stdout);
    let of = |line: &str| serde_json::from_str::<Value>(line).ok();
    let test = messages
        .lines()
        .filter_map(of)
        .filter(|message| message["target"]["name"] == "it" && message["profile"]["test"] == true)
        .find_map(|message| message["executable"].as_str().map(PathBuf::from));
    match test {
        Some(test) => Ok(test),
        None => bail!("cargo printed no path of copal's test binary"),
    }
}

/// Command prefix that runs a program in namespaces of its own. `None` if the kernel refuses them or a tool
/// is missing.
fn outer() -> Option<Vec<&'static str>> {
    let own = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"];
    let as_user = ["--user", "--map-root-user"];
    let probe = "mount -t tmpfs tmpfs /run && mkdir /run/netns && ip netns add probe && ip link add v0 type veth peer name eth0 \
                 netns probe && ip rule add from 10.0.0.1 to 10.0.0.2 blackhole && tc qdisc show dev v0 && nsenter \
                 --net=/run/netns/probe true && echo 1 > /proc/sys/net/ipv4/ip_forward";
    let ways = [own.to_vec(), [&own[..], &as_user[..]].concat()];
    ways.into_iter().find(|way| {
        let mut unshare = Command::new(way[0]);
        unshare.args(&way[1..]).args(["sh", "-c", probe]);
        unshare.stdout(Stdio::null()).stderr(Stdio::null());
        unshare.status().is_ok_and(|status| status.success())
    })
}
