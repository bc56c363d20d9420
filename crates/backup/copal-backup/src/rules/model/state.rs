//! State of the model: logs, store, and the operation of each host.

use super::backup::BackupRun;
use super::consolidate::{CleanUp, SweepJob};
use super::popular_gc::RemovalJob;
use super::prune::PruneJob;
use super::setup::{ModelSetup, StepsLeft};
use super::store::ModelStore;
use crate::catalog::fold::{LogEntry, LogState};
use crate::catalog::popular::{EnteredHost, PopularState};
use crate::catalog::record::Record;
use crate::catalog::vm::VmState;
use crate::keys::role::KeyId;
use crate::request::peers::HostKey;

pub(super) const HOSTS: usize = 2;

/// The key with which a host signs.
pub(super) fn host_key(host: usize) -> HostKey {
    HostKey([host as u8 + 1; 32])
}

/// The log of popular packs at the beginning, with all hosts entered.
fn popular() -> PopularState {
    let entered = |host| EnteredHost {
        host: host_key(host),
        key: KeyId([host as u8; 8]),
        entered_at: 0,
        removed_at: None,
    };
    PopularState { hosts: (0..HOSTS).map(entered).collect(), ..PopularState::default() }
}

/// Name of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum ModelLog {
    Vm(usize),
    Popular,
}

/// A record on its way to be number `number`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct PendingAppend {
    pub(super) log: ModelLog,
    pub(super) number: u64,
    pub(super) record: Record,
}

/// The operation of a host.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum HostJob {
    Idle,
    Backup(BackupRun),
    Prune(PruneJob),
    CleanUp(CleanUp),
    Sweep(SweepJob),
    Unneeded(RemovalJob),
    /// Removal of a retired VM's data.
    Removal(usize),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct FleetState {
    pub(super) vms: Vec<VmState>,
    pub(super) popular: PopularState,
    pub(super) store: ModelStore,
    pub(super) hosts: Vec<HostJob>,
    /// Appends of dead hosts. They take effect if no other record gets their number.
    pub(super) in_doubt: Vec<PendingAppend>,
    pub(super) left: StepsLeft,
    /// Number of sessions, and thus of snapshots.
    pub(super) sessions: u8,
    /// Violation that a repair left.
    pub(super) unrepaired: Option<&'static str>,
}

impl FleetState {
    pub(super) fn first(setup: &ModelSetup) -> FleetState {
        FleetState {
            vms: vec![VmState::default(); setup.vms],
            popular: popular(),
            store: ModelStore::default(),
            hosts: vec![HostJob::Idle; HOSTS],
            in_doubt: Vec::new(),
            left: setup.left,
            sessions: 0,
            unrepaired: None,
        }
    }

    /// Draws a new session id.
    pub(super) fn draw_session(&mut self) -> [u8; 16] {
        self.sessions += 1;
        [self.sessions; 16]
    }

    pub(super) fn next_number(&self, log: ModelLog) -> u64 {
        match log {
            ModelLog::Vm(vm) => self.vms[vm].next_number,
            ModelLog::Popular => self.popular.next_number,
        }
    }

    /// The append of a record behind everything that was read.
    pub(super) fn next(&self, log: ModelLog, record: Record) -> PendingAppend {
        let number = self.next_number(log);
        PendingAppend { log, number, record }
    }

    /// Creates a record, exclusively; returns whether it exists now.
    pub(super) fn append(&mut self, append: &PendingAppend) -> bool {
        if self.next_number(append.log) != append.number {
            return false;
        }
        let entry = LogEntry {
            number: append.number,
            // The store's clock is behind all other clocks.
            created_ms: 0,
            record: append.record.clone(),
        };
        match append.log {
            ModelLog::Vm(vm) => {
                self.vms[vm].apply(&entry);
                // A fenced session changes nothing any more, so it is dropped.
                self.vms[vm].fenced.clear();
                for job in &mut self.hosts {
                    if let HostJob::Prune(prune) = job
                        && prune.vm == vm
                    {
                        prune.notice(&entry);
                    }
                }
            }
            ModelLog::Popular => self.popular.apply(&entry),
        }
        true
    }
}
