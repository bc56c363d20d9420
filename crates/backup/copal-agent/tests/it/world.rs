//! A fleet in one process: a repository in memory, and agents that each have a plan and a disk.

use copal_agent::{
    agent::{Agent, AgentOptions},
    job::{
        coordinator::{self, JobOptions},
        job_report::JobReport,
    },
    plan::scheme::DedupScheme,
};
use copal_backup::{CancelFlag, IndexHome, InitOptions, Layout, Repository, Role, Unlock};
use copal_volume::MemoryStore;
use std::{
    fs,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// A repository of the layout fleet, and a directory for the agents' state.
pub(crate) struct Fleet {
    store: MemoryStore,
    pub(crate) repository: Arc<Repository>,
    pub(crate) directory: tempfile::TempDir,
}

/// An agent that runs until it is dropped.
pub(crate) struct Running {
    stop: Arc<AtomicBool>,
    agent: Option<Agent>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.agent.take().into_iter().for_each(Agent::wait);
    }
}

impl Fleet {
    pub(crate) fn new() -> Fleet {
        Fleet::with_fraction(300_000)
    }

    pub(crate) fn with_fraction(popular_millionths: u32) -> Fleet {
        Fleet::unlocked_by(Unlock::Insecure, popular_millionths)
    }

    /// A fleet whose repository lies on several servers.
    pub(crate) fn on_several_servers() -> Fleet {
        Fleet::in_store(MemoryStore::new().into_replicated(), Unlock::Insecure, 300_000)
    }

    pub(crate) fn unlocked_by(unlock: Unlock, popular_millionths: u32) -> Fleet {
        Fleet::in_store(MemoryStore::new(), unlock, popular_millionths)
    }

    fn in_store(store: MemoryStore, unlock: Unlock, popular_millionths: u32) -> Fleet {
        let options = InitOptions {
            layout: Layout::Fleet { popular_millionths },
            argon2_memory_kib: 64,
            ..InitOptions::new(unlock)
        };
        let repository = Repository::init(Arc::new(store.clone()), IndexHome::Memory, &options).unwrap();
        Fleet { store, repository: Arc::new(repository), directory: tempfile::tempdir().unwrap() }
    }

    /// A handle like one of another process, with a new key of this role.
    pub(crate) fn open_as(&self, role: Role) -> Arc<Repository> {
        let key = self.repository.draw_key(role).unwrap();
        self.repository.add_key(&key).unwrap();
        self.open(&Unlock::Key(key))
    }

    /// A handle like one of another process.
    pub(crate) fn open(&self, unlock: &Unlock) -> Arc<Repository> {
        let store = Arc::new(self.store.clone());
        let opened = Repository::open(store, IndexHome::Memory, unlock).unwrap();
        Arc::new(opened.behave_as_another_process())
    }

    /// Writes the plan of an agent: these VMs, each with a disk of its own content.
    pub(crate) fn plan(&self, name: &str, vms: &[&str]) -> PathBuf {
        let entries = vms.iter().map(|vm| {
            let disk = self.disk(vm);
            fs::write(&disk, vm.as_bytes().repeat(5000)).unwrap();
            serde_json::json!({ "vm": vm, "disks": { "sda": disk } })
        });
        self.write_plan(name, entries.collect())
    }

    /// Path of a VM's disk.
    pub(crate) fn disk(&self, vm: &str) -> PathBuf {
        self.directory.path().join(format!("{vm}.raw"))
    }

    /// Writes the plan of an agent for existing disks.
    pub(crate) fn plan_of_disks(&self, name: &str, vms: &[String]) -> PathBuf {
        let entries = vms.iter().map(|vm| serde_json::json!({ "vm": vm, "disks": { "sda": self.disk(vm) } }));
        self.write_plan(name, entries.collect())
    }

    fn write_plan(&self, name: &str, entries: Vec<serde_json::Value>) -> PathBuf {
        let plan = serde_json::json!({ "v": 1, "vms": entries });
        let file = self.directory.path().join(format!("{name}.plan"));
        fs::write(&file, plan.to_string()).unwrap();
        file
    }

    pub(crate) fn start(&self, name: &str, vms: &[&str]) -> Running {
        self.start_with(name, self.plan(name, vms), Arc::clone(&self.repository))
    }

    /// Starts an agent with a handle of its own.
    pub(crate) fn start_with(&self, name: &str, plan: PathBuf, repository: Arc<Repository>) -> Running {
        self.start_as(name, plan, repository, |_| ())
    }

    /// Starts an agent with other options.
    pub(crate) fn start_as(
        &self,
        name: &str,
        plan: PathBuf,
        repository: Arc<Repository>,
        change: impl FnOnce(&mut AgentOptions),
    ) -> Running {
        let mut options = AgentOptions {
            name: name.to_owned(),
            state: self.directory.path().join(name),
            listen: "127.0.0.1:0".to_owned(),
            advertise: None,
            plan: Some(plan),
            memory_bytes: 100_000_000,
            read_limit: None,
            upload_limit: None,
            leak_share_percent: None,
        };
        change(&mut options);
        let stop = Arc::new(AtomicBool::new(false));
        let agent = Agent::start(repository, &options, Arc::clone(&stop)).unwrap();
        Running { stop, agent: Some(agent) }
    }

    pub(crate) fn options(&self, rounds: &str) -> JobOptions {
        JobOptions {
            rounds: rounds.to_owned(),
            timeout: Duration::from_secs(30),
            scheme: DedupScheme::Collaborative,
        }
    }

    pub(crate) fn job(&self) -> JobReport {
        self.job_in("auto")
    }

    /// Runs a job to its end.
    pub(crate) fn job_in(&self, rounds: &str) -> JobReport {
        let begun = coordinator::begin(&self.repository, &self.options(rounds)).unwrap();
        let mut report = begun.wait(&CancelFlag::new(), &mut |_| ());
        begun.wait_for_checks(&self.repository, &mut report).unwrap();
        report
    }
}
