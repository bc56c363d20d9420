//! A fleet in one process: a repository in memory, and agents that each have a plan and a disk.

use copal_agent::{
    agent::{Agent, AgentOptions},
    coordinate::{self, JobOptions, JobReport},
    scheme::Scheme,
};
use copal_backup::{CancelFlag, IndexHome, InitOptions, Layout, Repository, Unlock};
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

/// A repository of the layout fleet, and a directory for what agents keep.
pub(crate) struct Fleet {
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
        let options = InitOptions {
            layout: Layout::Fleet {
                popular_millionths: 300_000,
            },
            ..InitOptions::new(Unlock::Insecure)
        };
        let store = Arc::new(MemoryStore::new());
        let repository = Repository::init(store, IndexHome::Memory, &options).unwrap();
        Fleet {
            repository: Arc::new(repository),
            directory: tempfile::tempdir().unwrap(),
        }
    }

    /// Writes the plan of an agent: these VMs, each with a disk of its own content.
    pub(crate) fn plan(&self, name: &str, vms: &[&str]) -> PathBuf {
        let entries = vms.iter().map(|vm| {
            let disk = self.directory.path().join(format!("{vm}.raw"));
            fs::write(&disk, vm.as_bytes().repeat(5000)).unwrap();
            serde_json::json!({ "vm": vm, "disks": { "sda": disk } })
        });
        let plan = serde_json::json!({ "v": 1, "vms": entries.collect::<Vec<_>>() });
        let file = self.directory.path().join(format!("{name}.plan"));
        fs::write(&file, plan.to_string()).unwrap();
        file
    }

    pub(crate) fn start(&self, name: &str, vms: &[&str]) -> Running {
        let options = AgentOptions {
            name: name.to_owned(),
            state: self.directory.path().join(name),
            listen: "127.0.0.1:0".to_owned(),
            advertise: None,
            plan: Some(self.plan(name, vms)),
            memory_bytes: 100_000_000,
            read_limit: None,
            upload_limit: None,
        };
        let stop = Arc::new(AtomicBool::new(false));
        let agent = Agent::start(Arc::clone(&self.repository), &options, Arc::clone(&stop)).unwrap();
        Running {
            stop,
            agent: Some(agent),
        }
    }

    pub(crate) fn options(&self, rounds: &str) -> JobOptions {
        JobOptions {
            rounds: rounds.to_owned(),
            timeout: Duration::from_secs(30),
            scheme: Scheme::Collaborative,
        }
    }

    pub(crate) fn job(&self) -> JobReport {
        self.job_in("auto")
    }

    /// Runs a job to its end.
    pub(crate) fn job_in(&self, rounds: &str) -> JobReport {
        let begun = coordinate::begin(&self.repository, &self.options(rounds)).unwrap();
        let mut report = begun.wait(&CancelFlag::new(), &mut |_| ());
        begun.settle(&self.repository, &mut report).unwrap();
        report
    }
}
