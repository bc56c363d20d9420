//! A cluster, as one client sees it: the map that it follows, the connections that it keeps, the ids that it
//! draws.

use crate::net::connection::{CallError, Connection, EncodedRequest};
use crate::net::connection_pool::ConnectionPool;
use crate::net::errors::volume_error;
use crate::net::machine;
use crate::net::map_cache::MapCache;
use crate::net::masters::Masters;
use crate::net::profile::ClientProfile;
use crate::net::tls::{TlsCredentials, TlsError, TlsIdentity, name_of_server};
use crate::net::tls_time::CertificateClock;
use crate::operation::transfer::Choice;
use crate::permits::permit_cache::Permits;
use crate::read::read_latency::Pace;
use bytes::Bytes;
use copal_proto::{
    CallCost, Method,
    administration::{AdminRequest, reply_of},
    messages,
};
use copal_volume::{
    FileId, FileIds, OpId, VolumeError, VolumeId,
    group::{DiskId, GroupId, MAX_OP_AHEAD_MS, View},
};
use parking_lot::{Mutex, MutexGuard};
use prost::Message;
use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::task::AbortHandle;

/// How long one question for the map stays open.
const WATCH: Duration = Duration::from_secs(10);
/// A member is reported once in so long.
const SUSPECT_EVERY: Duration = Duration::from_millis(500);
/// Between two looks at something that may change.
pub(crate) const SOON: Duration = Duration::from_millis(100);

/// Why a client has no cluster to talk to.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The profile's certificate or key cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The operating system starts no threads.
    #[error(transparent)]
    Threads(#[from] std::io::Error),
    /// The operating system gives no randomness.
    #[error("the operating system gives no randomness: {0}")]
    Random(String),
    /// No master answers.
    #[error("no master of the cluster answers: {0}")]
    Masters(#[source] CallError),
}

/// See the module. Cheap to clone.
#[derive(Clone)]
pub struct Cluster {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) masters: Masters,
    pub(crate) connections: ConnectionPool,
    credentials: TlsCredentials,
    map: Arc<MapCache>,
    ids: Mutex<FileIds>,
    suspected: Mutex<BTreeMap<DiskId, Instant>>,
    /// Volumes that are known to have been made, and where they were found; empty: that is not known.
    known: Mutex<HashMap<VolumeId, String>>,
    /// Counts reads, so that each begins at another member.
    turn: AtomicUsize,
    pub(crate) transfer: Choice,
    /// How fast members answer reads.
    pace: Pace,
    /// What the client may do, as far as it has to show it.
    pub(crate) permits: Permits,
    /// Whether an operation ended without anybody knowing how.
    pub(crate) is_unsettled: AtomicBool,
    follows: AbortHandle,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.follows.abort();
    }
}

impl Cluster {
    /// Connects with a profile, and learns the map. To be called inside a runtime.
    /// # Errors
    /// `Tls`, `Random`; `Masters`: none answers until the deadline.
    pub async fn connect(profile: &ClientProfile, deadline: Duration) -> Result<Cluster, ConnectError> {
        let identity = TlsIdentity {
            authority: profile.authority.clone(),
            certificate: profile.certificate.clone(),
            key: profile.key.clone(),
        };
        let clock = CertificateClock::default();
        let credentials = TlsCredentials::new(&identity)?;
        let tls = credentials.client_tls_with_clock(clock.clone())?;
        let connections = ConnectionPool::new(tls);
        let masters = Masters::new(&profile.masters, connections.clone());
        let map = Arc::new(MapCache::default());
        let first = messages::WatchMap { since: 0, wait_ms: 0 };
        let asked = machine::now();
        let first: messages::Map =
            masters.call(Method::WatchMap, &first, deadline).await.map_err(ConnectError::Masters)?;
        map.apply_answer(&first, asked);
        clock.set_clock(Arc::clone(&map) as _);
        masters.learn(&first.masters);
        let drawn = machine::draw().map_err(|error| ConnectError::Random(error.to_string()))?;
        let permits = Permits::new(profile.client.clone());
        let incarnation = permits.draw_from(drawn);
        let follows = machine::spawn(follow(masters.clone(), Arc::clone(&map))).abort_handle();
        let inner = Inner {
            masters,
            connections,
            credentials,
            map,
            ids: Mutex::new(FileIds::new(incarnation, 0)),
            suspected: Mutex::default(),
            known: Mutex::default(),
            turn: AtomicUsize::default(),
            transfer: Choice::default(),
            pace: Pace::default(),
            permits,
            is_unsettled: AtomicBool::new(false),
            follows,
        };
        Ok(Cluster { inner: Arc::new(inner) })
    }

    /// Addresses of all masters that are known.
    pub fn masters(&self) -> Vec<String> {
        self.inner.masters.addresses()
    }

    /// The map that this client follows.
    pub fn map(&self) -> &MapCache {
        &self.inner.map
    }

    /// Asks for another certificate with the name that this client has, for the key of a signing request,
    /// PEM.
    /// # Errors
    /// As the master says.
    pub async fn renew(&self, signing_request: &str, deadline: Duration) -> Result<String, CallError> {
        let request = messages::Renew { signing_request: signing_request.to_owned() };
        let masters = &self.inner.masters;
        let renewed: messages::Renewed = masters.call(Method::Renew, &request, deadline).await?;
        Ok(renewed.certificate)
    }

    /// Shows the certificate of a renewed profile from here on.
    /// # Errors
    /// It cannot be used; the one before it is shown still.
    pub fn replace_certificate(&self, profile: &ClientProfile) -> Result<(), TlsError> {
        self.inner.credentials.replace(&TlsIdentity {
            authority: profile.authority.clone(),
            certificate: profile.certificate.clone(),
            key: profile.key.clone(),
        })
    }

    /// Sends an operator's request to the master.
    /// # Errors
    /// As the master says; `OtherRelease`: it does not know the request, or its reply lacks a field.
    pub async fn administer<R: AdminRequest>(
        &self,
        request: &R,
        deadline: Duration,
    ) -> Result<R::Reply, CallError> {
        let reply: messages::AdministrationReply =
            self.inner.masters.call(R::METHOD, request, deadline).await?;
        reply_of::<R>(&reply).map_err(|error| CallError::OtherRelease(error.to_string()))
    }

    /// Calls the server of a disk; again, after a while, when it has no room.
    /// # Errors
    /// All of them.
    pub async fn call<T: Message + Default>(
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

    /// As [`Cluster::call`], with a permit that the caller has.
    pub(crate) async fn call_permitted<T: Message + Default>(
        &self,
        disk: DiskId,
        method: Method,
        request: EncodedRequest,
        end: Instant,
    ) -> Result<T, CallError> {
        let connection = self.reach(disk, method, &request.message, end).await?;
        let left = end.saturating_duration_since(machine::now());
        connection.call_encoded(method, request, left).await
    }

    /// As [`Cluster::call`], and whoever has no room is not asked again.
    pub(crate) async fn call_once<T: Message + Default>(
        &self,
        disk: DiskId,
        method: Method,
        message: Bytes,
        end: Instant,
    ) -> Result<T, CallError> {
        let connection = self.reach(disk, method, &message, end).await?;
        let permit = self.permit(&message, end).await?;
        let left = end.saturating_duration_since(machine::now());
        connection.call_once(method, EncodedRequest { message, permit }, left).await
    }

    /// The connection to the server of a disk for such a call.
    pub(crate) async fn reach(
        &self,
        disk: DiskId,
        method: Method,
        message: &Bytes,
        end: Instant,
    ) -> Result<Connection, CallError> {
        let Some(place) = self.inner.map.place(disk) else {
            return Err(CallError::Unreachable {
                address: format!("disk {disk}"),
                reason: "the map does not say where it is".to_owned(),
            });
        };
        let name = name_of_server(&place.server_uuid);
        let class = CallCost::of(method, message).class;
        let connect = self.inner.connections.connect(&place.address, name, class);
        let connected = tokio::time::timeout_at(end.into(), connect).await;
        connected.map_err(|_| CallError::Deadline)?
    }

    /// The view of a volume's group; waits for one until `end`.
    pub(crate) async fn view(&self, vid: VolumeId, end: Instant) -> Result<View, VolumeError> {
        let group = vid.birth_group();
        if vid == VolumeId::ROOT || group == GroupId(0) || self.inner.map.is_gone(vid) {
            return Err(VolumeError::VolumeGone);
        }
        if !self.inner.known.lock().contains_key(&vid) {
            self.check_known(vid, end).await?;
        }
        let mut watch = self.inner.map.watch();
        loop {
            watch.mark_unchanged();
            if let Some(view) = self.inner.map.view(group) {
                return Ok(view);
            }
            let left = end.saturating_duration_since(machine::now());
            if tokio::time::timeout(left, watch.changed()).await.is_err() {
                return Err(VolumeError::Deadline {
                    reason: format!("nobody tells who keeps group {group}"),
                });
            }
        }
    }

    /// A volume that never was is as one that is gone.
    async fn check_known(&self, vid: VolumeId, end: Instant) -> Result<(), VolumeError> {
        let request = messages::Known { volume: vid.0 };
        let left = end.saturating_duration_since(machine::now());
        let asked = self.inner.masters.call(Method::Known, &request, left).await;
        let reply: messages::KnownReply = asked.map_err(volume_error)?;
        match reply.known {
            true => {
                self.remember(vid, String::new());
                Ok(())
            }
            false => Err(VolumeError::VolumeGone),
        }
    }

    pub(crate) fn remember(&self, vid: VolumeId, path: String) {
        const MOST: usize = 100_000;
        let mut known = self.inner.known.lock();
        if known.len() >= MOST {
            known.clear();
        }
        known.insert(vid, path);
    }

    /// Where a volume was found last; empty: that is not known.
    pub(crate) fn path_of(&self, vid: VolumeId) -> String {
        self.inner.known.lock().get(&vid).cloned().unwrap_or_default()
    }

    /// Group and epoch as they are known now, for requests that mean no view in particular.
    pub(crate) fn place_of(&self, vid: VolumeId) -> (u32, u64) {
        let group = vid.birth_group();
        let epoch = self.inner.map.view(group).map_or(0, |view| view.epoch.0);
        (group.0, epoch)
    }

    pub(crate) fn pace(&self) -> &Pace {
        &self.inner.pace
    }

    /// Reads for which a second member was asked, because the first took longer than most.
    pub fn hedged_reads(&self) -> u64 {
        self.inner.pace.hedged()
    }

    pub(crate) fn next_turn(&self) -> usize {
        self.inner.turn.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn draw_file(&self) -> FileId {
        let (mut ids, now_ms) = self.ids();
        ids.draw_file(now_ms)
    }

    pub(crate) fn draw_op(&self) -> OpId {
        let (mut ids, now_ms) = self.ids();
        ids.draw_op(now_ms)
    }

    pub(crate) fn draw_op_above(&self, other: OpId) -> OpId {
        let (mut ids, now_ms) = self.ids();
        ids.draw_op_above(now_ms, other)
    }

    /// The generator of ids, and the time. One that has run far ahead of the cluster's clock, since that was
    /// wrong for a while or a file from its future was deleted, would draw nothing but what members refuse:
    /// another takes its place.
    fn ids(&self) -> (MutexGuard<'_, FileIds>, u64) {
        let now_ms = self.inner.map.now_ms();
        let mut ids = self.inner.ids.lock();
        if ids.high_ms() > now_ms.saturating_add(MAX_OP_AHEAD_MS / 2)
            && let Ok(drawn) = machine::draw()
        {
            let incarnation = self.inner.permits.draw_from(drawn);
            *ids = FileIds::new(incarnation, 0);
        }
        (ids, now_ms)
    }

    /// Tells the master, in the background, that a member does not answer.
    pub(crate) fn suspect(&self, disk: DiskId) {
        {
            let mut suspected = self.inner.suspected.lock();
            let last = suspected.get(&disk);
            if last.is_some_and(|last| machine::since(*last) < SUSPECT_EVERY) {
                return;
            }
            suspected.insert(disk, machine::now());
        }
        let masters = self.inner.masters.clone();
        machine::spawn(async move {
            let request = messages::Suspect { disk: disk.0, evidence: "a call was not answered".to_owned() };
            // A hint: the master finds out by itself, later.
            let _: Result<messages::Done, _> =
                masters.call(Method::Suspect, &request, Duration::from_secs(2)).await;
        });
    }
}

/// Follows the map for as long as the client is there.
async fn follow(masters: Masters, map: Arc<MapCache>) {
    loop {
        let request = messages::WatchMap { since: map.version(), wait_ms: WATCH.as_millis() as u32 };
        let asked = machine::now();
        match masters.call_waiting::<messages::Map>(Method::WatchMap, &request, WATCH, WATCH * 2).await {
            Ok(changed) => {
                masters.learn(&changed.masters);
                map.apply_answer(&changed, asked);
            }
            Err(error) => {
                tracing::debug!(%error, "the map could not be followed");
                tokio::time::sleep(SOON).await;
            }
        }
    }
}
