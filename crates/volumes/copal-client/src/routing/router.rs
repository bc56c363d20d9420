//! Routes calls: finds the view of a volume and the server of a disk, connects, and adds the permit.
//!
//! Not here: which answers count (`read`, `operation`).

use crate::{
    net::{
        connection::{CallError, Connection, EncodedRequest},
        connection_pool::ConnectionPool,
        errors::volume_error,
        machine,
        map_cache::MapCache,
        masters::Masters,
        tls::name_of_server,
    },
    permits::permit_source::PermitSource,
    routing::known_volumes::KnownVolumes,
};
use bytes::Bytes;
use copal_proto::{CallCost, Method, messages};
use copal_volume::{
    VolumeError, VolumeId,
    group::{DiskId, GroupId, View},
};
use parking_lot::Mutex;
use prost::Message;
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::task::AbortHandle;

/// Longest time that the master holds one request for the map open.
const WATCH: Duration = Duration::from_secs(10);
/// Least time between two reports of the same disk.
const SUSPECT_INTERVAL: Duration = Duration::from_millis(500);
/// Pause before a retry of something that may have changed.
pub(crate) const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// See the module. Cheap to clone; the last clone ends the task that follows the map.
#[derive(Clone)]
pub(crate) struct CallRouter {
    state: Arc<RouterState>,
}

struct RouterState {
    masters: Masters,
    connections: ConnectionPool,
    map: Arc<MapCache>,
    permits: PermitSource,
    volumes: KnownVolumes,
    /// When each disk was last reported to the master.
    suspected: Mutex<BTreeMap<DiskId, Instant>>,
    /// Counts reads and chains, so that each begins at another replica.
    turn: AtomicUsize,
    follower: AbortHandle,
}

impl Drop for RouterState {
    fn drop(&mut self) {
        self.follower.abort();
    }
}

impl CallRouter {
    /// Starts to follow the map. Must run inside a runtime.
    pub(crate) fn new(
        masters: Masters,
        connections: ConnectionPool,
        map: Arc<MapCache>,
        permits: PermitSource,
    ) -> CallRouter {
        let follower = machine::spawn(follow(masters.clone(), Arc::clone(&map))).abort_handle();
        let state = RouterState {
            masters,
            connections,
            map,
            permits,
            volumes: KnownVolumes::default(),
            suspected: Mutex::default(),
            turn: AtomicUsize::default(),
            follower,
        };
        CallRouter { state: Arc::new(state) }
    }

    pub(crate) fn masters(&self) -> &Masters {
        &self.state.masters
    }

    pub(crate) fn connections(&self) -> &ConnectionPool {
        &self.state.connections
    }

    pub(crate) fn map(&self) -> &MapCache {
        &self.state.map
    }

    pub(crate) fn permits(&self) -> &PermitSource {
        &self.state.permits
    }

    pub(crate) fn volumes(&self) -> &KnownVolumes {
        &self.state.volumes
    }

    /// A number that grows with each call.
    pub(crate) fn next_turn(&self) -> usize {
        self.state.turn.fetch_add(1, Ordering::Relaxed)
    }

    /// Calls the server of a disk. While the server answers that it is busy, the call is repeated until `end`.
    /// # Errors
    /// All of them.
    pub(crate) async fn call<T: Message + Default>(
        &self,
        disk: DiskId,
        method: Method,
        request: &impl Message,
        end: Instant,
    ) -> Result<T, CallError> {
        let message = Bytes::from(request.encode_to_vec());
        let permit = self.permit(&message, end).await?;
        self.call_permitted(disk, method, EncodedRequest { message, permit }, end).await
    }

    /// As [`CallRouter::call`], with a permit of the caller.
    pub(crate) async fn call_permitted<T: Message + Default>(
        &self,
        disk: DiskId,
        method: Method,
        request: EncodedRequest,
        end: Instant,
    ) -> Result<T, CallError> {
        let connection = self.connect(disk, method, &request.message, end).await?;
        let left = end.saturating_duration_since(machine::now());
        connection.call_encoded(method, request, left).await
    }

    /// As [`CallRouter::call`], without a repetition when the server is busy.
    pub(crate) async fn call_once<T: Message + Default>(
        &self,
        disk: DiskId,
        method: Method,
        message: Bytes,
        end: Instant,
    ) -> Result<T, CallError> {
        let connection = self.connect(disk, method, &message, end).await?;
        let permit = self.permit(&message, end).await?;
        let left = end.saturating_duration_since(machine::now());
        connection.call_once(method, EncodedRequest { message, permit }, left).await
    }

    /// The connection to the server of a disk, for the class of this call.
    pub(crate) async fn connect(
        &self,
        disk: DiskId,
        method: Method,
        message: &Bytes,
        end: Instant,
    ) -> Result<Connection, CallError> {
        let Some(place) = self.state.map.place(disk) else {
            return Err(CallError::Unreachable {
                address: format!("disk {disk}"),
                reason: "the map has no address of it".to_owned(),
            });
        };
        let name = name_of_server(&place.server_uuid);
        let class = CallCost::of(method, message).class;
        let connect = self.state.connections.connect(&place.address, name, class);
        let connected = tokio::time::timeout_at(end.into(), connect).await;
        connected.map_err(|_| CallError::Deadline)?
    }

    /// The permit that an encoded request to a data server needs; empty: none.
    pub(crate) async fn permit(&self, request: &Bytes, end: Instant) -> Result<Bytes, CallError> {
        let path = |vid| self.state.volumes.path(vid);
        self.state.permits.permit(request, path, end).await
    }

    /// The permit that requests about a volume need; empty: none.
    pub(crate) async fn permit_for(&self, volume: u64, end: Instant) -> Result<Bytes, CallError> {
        let path = |vid| self.state.volumes.path(vid);
        self.state.permits.permit_for(volume, path, end).await
    }

    /// The view of a volume's group; waits for one until `end`.
    pub(crate) async fn view(&self, vid: VolumeId, end: Instant) -> Result<View, VolumeError> {
        let group = vid.birth_group();
        if vid == VolumeId::ROOT || group == GroupId(0) || self.state.map.is_removed(vid) {
            return Err(VolumeError::VolumeGone);
        }
        if !self.state.volumes.contains(vid) {
            self.check_exists(vid, end).await?;
        }
        let mut watch = self.state.map.watch();
        loop {
            watch.mark_unchanged();
            if let Some(view) = self.state.map.view(group) {
                return Ok(view);
            }
            let left = end.saturating_duration_since(machine::now());
            if tokio::time::timeout(left, watch.changed()).await.is_err() {
                return Err(VolumeError::Deadline {
                    reason: format!("no master has sent the members of group {group}"),
                });
            }
        }
    }

    /// Asks the master whether a volume was ever made. One that was not counts as removed.
    async fn check_exists(&self, vid: VolumeId, end: Instant) -> Result<(), VolumeError> {
        let request = messages::Known { volume: vid.0 };
        let left = end.saturating_duration_since(machine::now());
        let answer = self.state.masters.call(Method::Known, &request, left).await;
        let reply: messages::KnownReply = answer.map_err(volume_error)?;
        match reply.known {
            true => {
                self.state.volumes.insert(vid, String::new());
                Ok(())
            }
            false => Err(VolumeError::VolumeGone),
        }
    }

    /// Current group and epoch of a volume, for requests that do not depend on a view.
    pub(crate) fn group_and_epoch(&self, vid: VolumeId) -> (u32, u64) {
        let group = vid.birth_group();
        let epoch = self.state.map.view(group).map_or(0, |view| view.epoch.0);
        (group.0, epoch)
    }

    /// Reports to the master, in the background, that a disk's server does not answer.
    pub(crate) fn suspect(&self, disk: DiskId) {
        {
            let mut suspected = self.state.suspected.lock();
            let last = suspected.get(&disk);
            if last.is_some_and(|last| machine::since(*last) < SUSPECT_INTERVAL) {
                return;
            }
            suspected.insert(disk, machine::now());
        }
        let masters = self.state.masters.clone();
        machine::spawn(async move {
            let request = messages::Suspect { disk: disk.0, evidence: "a call was not answered".to_owned() };
            // Only a hint: without it the master notices the silence later by itself.
            let _: Result<messages::Done, _> =
                masters.call(Method::Suspect, &request, Duration::from_secs(2)).await;
        });
    }
}

/// Follows the map until the task is aborted.
async fn follow(masters: Masters, map: Arc<MapCache>) {
    loop {
        let request = messages::WatchMap { since: map.version(), wait_ms: WATCH.as_millis() as u32 };
        let asked = machine::now();
        match masters.call_long_poll::<messages::Map>(Method::WatchMap, &request, WATCH, WATCH * 2).await {
            Ok(changed) => {
                masters.learn(&changed.masters);
                map.apply_answer(&changed, asked);
            }
            Err(error) => {
                tracing::debug!(%error, "the map could not be followed; it is asked for again");
                tokio::time::sleep(RETRY_PAUSE).await;
            }
        }
    }
}
