//! `dedup-fleet`: savings of agents on three hosts as a share of an exact index's savings, on real images.
//!
//! The same images go into several repositories:
//! - one that shares all chunks (layout solo);
//! - one that shares none (layout fleet without agents);
//! - one for each job; jobs differ in their rounds and in the placement of VMs;
//! - one whose VMs are backed up one at a time, measured before and after a clean-up.
//!
//! All but the first two lie in a cluster of three servers. Sizes are those of packs: chunks, recipes and
//! popular packs, without dead frames.
//!
//! Paper: low-profile-dedup §2 (98 % of the duplicates that full deduplication finds)

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use copal_bench_harness::report::Report;
use serde_json::{Value, json};
use std::{
    fs,
    io::{BufRead, BufReader},
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};
use xtask::{
    copal,
    dataset::oracle::{Oracle, Vm},
};

const HOSTS: usize = 3;
/// Password of all repositories.
pub(super) const PASSWORD: &str = "correct horse";
/// Target for the share of the exact index's savings.
const TARGET: f64 = 97.0;

#[derive(Args)]
pub(crate) struct Options {
    /// Directory of the data set [default: .cache/dataset-fleet]
    #[arg(long, env = "COPAL_DATASET_FLEET")]
    dataset: Option<PathBuf>,
    /// Directory of the repositories [default: .cache/bench]
    #[arg(long)]
    scratch: Option<PathBuf>,
    /// Greatest share of popular chunks among all chunks
    #[arg(long, default_value = "100%")]
    pds_fraction: String,
}

pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    let dataset = crate::default_below_cache(root, options.dataset.as_ref(), "dataset-fleet");
    let scratch = crate::default_below_cache(root, options.scratch.as_ref(), "bench").join("fleet");
    if scratch.exists() {
        fs::remove_dir_all(&scratch)?;
    }
    fs::create_dir_all(&scratch)?;
    let set = Set {
        vms: Oracle::read(&dataset)?.vms,
        dataset,
        binary: copal::build_release(root)?,
        scratch: scratch.clone(),
        fraction: options.pds_fraction.clone(),
    };
    let mut report = Report::new(root, &scratch);

    let exact = set.alone("exact", "solo")?;
    let none = set.alone("none", "fleet")?;
    report.fact("VMs", set.vms.len() as f64, "");
    report.fact("each VM for itself", none as f64 / 1e6, "MB");
    report.fact("all chunks shared (exact index)", exact as f64 / 1e6, "MB");
    let saved = |bytes: u64| 100.0 * (none as f64 - bytes as f64) / (none as f64 - exact as f64);

    let together = set.job("together", "auto", in_turn)?;
    report.fact("one job: packs", together.bytes as f64 / 1e6, "MB");
    report.fact("one job: popular of all chunks stored", together.popular_percent, "%");
    report.exactly("one job: chunks without an answer", together.unresolved as f64, "", 0.0);
    report.at_least("one job: of what the exact index saves", saved(together.bytes), "%", TARGET);
    let of_rounds =
        ["1", "2", "6", "8"].map(|rounds| (format!("{rounds} rounds"), rounds, in_turn as Placement));
    let of_placements = [
        ("blocks of VMs on a host", in_blocks as Placement),
        ("half of the VMs on one host", half_on_one as Placement),
    ]
    .map(|(name, placement)| (name.to_owned(), "auto", placement));
    for (name, rounds, placement) in of_rounds.into_iter().chain(of_placements) {
        let taken = set.job(&name.replace(' ', "-"), rounds, placement)?;
        report.exactly(format!("{name}: chunks without an answer"), taken.unresolved as f64, "", 0.0);
        report.at_least(format!("{name}: of what the exact index saves"), saved(taken.bytes), "%", TARGET);
    }

    let [before, after] = set.one_at_a_time()?;
    report.fact("one VM at a time: packs", before.bytes as f64 / 1e6, "MB");
    report.fact("one VM at a time: of what the exact index saves", saved(before.bytes), "%");
    report.fact("one VM at a time, after a clean-up: packs", after.bytes as f64 / 1e6, "MB");
    report.at_least(
        "one VM at a time, after a clean-up: of what the exact index saves",
        saved(after.bytes),
        "%",
        TARGET,
    );
    fs::remove_dir_all(&scratch)?;
    report.finish(root, "dedup-fleet")
}

/// Host of a VM, by its number and the number of VMs.
type Placement = fn(usize, usize) -> usize;

fn in_turn(number: usize, _vms: usize) -> usize {
    number % HOSTS
}

fn in_blocks(number: usize, vms: usize) -> usize {
    number * HOSTS / vms.max(1)
}

fn half_on_one(number: usize, vms: usize) -> usize {
    match number < vms / 2 {
        true => 0,
        false => 1 + number % (HOSTS - 1),
    }
}

/// Size of a fleet's repository.
struct Taken {
    bytes: u64,
    popular_percent: f64,
    unresolved: u64,
}

struct Set {
    vms: Vec<Vm>,
    dataset: PathBuf,
    binary: PathBuf,
    scratch: PathBuf,
    fraction: String,
}

impl Set {
    fn image(&self, vm: &Vm) -> Result<PathBuf> {
        let first = vm.days.first().with_context(|| format!("{} has a day", vm.name))?;
        Ok(self.dataset.join(&first.image))
    }

    /// Backs up all VMs into a repository in a directory, one after the other, by a process without agents.
    /// Returns the bytes of packs.
    fn alone(&self, name: &str, layout: &str) -> Result<u64> {
        println!("{name}: {} VMs", self.vms.len());
        let directory = self.scratch.join(name);
        let asked = Asked {
            binary: &self.binary,
            repository: text(&directory)?.to_owned(),
            profile: None,
            password_file: self.password()?,
        };
        asked.run(&["init", "--layout", layout, "--backend", "hostfs"])?;
        for vm in &self.vms {
            let disk = format!("sda={}", text(&self.image(vm)?)?);
            asked.run(&["backup", "--vm", &vm.name, "--disk", &disk])?;
        }
        let bytes = match layout {
            "solo" => packs(&asked.run(&["stats"])?)?,
            _ => self.packs_of_vms(&asked)?,
        };
        fs::remove_dir_all(&directory)?;
        Ok(bytes)
    }

    fn password(&self) -> Result<PathBuf> {
        let file = self.scratch.join("password");
        fs::write(&file, format!("{PASSWORD}\n"))?;
        Ok(file)
    }

    fn packs_of_vms(&self, asked: &Asked<'_>) -> Result<u64> {
        let mut bytes = 0;
        for vm in &self.vms {
            bytes += packs(&asked.run(&["stats", "--vm", &vm.name])?)?;
        }
        Ok(bytes)
    }

    fn taken(&self, asked: &Asked<'_>, unresolved: u64) -> Result<Taken> {
        let popular = asked.run(&["pds", "status"])?;
        let all = asked.run(&["stats"])?;
        let chunks = |of: &Value| number(of, "chunks");
        Ok(Taken {
            bytes: self.packs_of_vms(asked)? + number(&popular, "bytes")?,
            popular_percent: 100.0 * chunks(&popular)? as f64 / chunks(&all)?.max(1) as f64,
            unresolved,
        })
    }

    /// Backs up all VMs in one job of three agents.
    fn job(&self, name: &str, rounds: &str, placement: Placement) -> Result<Taken> {
        let fleet = self.fleet(name, placement)?;
        let asked = fleet.asked();
        let job = asked.run(&["job", "run", "--all", "--rounds", rounds, "--wait"])?;
        ensure!(job["complete"] == true, "the job is not complete: {job}");
        self.taken(&asked, number(&job, "unresolved")?)
    }

    /// Backs up each VM by itself beside three agents, then cleans up.
    fn one_at_a_time(&self) -> Result<[Taken; 2]> {
        let fleet = self.fleet("one-at-a-time", in_turn)?;
        let asked = fleet.asked();
        let mut unresolved = 0;
        for vm in &self.vms {
            let disk = format!("sda={}", text(&self.image(vm)?)?);
            let done = asked.run(&["backup", "--vm", &vm.name, "--disk", &disk])?;
            unresolved += number(&done["counts"], "unresolved_chunks")?;
        }
        let before = self.taken(&asked, unresolved)?;
        asked.run(&["pds", "cleanup"])?;
        asked.run(&["delete"])?;
        Ok([before, self.taken(&asked, unresolved)?])
    }

    /// A fleet with an agent on each of three hosts; `placement` assigns the VMs.
    fn fleet(&self, name: &str, placement: Placement) -> Result<Fleet> {
        println!("{name}: three servers, three agents");
        let mut fleet = Fleet::start(&self.binary, &self.scratch.join(name), &self.fraction)?;
        for host in 0..HOSTS {
            let vms = self.vms.iter().enumerate();
            let of_host = vms.filter(|(number, _)| placement(*number, self.vms.len()) == host);
            let vms = of_host
                .map(|(_, vm)| Ok(json!({ "vm": vm.name, "disks": { "sda": self.image(vm)? } })))
                .collect::<Result<Vec<_>>>()?;
            let plan = fleet.directory.join(format!("h{host}.plan"));
            fs::write(&plan, json!({ "v": 1, "vms": vms }).to_string())?;
            fleet.start_agent(&format!("h{host}"), &["--plan", text(&plan)?], None)?;
        }
        Ok(fleet)
    }
}

/// A cluster of three servers with a repository, and agents.
pub(super) struct Fleet {
    binary: PathBuf,
    pub(super) directory: PathBuf,
    repository: String,
    pub(super) agents: Vec<Child>,
    serve: Child,
}

impl Fleet {
    /// Starts the cluster in a directory that does not exist yet, and makes the repository.
    pub(super) fn start(binary: &Path, directory: &Path, fraction: &str) -> Result<Fleet> {
        let port = free_ports()?.to_string();
        let words = ["serve", "--dev", "--dir", text(directory)?, "--port", &port, "--json"];
        let (serve, ready) = started(Command::new(binary).args(words))?;
        let fleet = Fleet {
            binary: binary.to_owned(),
            directory: directory.to_owned(),
            repository: ready["url"].as_str().context("serve prints an address")?.to_owned(),
            agents: Vec::new(),
            serve,
        };
        fs::write(fleet.password_file(), format!("{PASSWORD}\n"))?;
        fleet.asked().run(&["init", "--layout", "fleet", "--pds-fraction", fraction])?;
        Ok(fleet)
    }

    /// Starts an agent, with `group` in this control group.
    pub(super) fn start_agent(&mut self, name: &str, more: &[&str], group: Option<&Path>) -> Result<()> {
        let state = self.directory.join(format!("{name}.state"));
        let words = [&["agent", "--name", name, "--state", text(&state)?][..], more].concat();
        let mut command = self.asked().command(&words);
        if let Some(group) = group {
            // A shell enters the group and then executes the agent.
            let script = "echo $$ > \"$0\"/cgroup.procs && exec \"$@\"";
            let mut entering = Command::new("sh");
            entering.args(["-c", script]).arg(group).arg(&self.binary).args(&words).arg("--json");
            for (name, value) in command.get_envs() {
                entering.env(name, value.unwrap_or_default());
            }
            entering.stdin(Stdio::null());
            command = entering;
        }
        self.agents.push(started(&mut command)?.0);
        Ok(())
    }

    pub(super) fn profile(&self) -> PathBuf {
        self.directory.join("client.json")
    }

    fn password_file(&self) -> PathBuf {
        self.directory.join("password")
    }

    fn asked(&self) -> Asked<'_> {
        Asked {
            binary: &self.binary,
            repository: self.repository.clone(),
            profile: Some(self.profile()),
            password_file: self.password_file(),
        }
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for child in self.agents.iter_mut().chain([&mut self.serve]) {
            // Its servers end with it.
            let _ = Command::new("kill").arg(child.id().to_string()).status();
            let _ = child.wait();
        }
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Arguments by which commands name a repository.
struct Asked<'s> {
    binary: &'s Path,
    repository: String,
    profile: Option<PathBuf>,
    password_file: PathBuf,
}

impl Asked<'_> {
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(self.binary);
        command
            .args(words)
            .arg("--json")
            .env("COPAL_REPOSITORY", &self.repository)
            .env("COPAL_PASSWORD_FILE", &self.password_file)
            .stdin(Stdio::null());
        if let Some(profile) = &self.profile {
            command.env("COPAL_CLUSTER", profile);
        }
        command
    }

    /// Last message of a successful command.
    fn run(&self, words: &[&str]) -> Result<Value> {
        let run = self.command(words).output().context("running copal")?;
        ensure!(run.status.success(), "{words:?}: {}", String::from_utf8_lossy(&run.stderr));
        let said = String::from_utf8_lossy(&run.stdout).into_owned();
        let last = said.lines().last().with_context(|| format!("{words:?} says something"))?;
        Ok(serde_json::from_str(last)?)
    }
}

/// A daemon that has printed its ready line, and this line if it is JSON.
fn started(mut command: impl std::borrow::BorrowMut<Command>) -> Result<(Child, Value)> {
    let mut child = command.borrow_mut().stdout(Stdio::piped()).spawn().context("starting copal")?;
    let mut lines = BufReader::new(child.stdout.take().context("it has a standard output")?).lines();
    for line in lines.by_ref() {
        let line = line?;
        let told: Value = serde_json::from_str(&line).unwrap_or_default();
        if told["message_type"] == "ready" || line.starts_with("ready ") {
            std::thread::spawn(move || lines.count());
            return Ok((child, told));
        }
    }
    bail!("{:?} has ended: {}", command.borrow_mut(), child.wait()?)
}

fn packs(stats: &Value) -> Result<u64> {
    let dead = stats["dead_bytes"].as_u64().unwrap_or(0);
    Ok(number(stats, "chunk_pack_bytes")? + number(stats, "recipe_pack_bytes")? - dead)
}

fn number(of: &Value, name: &str) -> Result<u64> {
    of[name].as_u64().with_context(|| format!("{name} is a number of {of}"))
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("the scratch directory has a name in UTF-8")
}

/// First of the free ports of a cluster; 200 ports behind are those of its monitors.
fn free_ports() -> Result<u16> {
    let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    let all_free = |first: &u16| (0..4).all(|at| is_free(first + at) && is_free(first + 200 + at));
    (17_400..30_000).step_by(400).find(all_free).context("eight ports are free")
}
