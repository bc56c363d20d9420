//! The master itself: one lock over database and map, and who waits for the map to change.

use crate::leader::clock_state::Clocks;
use crate::leader::server_activity::{Changed, Watch};
use crate::names::writer_leases::{Lease, Leases, NoLease};
use crate::recovery::recovery_state::Recovery;
use crate::tables::cluster_map::ClusterMap;
use crate::tables::meta_store::{ClusterRow, Holder, Lead, MetaError, MetaStore, Pool, QuotaRow, setting};
use copal_volume::{VolumeError, VolumeId};
use parking_lot::Mutex;
use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, AtomicI64},
    time::Duration,
};

/// Times and counts of a cluster.
#[derive(Clone, Copy, Debug)]
pub struct MasterOptions {
    /// A server is taken for failed when it was silent so long.
    pub failed_after_ms: u64,
    /// A failed server is given up, and its groups are copied from others, after so long.
    pub permanent_after_ms: u64,
    /// So many groups are copied at once, at least one; `None`: half as many as there are servers.
    pub copies_at_once: Option<usize>,
    /// The groups of a new cluster get their members when so many servers have joined; `None`: as said
    /// before, or as many as there are copies.
    pub first_servers: Option<usize>,
    /// Tables that are a copy, or older than what data servers have heard of, are taken all the same
    /// ([`Master::rise`]).
    pub after_restore: bool,
}

impl Default for MasterOptions {
    fn default() -> MasterOptions {
        MasterOptions {
            failed_after_ms: 10_000,
            permanent_after_ms: 30 * 60_000,
            copies_at_once: None,
            first_servers: None,
            after_restore: false,
        }
    }
}

/// Why the master did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum MasterError {
    /// What was asked for cannot be.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// The database failed.
    #[error(transparent)]
    Meta(#[from] MetaError),
    /// The tables are older than what data servers have heard of, or a copy that was put back: nobody leads
    /// by them.
    #[error(
        "the tables of the cluster are not the newest: {0}. Put back newer ones; or, if these are the newest that there are, \
         start the master with --after-restore while all data servers run: it goes on above all that was lost"
    )]
    Older(String),
    /// Whoever asked is not who it says, or has no right to.
    #[error("denied: {0}")]
    Denied(String),
}

/// Result of the master's calls.
pub type Mastered<T> = Result<T, MasterError>;

pub(crate) struct Reign {
    pub(crate) meta: Box<dyn MetaStore>,
    pub(crate) map: ClusterMap,
    /// Volumes that are gone and that somebody has still to be told of, and the version of the map since
    /// when.
    pub(crate) gone: Vec<(VolumeId, u64)>,
    /// When these were looked through last.
    pub(crate) forgot_ms: u64,
    /// Volumes that have a quota.
    pub(crate) quotas: Vec<QuotaRow>,
    pub(crate) watches: BTreeMap<u32, Watch>,
    pub(crate) clocks: Clocks,
    /// Clients that were taken away, and when; those of long ago are left out.
    pub(crate) removed_clients: Vec<(String, u64)>,
    pub(crate) volumes_by_group: Vec<u64>,
    /// Copies that wait and run.
    pub(crate) recovery: Recovery,
    /// Addresses of all masters.
    pub(crate) masters: Vec<String>,
    /// Servers that a new cluster waits for: those that join later hold nothing before groups are moved to
    /// them.
    pub(crate) first_servers: usize,
}

/// What came of opening a cluster.
pub enum Opened {
    /// A reign began.
    Leads(Box<Master>),
    /// Another master leads.
    Follows {
        /// Until its lease ends if it is not renewed, ms of the database's clock.
        left_ms: u64,
    },
}

/// The master of one cluster, in its reign.
pub struct Master {
    pub(crate) options: MasterOptions,
    pub(crate) uuid: [u8; 16],
    pub(crate) term: u64,
    pub(crate) reign: Mutex<Reign>,
    pub(crate) leases: Mutex<Leases>,
    address: Mutex<String>,
    pub(crate) is_older: AtomicBool,
    /// How far the reference is ahead of the ruler, for those who ask without the lock.
    pub(crate) reference_ahead_ms: AtomicI64,
    /// The clock of a data server was heard of.
    pub(crate) has_heard_clock: AtomicBool,
    pub(crate) changed: Changed,
}

impl Master {
    /// Makes a cluster in an empty database.
    /// # Errors
    /// `Denied`: there is one already. `Meta`.
    pub fn found(meta: &mut dyn MetaStore, uuid: [u8; 16], pool: Pool) -> Mastered<()> {
        if meta.cluster()?.is_some() {
            let reason = "the database holds a cluster already; start the master without --new".to_owned();
            return Err(MasterError::Denied(reason));
        }
        Ok(meta.found(uuid, pool)?)
    }

    /// Begins a reign over the cluster in a database.
    /// # Errors
    /// `Denied`: there is none, or another master leads it. `Meta`.
    pub fn open(meta: Box<dyn MetaStore>, options: MasterOptions) -> Mastered<Master> {
        match Master::open_as(meta, Master::draw_holder()?, options)? {
            Opened::Leads(master) => Ok(*master),
            Opened::Follows { left_ms } => Err(MasterError::Denied(format!(
                "another master leads; its lease ends in {} s",
                left_ms.div_ceil(1000)
            ))),
        }
    }

    /// Draws who this start of a master is.
    /// # Errors
    /// The operating system gives no randomness.
    pub fn draw_holder() -> Mastered<Holder> {
        let mut holder = [0; 24];
        getrandom::fill(&mut holder).map_err(|error| MetaError::Failed(error.to_string()))?;
        Ok(Holder(holder))
    }

    /// Begins a reign over the cluster in a database, unless another master leads it.
    /// # Errors
    /// `Denied`: there is no cluster. `Older`. `Meta`.
    pub fn open_as(mut meta: Box<dyn MetaStore>, holder: Holder, options: MasterOptions) -> Mastered<Opened> {
        let none = || {
            MasterError::Denied(
                "the database holds no cluster; put a copy of a lost one back with `copal meta restore`, or make a new \
                 cluster with --new"
                    .to_owned(),
            )
        };
        meta.cluster()?.ok_or_else(none)?;
        if let Some(reason) = meta.settings()?.remove(setting::OLDER).filter(|_| !options.after_restore) {
            return Err(MasterError::Older(reason));
        }
        let term = match meta.lead(holder)? {
            Lead::Mine { term } => term,
            Lead::Theirs { left_ms } => return Ok(Opened::Follows { left_ms }),
        };
        if let Some(servers) = options.first_servers {
            meta.set(setting::FIRST_SERVERS, Some(&servers.to_string()))?;
        }
        let unmarked = meta.unmark_all()?;
        if unmarked > 0 {
            tracing::warn!(
                volumes = unmarked,
                "volumes were being removed when the master ended; they are there again"
            );
        }
        // As it is now that nobody else changes it.
        let cluster = meta.cluster()?.ok_or_else(none)?;
        Ok(Opened::Leads(Box::new(Master::load(meta, cluster, term, options)?)))
    }

    /// Reads what the tables have, for a reign that has begun.
    pub(crate) fn load(
        mut meta: Box<dyn MetaStore>,
        cluster: ClusterRow,
        term: u64,
        options: MasterOptions,
    ) -> Mastered<Master> {
        let masters = meta.masters()?;
        let settings = meta.settings()?;
        let said = settings.get(setting::FIRST_SERVERS);
        let said: usize = said.and_then(|number| number.parse().ok()).unwrap_or_default();
        let first_servers = said.max(cluster.pool.replicas.into());
        let (servers, groups, missed) = (meta.servers()?, meta.groups()?, meta.missed()?);
        let map = ClusterMap::new(cluster.pool, cluster.map_version, servers, groups, missed);
        let (gone, quotas) = (meta.gone(0)?, meta.quotas(0)?);
        let volumes_by_group = meta.volumes_by_group()?.into_iter().map(|(_, count)| count).collect();
        let mut recovery = Recovery { copies_at_once: options.copies_at_once, ..Recovery::default() };
        recovery.take_up(&mut *meta)?;
        let reign = Reign {
            meta,
            map,
            gone,
            forgot_ms: 0,
            quotas,
            watches: BTreeMap::new(),
            clocks: Clocks::default(),
            removed_clients: removed_clients(&settings),
            volumes_by_group,
            recovery,
            masters,
            first_servers,
        };
        Ok(Master {
            options,
            uuid: cluster.uuid,
            term,
            reign: Mutex::new(reign),
            leases: Mutex::default(),
            address: Mutex::default(),
            is_older: AtomicBool::new(false),
            reference_ahead_ms: AtomicI64::new(0),
            has_heard_clock: AtomicBool::new(false),
            changed: Changed::default(),
        })
    }

    /// Renews the lease; false: another master leads, or may. Blocks.
    /// # Errors
    /// `Meta`: it is not known.
    pub fn renew(&self) -> Mastered<bool> {
        Ok(self.reign.lock().meta.renew()?)
    }

    /// Whether the lease ends unless it is renewed.
    pub fn has_lease(&self) -> bool {
        self.reign.lock().meta.has_lease()
    }

    /// Addresses of all masters.
    pub fn masters(&self) -> Vec<String> {
        self.reign.lock().masters.clone()
    }

    /// Where this master is reached, once it has said so.
    pub fn address(&self) -> String {
        self.address.lock().clone()
    }

    /// Adds this master's own address.
    /// # Errors
    /// `Meta`.
    pub fn be_reached_at(&self, address: &str) -> Mastered<()> {
        address.clone_into(&mut self.address.lock());
        self.add_master(address)
    }

    /// Adds the address of a master.
    /// # Errors
    /// `Meta`.
    pub fn add_master(&self, address: &str) -> Mastered<()> {
        let mut reign = self.reign.lock();
        if !reign.masters.iter().any(|known| known == address) {
            reign.meta.add_master(address)?;
            reign.masters.push(address.to_owned());
        }
        Ok(())
    }

    /// The cluster.
    pub fn uuid(&self) -> [u8; 16] {
        self.uuid
    }

    /// Number of the reign.
    pub fn term(&self) -> u64 {
        self.term
    }

    /// The map as it is now.
    pub fn map(&self) -> ClusterMap {
        self.reign.lock().map.clone()
    }

    /// Gives a client the right to write below a path.
    /// # Errors
    /// Somebody else has it.
    pub fn take_lease(&self, path: &str, holder: &str, now_ms: u64) -> Result<Lease, NoLease> {
        self.leases.lock().take(self.term, path, holder, now_ms)
    }

    /// Renews that right.
    /// # Errors
    /// It has ended.
    pub fn renew_lease(&self, path: &str, lease: &Lease, now_ms: u64) -> Result<Lease, NoLease> {
        self.leases.lock().renew(path, lease, now_ms)
    }

    /// When the right to write with this number ends, ms of the master's clock; `None`: it has, or is
    /// another's.
    pub fn lease_ends(&self, path: &str, number: u64, now_ms: u64) -> Option<u64> {
        self.leases.lock().ends(path, number, now_ms)
    }

    /// Gives a lease back.
    pub fn release_lease(&self, path: &str, number: u64) {
        self.leases.lock().release(path, number);
    }

    /// What changed since a version of the map; waits for it up to `wait` when nothing did. Blocks.
    pub fn map_since(&self, since: u64, wait: Duration, now_ms: u64) -> copal_proto::messages::Map {
        let mut reign = self.reign.lock();
        if reign.map.version <= since && !wait.is_zero() {
            self.changed.wait_while_for(&mut reign, |reign| reign.map.version <= since, wait);
        }
        reign.delta(since, self.term, now_ms)
    }

    /// Calls `hook` whenever the map has changed, whoever changed it; only the first hook counts. It must not
    /// call back.
    pub fn on_change(&self, hook: impl Fn() + Send + Sync + 'static) {
        self.changed.set_hook(Box::new(hook));
    }

    /// Wakes whoever waits for the map, for a process that ends.
    pub fn wake_all(&self) {
        self.changed.notify_all();
    }
}

impl Reign {
    /// The map's part that is newer than `since`; all of it for 0.
    pub(crate) fn delta(&self, since: u64, term: u64, now_ms: u64) -> copal_proto::messages::Map {
        let disks = self.map.servers.values().filter(|server| server.version > since);
        let disk = |server: &crate::tables::meta_store::ServerRow| copal_proto::messages::Disk {
            disk: server.disk,
            server: server.name.clone(),
            address: server.address.clone(),
            server_uuid: bytes::Bytes::copy_from_slice(&server.server_uuid),
            version: server.version,
        };
        let view = |view: copal_volume::group::View| {
            let mut message = copal_proto::of_view(&view);
            let copy = self.recovery.queue.running().find(|start| start.group == view.group);
            for member in &mut message.members {
                let source = copy.filter(|start| start.target.0 == member.disk);
                member.source = source.map_or(0, |start| start.source.0);
                let missed = self.map.missed.get(&(view.group, member.disk));
                member.missed = missed.copied().unwrap_or_default();
            }
            message
        };
        // Who has just become a member was never told of what is older.
        let has_new_members = |vid: VolumeId| {
            let row = self.map.groups.get(&vid.birth_group());
            row.is_some_and(|row| row.version > since)
        };
        copal_proto::messages::Map {
            version: self.map.version,
            term,
            views: self.map.views_since(since).map(view).collect(),
            disks: disks.map(disk).collect(),
            whole: since == 0,
            now_ms,
            masters: self.masters.clone(),
            limits: self
                .quotas
                .iter()
                .filter(|quota| quota.version > since || has_new_members(quota.vid))
                .map(|quota| copal_proto::messages::VolumeLimit {
                    volume: quota.vid.0,
                    quota_bytes: quota.bytes,
                })
                .collect(),
            gone_volumes: self
                .gone
                .iter()
                .filter(|(vid, version)| *version > since || has_new_members(*vid))
                .map(|(vid, _)| vid.0)
                .collect(),
        }
    }
}

/// Clients that were taken away, and when, as settings of the cluster tell.
fn removed_clients(settings: &BTreeMap<String, String>) -> Vec<(String, u64)> {
    let prefix = setting::removed_client("");
    let removed = settings.iter().filter_map(|(key, at_ms)| {
        let name = key.strip_prefix(&prefix)?;
        Some((name.to_owned(), at_ms.parse().ok()?))
    });
    removed.collect()
}
