//! The replicas on a data server's disk: their store and epochs, the map, and the state of background tasks.
//!
//! Not here: heartbeats and views (`heartbeat`), resync (`group_resync`), operations of clients (`data`).

use crate::net::status::Status;
use crate::replica::damage::DamagedGroups;
use crate::replica::own_clock::OwnClock;
use crate::replica::peer_status::PeerReports;
use crate::replica::snapshots::DonorSnapshots;
use crate::replica::throttle::CopyThrottle;
use crate::security::access::AccessControl;
use crate::security::authority::AuthorityError;
use copal_client::{ConnectionPool, MapCache, Masters, current_deadline, machine, without_deadline};
use copal_data::{GroupMembership, GroupOperation, MemberIdentity, MemberStore, OperationError};
use copal_proto::{messages::failure::Code, of_view};
use copal_volume::{
    FileIds, VolumeError,
    group::{DiskId, Epoch, EpochMatch, GroupId, Role, Term, match_epoch},
};
use parking_lot::Mutex;
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, oneshot};

/// Space of a data server's store.
pub trait StoreSpace: Send + Sync + 'static {
    /// Used bytes and capacity.
    fn bytes(&self) -> (u64, u64);
}

/// The replicas on the disk of a data server. See the module.
pub(crate) struct ReplicaHost {
    pub(crate) store: MemberStore,
    pub(crate) identity: MemberIdentity,
    pub(crate) address: String,
    /// Zone and rack.
    pub(crate) place: (String, String),
    /// Kind of its disk: `hdd`, `ssd`; empty: not known.
    pub(crate) medium: String,
    pub(crate) space: Arc<dyn StoreSpace>,
    pub(crate) map: Arc<MapCache>,
    pub(crate) masters: Masters,
    pub(crate) connections: ConnectionPool,
    /// Number of the disk; 0 until the first heartbeat is answered.
    pub(crate) disk: AtomicU64,
    /// Version of the newest map whose views this server has entered.
    pub(crate) entered_version: AtomicU64,
    /// Group states not yet reported to the master.
    pub(crate) unreported: Mutex<Vec<GroupMembership>>,
    /// Held while views are entered: one map after the other.
    pub(crate) view_lock: tokio::sync::Mutex<()>,
    /// Time of the last acknowledged heartbeat.
    pub(crate) last_ack: Mutex<Option<Instant>>,
    /// Measurements of the own clock.
    pub(crate) clock: Mutex<OwnClock>,
    pub(crate) heartbeat_due: Notify,
    /// Set when a master refuses this server's certificate as expired.
    pub(crate) renewal_due: Notify,
    pub(crate) resync_due: Notify,
    /// Set when the list of masters has changed.
    pub(crate) masters_changed: Notify,
    pub(crate) snapshots: DonorSnapshots,
    pub(crate) throttle: CopyThrottle,
    pub(crate) damage: DamagedGroups,
    /// Latest gossip of other members.
    pub(crate) peer_status: PeerReports,
    /// Draws ids of this member's own operations: deletes of files that lose their name.
    pub(crate) ids: Mutex<FileIds>,
    pub(crate) access: AccessControl,
}

/// Addresses and trust anchor of a data server.
pub struct DataOptions {
    /// host:port.
    pub address: String,
    /// Certificate of the cluster's authority, PEM.
    pub authority: String,
    /// Limit of copies from and to other members, bytes a second.
    pub recovery_bytes_per_s: u64,
    /// Zone and rack; empty: not given.
    pub place: (String, String),
    /// Kind of its disk: `hdd`, `ssd`; empty: not known.
    pub medium: String,
}

/// State of a member when a read of its rows began.
#[derive(Clone, Copy)]
pub(crate) struct ReadBegin {
    pub(crate) membership: GroupMembership,
    repairs: u64,
}

impl ReplicaHost {
    /// The replicas of a store that has booted (`MemberStore::boot`).
    /// # Errors
    /// The authority's certificate cannot be read.
    pub(crate) fn new(
        store: MemberStore,
        identity: MemberIdentity,
        options: DataOptions,
        space: Box<dyn StoreSpace>,
        masters: Masters,
        connections: ConnectionPool,
    ) -> Result<ReplicaHost, AuthorityError> {
        let mut disk = [0; 8];
        disk.copy_from_slice(&identity.disk[..8]);
        let drawn = u64::from_be_bytes(disk) ^ identity.incarnation.0;
        let map = Arc::new(MapCache::default());
        store.follow_reference(Arc::clone(&map) as _);
        let space: Arc<dyn StoreSpace> = Arc::from(space);
        let watched = Arc::clone(&space);
        store.watch_room(move || watched.bytes());
        Ok(ReplicaHost {
            access: AccessControl::new(identity.cluster, &options.authority)?,
            peer_status: PeerReports::default(),
            ids: Mutex::new(FileIds::new(drawn, 0)),
            snapshots: DonorSnapshots::default(),
            throttle: CopyThrottle::new(options.recovery_bytes_per_s),
            damage: DamagedGroups::default(),
            store,
            identity,
            address: options.address,
            place: options.place,
            medium: options.medium,
            space,
            map,
            masters,
            connections,
            disk: AtomicU64::new(0),
            entered_version: AtomicU64::new(0),
            unreported: Mutex::default(),
            view_lock: tokio::sync::Mutex::default(),
            last_ack: Mutex::default(),
            clock: Mutex::default(),
            heartbeat_due: Notify::new(),
            renewal_due: Notify::new(),
            resync_due: Notify::new(),
            masters_changed: Notify::new(),
        })
    }

    /// Time since the last acknowledged heartbeat; `None`: there was none.
    pub(crate) fn heartbeat_age(&self) -> Option<Duration> {
        (*self.last_ack.lock()).map(machine::since)
    }

    /// Seed of digests: those of different clusters differ.
    pub(crate) fn digest_seed(&self) -> u64 {
        let mut seed = [0; 8];
        seed.copy_from_slice(&self.identity.cluster[..8]);
        u64::from_be_bytes(seed)
    }

    pub(crate) fn disk(&self) -> DiskId {
        DiskId(self.disk.load(Ordering::Relaxed) as u32)
    }

    /// Requires the epoch of a request that reads rows, and notes the member's state. The reader calls
    /// [`ReplicaHost::role_of_read`] when it has read.
    /// # Errors
    /// As [`ReplicaHost::require_epoch`].
    pub(crate) async fn begin_read(&self, group: GroupId, epoch: Epoch) -> Result<ReadBegin, Status> {
        let repairs = self.damage.repairs();
        Ok(ReadBegin { membership: self.require_epoch(group, epoch).await?, repairs })
    }

    /// Role under which the rows count that were read since `begin`. It is in sync only if the member was in
    /// sync all the time: a repair that began since then may have dropped rows before they were read (VOL-28).
    /// # Errors
    /// `Corrupt`, `Failed`.
    pub(crate) fn role_of_read(&self, begin: &ReadBegin) -> Result<Role, VolumeError> {
        let before = begin.membership;
        let now = self.store.membership(before.group)?;
        let is_steady =
            self.damage.repairs() == begin.repairs && now.is_some_and(|now| now.role.is_in_sync());
        match before.role.is_in_sync() && !is_steady {
            true => Ok(Role::Recovering),
            false => Ok(before.role),
        }
    }

    /// Requires the epoch of a request. If the request names a newer epoch, the map is fetched first.
    /// # Errors
    /// `Stale` with the newer view; `Newer`, `Unavailable`.
    pub(crate) async fn require_epoch(
        &self,
        group: GroupId,
        epoch: Epoch,
    ) -> Result<GroupMembership, Status> {
        if self.entered_version.load(Ordering::Acquire) == 0 {
            // A server that still uses its pre-restart view may accept a second file under a taken name. If
            // every replica did so, none would be in sync.
            return Err(Status::new(Code::Busy, "this server has entered no view since it was started"));
        }
        for is_last in [false, true] {
            let membership = self.store.membership(group)?;
            let own = membership.map_or(Epoch(0), |membership| membership.epoch);
            match (match_epoch(own, epoch), membership) {
                (EpochMatch::Run, Some(membership)) => return Ok(membership),
                (EpochMatch::Stale, _) => return Err(self.stale(group)),
                _ if is_last => break,
                // The request names a newer view, or this disk is a new member. Views are entered for all
                // groups, so the deadline of this request does not apply.
                _ => without_deadline(self.refresh_map()).await,
            }
        }
        match self.map.view(group) {
            Some(view) if view.epoch > epoch => Err(self.stale(group)),
            _ => Err(Status::new(
                Code::Newer,
                "the request names a newer view than this server and the master have",
            )),
        }
    }

    pub(crate) fn stale(&self, group: GroupId) -> Status {
        let view = self.map.view(group).map(|view| of_view(&view));
        Status::new(Code::Stale, "there is a newer view of the group").with_view(view)
    }

    /// Applies an operation of this server itself and waits for it.
    pub(crate) async fn apply(
        &self,
        group: GroupId,
        epoch: Epoch,
        operation: GroupOperation,
    ) -> Result<Result<Role, OperationError>, Status> {
        self.apply_if(group, epoch, operation, || Ok(())).await
    }

    /// Submits an operation and waits for its result. The queue of its group is served on a thread that may
    /// block.
    pub(crate) async fn apply_if(
        &self,
        group: GroupId,
        epoch: Epoch,
        operation: GroupOperation,
        may_run: impl Fn() -> Result<(), OperationError> + Send + 'static,
    ) -> Result<Result<Role, OperationError>, Status> {
        let (sender, reply) = oneshot::channel();
        let end = current_deadline();
        let may_run = move || match end.is_none_or(|end| machine::now() < end) {
            true => may_run(),
            false => Err(OperationError::Cancelled),
        };
        let submitted = self.store.submit_if(group, epoch, operation, may_run, move |outcome| {
            // Fails if the caller has given up.
            let _ = sender.send(outcome);
        });
        if let Some(work) = submitted? {
            machine::spawn_blocking(move || work.run());
        }
        reply.await.map_err(|_| Status::new(Code::Internal, "the operation was dropped; try again"))
    }

    /// Reports damage, which is then repaired from another member.
    pub(crate) fn report_damage(&self, group: GroupId, error: &VolumeError) {
        if error.is_corruption() {
            self.damage.report(group);
        }
    }

    /// Requires an order to be of the newest known term. Blocks.
    pub(crate) fn require_term(&self, term: Term) -> Result<(), Status> {
        match self.store.accept_term(term)? {
            true => Ok(()),
            false => Err(Status::new(Code::Fenced, "the order is of an older term")),
        }
    }
}
