//! State of the model: logs, store, and the operation of each host.

use super::backup::Backup;
use super::cleanup::{CleanUp, Sweep};
use super::prune::Prune;
use super::setup::{Left, Setup};
use super::store::Store;
use super::unneeded::Unneeded;
use crate::catalog::fold::{Entry, Fold};
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
pub(super) enum Log {
    Vm(usize),
    Popular,
}

/// A record on its way to be number `number`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Append {
    pub(super) log: Log,
    pub(super) number: u64,
    pub(super) record: Record,
}

/// The operation of a host.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Job {
    Idle,
    Backup(Backup),
    Prune(Prune),
    CleanUp(CleanUp),
    Sweep(Sweep),
    Unneeded(Unneeded),
    /// Removal of a retired VM's data.
    Removal(usize),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct State {
    pub(super) vms: Vec<VmState>,
    pub(super) popular: PopularState,
    pub(super) store: Store,
    pub(super) hosts: Vec<Job>,
    /// Appends of dead hosts. They take effect if no other record gets their number.
    pub(super) in_doubt: Vec<Append>,
    pub(super) left: Left,
    /// Number of sessions, and thus of snapshots.
    pub(super) sessions: u8,
    /// Violation that a repair left.
    pub(super) unrepaired: Option<&'static str>,
}

impl State {
    pub(super) fn first(setup: &Setup) -> State {
        State {
            vms: vec![VmState::default(); setup.vms],
            popular: popular(),
            store: Store::default(),
            hosts: vec![Job::Idle; HOSTS],
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

    pub(super) fn next_number(&self, log: Log) -> u64 {
        match log {
            Log::Vm(vm) => self.vms[vm].next_number,
            Log::Popular => self.popular.next_number,
        }
    }

    /// The append of a record behind everything that was read.
    pub(super) fn next(&self, log: Log, record: Record) -> Append {
        let number = self.next_number(log);
        Append { log, number, record }
    }

    /// Creates a record, exclusively; returns whether it exists now.
    pub(super) fn append(&mut self, append: &Append) -> bool {
        if self.next_number(append.log) != append.number {
            return false;
        }
        let entry = Entry {
            number: append.number,
            // The store's clock is behind all other clocks.
            created_ms: 0,
            record: append.record.clone(),
        };
        match append.log {
            Log::Vm(vm) => {
                self.vms[vm].apply(&entry);
                // A fenced session changes nothing any more, so it is dropped.
                self.vms[vm].fenced.clear();
                for job in &mut self.hosts {
                    if let Job::Prune(prune) = job
                        && prune.vm == vm
                    {
                        prune.notice(&entry);
                    }
                }
            }
            Log::Popular => self.popular.apply(&entry),
        }
        true
    }
}
