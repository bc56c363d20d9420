//! The master of one cluster during one term: one lock over the leader's state, and the calls on it.

mod administration;
mod requests;

use crate::{
    error::{MasterError, MasterResult},
    leader::{
        leader_state::{LeaderState, MasterOptions},
        map_message::map_message,
        shared_state::SharedState,
        staleness::{self, SeenCounters},
    },
    tables::{
        cluster_map::ClusterMap,
        meta_store::{ClusterRow, LeaseHolder, LeaseOutcome, MetaError, MetaStore, PoolConfig, setting},
    },
};
use copal_proto::messages;
use parking_lot::Mutex;
use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

/// Result of opening a cluster.
pub enum OpenedMaster {
    /// A term began.
    Leads(Box<Master>),
    /// Another master leads.
    Follows {
        /// Time until its lease ends if it is not renewed, ms of the database's clock.
        left_ms: u64,
    },
}

/// The master of one cluster during one term.
pub struct Master {
    uuid: [u8; 16],
    term: u64,
    pub(crate) state: Mutex<LeaderState>,
    shared: Arc<SharedState>,
    address: Mutex<String>,
}

impl Master {
    /// Creates a cluster in an empty database.
    /// # Errors
    /// `Denied`: the database has a cluster. `Meta`.
    pub fn create_cluster(meta: &mut dyn MetaStore, uuid: [u8; 16], pool: PoolConfig) -> MasterResult<()> {
        if meta.cluster()?.is_some() {
            let reason = "the database holds a cluster already; start the master without --new".to_owned();
            return Err(MasterError::Denied(reason));
        }
        Ok(meta.create_cluster(uuid, pool)?)
    }

    /// Begins a term of the cluster in a database.
    /// # Errors
    /// `Denied`: the database has no cluster, or another master leads it. `StaleTables`. `Meta`.
    pub fn open(meta: Box<dyn MetaStore>, options: MasterOptions) -> MasterResult<Master> {
        match Master::open_as(meta, Master::draw_holder()?, options)? {
            OpenedMaster::Leads(master) => Ok(*master),
            OpenedMaster::Follows { left_ms } => Err(MasterError::Denied(format!(
                "another master leads; its lease ends in {} s",
                left_ms.div_ceil(1000)
            ))),
        }
    }

    /// Draws a random identity for this start of a master.
    /// # Errors
    /// The operating system gives no randomness.
    pub fn draw_holder() -> MasterResult<LeaseHolder> {
        let mut holder = [0; 24];
        getrandom::fill(&mut holder).map_err(|error| MetaError::Failed(error.to_string()))?;
        Ok(LeaseHolder(holder))
    }

    /// Begins a term of the cluster in a database, unless another master leads it.
    /// # Errors
    /// `Denied`: the database has no cluster. `StaleTables`. `Meta`.
    pub fn open_as(
        mut meta: Box<dyn MetaStore>,
        holder: LeaseHolder,
        options: MasterOptions,
    ) -> MasterResult<OpenedMaster> {
        let none = || {
            MasterError::Denied(
                "the database holds no cluster; put a copy of a lost one back with `copal meta restore`, or make a new \
                 cluster with --new"
                    .to_owned(),
            )
        };
        meta.cluster()?.ok_or_else(none)?;
        if let Some(reason) =
            meta.settings()?.remove(setting::STALE_TABLES).filter(|_| !options.after_restore)
        {
            return Err(MasterError::StaleTables(reason));
        }
        let term = match meta.lead(holder)? {
            LeaseOutcome::Mine { term } => term,
            LeaseOutcome::Theirs { left_ms } => return Ok(OpenedMaster::Follows { left_ms }),
        };
        if let Some(servers) = options.first_servers {
            meta.set_setting(setting::FIRST_SERVERS, Some(&servers.to_string()))?;
        }
        let unmarked = meta.unmark_all()?;
        if unmarked > 0 {
            tracing::warn!(
                volumes = unmarked,
                "the previous master ended during removals; these volumes are kept"
            );
        }
        // Read again: from here on, no other master changes it.
        let cluster = meta.cluster()?.ok_or_else(none)?;
        Ok(OpenedMaster::Leads(Box::new(Master::load(meta, cluster, term, options)?)))
    }

    /// Reads the tables at the begin of a term.
    fn load(
        meta: Box<dyn MetaStore>,
        cluster: ClusterRow,
        term: u64,
        options: MasterOptions,
    ) -> MasterResult<Master> {
        let uuid = cluster.uuid;
        let state = LeaderState::load(meta, cluster, term, options)?;
        let shared = Arc::clone(&state.shared);
        Ok(Master { uuid, term, state: Mutex::new(state), shared, address: Mutex::default() })
    }

    /// Renews the lease; false: another master leads, or may. Blocks.
    /// # Errors
    /// `Meta`: the outcome is unknown.
    pub fn renew(&self) -> MasterResult<bool> {
        Ok(self.state.lock().tables.renew()?)
    }

    /// Whether the leadership ends unless its lease is renewed.
    pub fn has_lease(&self) -> bool {
        self.state.lock().tables.has_lease()
    }

    /// Checks the tables against counters that data servers have seen.
    /// # Errors
    /// `StaleTables`: a server has seen a newer term or a newer map. This is recorded in the tables; no term
    /// begins before an administrator accepts them. `Meta`.
    pub fn check_staleness(&self, seen: &[SeenCounters]) -> MasterResult<()> {
        staleness::check_staleness(&mut self.state.lock(), seen)
    }

    /// Whether a data server has reported a newer term or a newer map, so that this term must end.
    pub fn is_stale(&self) -> bool {
        self.shared.is_stale.load(Ordering::Acquire)
    }

    /// Begins a term above all counters that data servers have seen:
    /// - Versions and terms are raised.
    /// - A member has missed operations if another one of its group was in sync in a newer epoch, or if its
    ///   server does not answer.
    /// - A disk that was in sync in a newer epoch than all members in the tables is a member again.
    /// # Errors
    /// `Denied`: another master has the database by now. `Meta`.
    pub fn raise_counters(self, seen: &[SeenCounters], now_ms: u64) -> MasterResult<Master> {
        let mut state = self.state.into_inner();
        let term = staleness::raise_counters(&mut state, seen, now_ms)?;
        let cluster =
            state.tables.cluster()?.ok_or_else(|| MetaError::Failed("it holds no cluster".to_owned()))?;
        Master::load(state.tables, cluster, term, state.options)
    }

    /// Addresses of all masters.
    pub fn masters(&self) -> Vec<String> {
        self.state.lock().masters.clone()
    }

    /// Address of this master; empty before [`Master::register_address`].
    pub fn address(&self) -> String {
        self.address.lock().clone()
    }

    /// Sets and adds this master's own address.
    /// # Errors
    /// `Meta`.
    pub fn register_address(&self, address: &str) -> MasterResult<()> {
        address.clone_into(&mut self.address.lock());
        self.add_master(address)
    }

    /// Adds the address of a master.
    /// # Errors
    /// `Meta`.
    pub fn add_master(&self, address: &str) -> MasterResult<()> {
        let mut state = self.state.lock();
        if !state.masters.iter().any(|known| known == address) {
            state.tables.add_master(address)?;
            state.masters.push(address.to_owned());
        }
        Ok(())
    }

    /// The cluster.
    pub fn uuid(&self) -> [u8; 16] {
        self.uuid
    }

    /// Number of the term.
    pub fn term(&self) -> u64 {
        self.term
    }

    /// A copy of the present map.
    pub fn map(&self) -> ClusterMap {
        self.state.lock().map.clone()
    }

    /// Changes since a version of the map; waits up to `wait` if there are none. Blocks.
    pub fn map_since(&self, since: u64, wait: Duration, now_ms: u64) -> messages::Map {
        let mut state = self.state.lock();
        if state.map.version <= since && !wait.is_zero() {
            self.shared.watchers.wait_while_for(&mut state, |state| state.map.version <= since, wait);
        }
        map_message(&state, since, now_ms)
    }

    /// Calls `hook` after each change of the map; only the first hook counts. It must not call the master.
    pub fn on_change(&self, hook: impl Fn() + Send + Sync + 'static) {
        self.shared.watchers.set_hook(Box::new(hook));
    }

    /// Wakes all threads that wait for a new map, for a process that ends.
    pub fn wake_waiters(&self) {
        self.shared.watchers.notify_all();
    }
}
