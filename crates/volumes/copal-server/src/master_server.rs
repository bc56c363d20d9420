//! The master behind a socket: who may ask for what, waiting for the map, probing who does not answer.

use crate::{
    answers::{blocking, encoded, read},
    authority::Authority,
    listener::{Handler, Peer},
    server_clocks,
    status::Status,
    token::{JoinToken, Joins, hash_of_secret},
};
use bytes::Bytes;
use copal_client::{CallError, ConnectionPool, deadline_passed, machine, name_of_server, without_deadline};
use copal_master::{
    DiskMedium, LeaseRefusal, Master, MasterError, PathLease, SeenCounters, ServerHeartbeat, ServerJoin,
    WRITER_LEASE_MS,
};
use copal_proto::{
    CallClass, Method,
    administration::ClusterStatus,
    messages::{self, WriterLeaseReply, failure::Code, writer_lease::Action},
    role,
};
use copal_volume::{
    VolumeError, VolumeId,
    group::{Epoch, GroupId, Incarnation},
};
use parking_lot::Mutex;
use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{sync::Notify, time::timeout_at};

/// Between two looks at who is silent.
const TICK: Duration = Duration::from_millis(250);
/// How long one probe of a server may take; two follow each other.
const PROBE: Duration = Duration::from_millis(250);
/// How long a member may take to learn that a volume is removed.
const TO_TELL: Duration = Duration::from_secs(5);
/// A removal that is not decided so soon is undone.
const TO_DECIDE: Duration = Duration::from_secs(30);
/// Bytes of the name of a rack or a zone at most.
pub const SITE_NAME_BYTES: usize = 100;
/// Groups of which a member says in one call that it is whole.
pub(crate) const MOST_WHOLE: usize = 1000;

/// A data server's clock, as it told it before a reign answered anybody.
pub(crate) struct SeenClock {
    disk: u32,
    /// Ahead of the ruler, ms.
    ahead_ms: i64,
}

/// See the module.
pub struct MasterServer {
    pub(crate) master: Master,
    pub(crate) authority: Authority,
    /// Where this master is reached.
    address: String,
    pub(crate) connections: ConnectionPool,
    changed: Arc<Notify>,
    probing: Mutex<HashSet<u32>>,
    clock: (u64, Instant),
    /// When the database was last written to or asked without an error.
    database_at: Mutex<Option<Instant>>,
}

impl MasterServer {
    /// A master that is reached at `address`, and calls data servers over `connections`.
    pub fn new(
        master: Master,
        authority: Authority,
        address: String,
        connections: ConnectionPool,
    ) -> Arc<MasterServer> {
        let changed = Arc::new(Notify::new());
        let told = Arc::clone(&changed);
        master.on_change(move || told.notify_waiters());
        Arc::new(MasterServer {
            master,
            authority,
            address,
            connections,
            changed,
            probing: Mutex::default(),
            clock: (machine::wall_ms(), machine::now()),
            database_at: Mutex::default(),
        })
    }

    /// Lets time pass until the task is dropped: who is silent fails, what is gone for good is replaced.
    pub async fn watch_time(self: Arc<Self>) {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let (server, ahead_ms) = (Arc::clone(&self), self.own_ahead_ms());
            let ticked = blocking(move || {
                server.master.judge_clocks(ahead_ms, server.now_ms())?;
                Ok(server.master.tick(server.now_ms())?)
            });
            match ticked.await {
                Ok(()) => *self.database_at.lock() = Some(machine::now()),
                Err(error) => tracing::error!(text = error.text(), "the master cannot write its database"),
            }
        }
    }

    /// Since when the database has not answered; `None`: it never has.
    pub(crate) fn database_age(&self) -> Option<Duration> {
        (*self.database_at.lock()).map(machine::since)
    }

    /// How the cluster is.
    pub(crate) fn status(&self) -> ClusterStatus {
        self.master.status(self.now_ms())
    }

    /// Draws a token with which one data server may join, or one master.
    /// # Errors
    /// No randomness, or the database failed.
    pub fn draw_token(&self, joiner: Joins) -> Result<JoinToken, String> {
        let mut addresses = self.master.masters();
        if addresses.is_empty() {
            addresses.push(self.address.clone());
        }
        let token = JoinToken::draw(&addresses, self.authority.certificate())?;
        let kept = self.master.add_token(token.hash(joiner), self.now_ms());
        kept.map_err(|error| error.to_string())?;
        Ok(token)
    }

    /// The ruler against which clocks are measured: this machine's clock when the reign began, carried on by
    /// one that never jumps.
    fn ruler_ms(&self) -> u64 {
        self.clock.0 + machine::since(self.clock.1).as_millis() as u64
    }

    /// The clock of the cluster: the ruler, moved to the median of all clocks.
    pub(crate) fn now_ms(&self) -> u64 {
        self.ruler_ms().saturating_add_signed(self.master.reference_ahead_ms())
    }

    /// How far this machine's clock is ahead of the ruler.
    fn own_ahead_ms(&self) -> i64 {
        machine::wall_ms() as i64 - self.ruler_ms() as i64
    }

    /// Goes by the clocks that data servers have told before anybody is answered.
    pub(crate) fn go_by_clocks(&self, seen: &[SeenClock]) -> Result<(), MasterError> {
        let clocks: Vec<(u32, i64)> = seen.iter().map(|seen| (seen.disk, seen.ahead_ms)).collect();
        self.master.record_clocks(&clocks, self.own_ahead_ms(), self.now_ms())?;
        Ok(())
    }

    async fn watch_map(&self, request: messages::WatchMap) -> Result<Bytes, Status> {
        const LONGEST: Duration = Duration::from_secs(30);
        let wait = Duration::from_millis(request.wait_ms.into()).min(LONGEST);
        let end = tokio::time::Instant::now() + wait;
        let reference = self.master.reference_ahead_ms();
        loop {
            let changed = self.changed.notified();
            let mut changed = std::pin::pin!(changed);
            // From here on no change is missed.
            changed.as_mut().enable();
            let map = self.master.map_since(request.since, Duration::ZERO, self.now_ms());
            // Who waits for the map goes by the clock that it tells.
            let is_moved = self.master.reference_ahead_ms() != reference;
            if map.version > request.since || is_moved || timeout_at(end, changed).await.is_err() {
                return Ok(encoded(&map));
            }
        }
    }

    fn beat(&self, request: messages::Heartbeat, peer: &Peer) -> Result<Bytes, Status> {
        let server_uuid = uuid(&request.server_uuid)?;
        require(peer.is(&name_of_server(&server_uuid)), "a heartbeat comes from who it is about")?;
        let groups = request.groups.iter().filter_map(|state| {
            let role = role(state.role)?;
            Some((GroupId(state.group), Epoch(state.epoch), role))
        });
        let since = request.map_version;
        let size = |size: &messages::GroupSize| (GroupId(size.group), size.bytes);
        let beat = ServerHeartbeat {
            server_uuid,
            disk_uuid: uuid(&request.disk_uuid)?,
            incarnation: Incarnation(request.incarnation),
            pid: request.pid,
            address: request.address.clone(),
            used_bytes: request.used_bytes,
            capacity_bytes: request.capacity_bytes,
            groups: groups.collect(),
            failed: Some(request.failed.clone()).filter(|failed| !failed.is_empty()),
            is_in_sync: request.recovered,
            map_version: since,
            copied_bytes: request.copied_bytes,
            sizes: request.sizes.iter().map(size).collect(),
            recovery_bytes_per_s: request.recovery_bytes_per_s,
            medium: DiskMedium::of_word(&request.medium),
            is_full: request.full,
            is_host_full: request.host_full,
            room_bytes: request.room_bytes,
            seen_term: request.seen_term,
            seen_version: request.seen_version,
            zone: place(&request.zone)?,
            rack: place(&request.rack)?,
            clock_ahead_ms: server_clocks::of_heartbeat(
                &request,
                self.master.term(),
                self.ruler_ms(),
                self.master.reference_ahead_ms(),
            ),
            has_future_seals: request.future_seals,
        };
        let disk = self.master.heartbeat(beat, self.now_ms())?;
        let map = self.master.map_since(since, Duration::ZERO, self.now_ms());
        let verdict = self.master.clock_verdict(disk);
        Ok(encoded(&messages::HeartbeatReply {
            map: Some(map),
            term: self.master.term(),
            disk,
            clock_ms: self.ruler_ms(),
            clock_off_ms: verdict.off_ms,
            clock_wrong: verdict.is_wrong,
            shut_out: verdict.is_shut_out,
            removed_clients: self.master.removed_clients(self.now_ms()),
        }))
    }

    fn become_whole(&self, request: messages::BecomeWhole, peer: &Peer) -> Result<Bytes, Status> {
        let server = self.master.map().server(request.disk).cloned();
        let is_who_it_says = server.is_some_and(|server| peer.is(&name_of_server(&server.server_uuid)));
        require(is_who_it_says, "a member says of itself that it is whole")?;
        if request.groups.len() > MOST_WHOLE {
            let reason = "a member tells of no more than 1,000 groups at once";
            return Err(Status::new(Code::Invalid, reason));
        }
        let groups = request.groups.iter();
        let groups: Vec<(GroupId, Epoch)> =
            groups.map(|told| (GroupId(told.group), Epoch(told.epoch))).collect();
        let refused = self.master.record_in_sync(request.disk, &groups)?;
        Ok(encoded(&messages::BecameWhole { refused: refused.into_iter().map(|group| group.0).collect() }))
    }

    fn join(&self, request: messages::Join) -> Result<Bytes, Status> {
        let server_uuid = uuid(&request.server_uuid)?;
        copal_volume::check_volume_name(&request.name)?;
        check_reachable(&request.address)?;
        let now_ms = self.now_ms();
        let hash = hash_of_secret(&request.secret, Joins::DataServer);
        self.master.take_token(hash, now_ms)?;
        let name = name_of_server(&server_uuid).to_str().into_owned();
        let signed = self.authority.sign(&request.signing_request, &name, now_ms);
        let certificate = signed.map_err(|error| Status::new(Code::Invalid, error.to_string()))?;
        let joiner = ServerJoin {
            name: request.name,
            address: request.address,
            server_uuid,
            disk_uuid: uuid(&request.disk_uuid)?,
            capacity_bytes: request.capacity_bytes,
            zone: place(&request.zone)?,
            rack: place(&request.rack)?,
        };
        let disk = self.master.join(&joiner, now_ms)?;
        Ok(encoded(&messages::Joined {
            cluster: Bytes::copy_from_slice(&self.master.uuid()),
            certificate,
            authority: self.authority.certificate().to_owned(),
            server: disk,
            disk,
        }))
    }

    /// Another certificate with the name that the peer has, for a key that it has drawn.
    fn renew(&self, request: &messages::Renew, peer: &Peer) -> Result<Bytes, Status> {
        let is_server = || {
            let map = self.master.map();
            let mut servers = map.servers().filter(|server| !server.state.is_lost());
            servers.any(|server| peer.is(&name_of_server(&server.server_uuid)))
        };
        // Whether a named client is one still was looked at before.
        require(
            peer.is_client() || is_server(),
            "a certificate is given to clients and data servers of the cluster",
        )?;
        let signed = self.authority.sign(&request.signing_request, &peer.name, self.now_ms());
        let certificate = signed.map_err(|error| Status::new(Code::Invalid, error.to_string()))?;
        Ok(encoded(&messages::Renewed { certificate }))
    }

    /// Another master joins: with the authority's key it is as much the cluster as this one.
    fn join_master(&self, request: messages::JoinMaster) -> Result<Bytes, Status> {
        let hash = hash_of_secret(&request.secret, Joins::Master);
        if request.address.is_empty() || request.address.len() > 500 {
            return Err(Status::new(Code::Invalid, "a master has an address"));
        }
        check_reachable(&request.address)?;
        self.master.take_token(hash, self.now_ms())?;
        self.master.add_master(&self.address)?;
        self.master.add_master(&request.address)?;
        Ok(encoded(&messages::JoinedMaster {
            cluster: Bytes::copy_from_slice(&self.master.uuid()),
            authority: self.authority.certificate().to_owned(),
            authority_key: self.authority.key().to_owned(),
            masters: self.master.masters(),
        }))
    }

    /// Wakes whoever waits for the map: this master leads no more.
    pub(crate) fn wake_all(&self) {
        self.master.wake_waiters();
        self.changed.notify_waiters();
    }

    /// Somebody got no answer from a server. One whose port refuses connections twice has failed; one that
    /// only is slow has until its silence is too long.
    async fn suspect(self: Arc<Self>, disk: u32) {
        let server = self.master.map().server(disk).cloned();
        let Some(server) = server.filter(|server| !server.is_away()) else {
            return;
        };
        if !self.probing.lock().insert(disk) {
            return;
        }
        let mut refusals = 0;
        for _ in 0..2 {
            match tokio::time::timeout(PROBE, self.probe(&server)).await {
                Ok(Err(CallError::Unreachable { .. })) => refusals += 1,
                Ok(Err(CallError::Broken { .. })) => refusals += 1,
                _ => break,
            }
            tokio::time::sleep(PROBE / 2).await;
        }
        self.probing.lock().remove(&disk);
        if refusals == 2 {
            let failed = blocking({
                let master = Arc::clone(&self);
                move || Ok(master.master.mark_failed(disk, "refuses connections", master.now_ms())?)
            });
            if let Err(error) = failed.await {
                tracing::error!(text = error.text(), "the master cannot write its database");
            }
        }
    }

    /// Gives a server up. Whether it is away is looked at now, not when its silence is long enough.
    pub(crate) async fn lose(self: Arc<Self>, name: String) -> Result<(), Status> {
        let found = self.master.map().server_named(&name).cloned();
        if let Some(server) = found.filter(|server| !server.is_away()) {
            Arc::clone(&self).suspect(server.disk).await;
        }
        blocking(move || Ok(self.master.give_up_server(&name, self.now_ms())?)).await
    }

    /// What data servers have heard of, as far as they answer in time; of all that were not given up, or of
    /// those that are there by the tables.
    pub(crate) async fn ask_what_was_seen(
        &self,
        of_all: bool,
        patience: Duration,
    ) -> (Vec<SeenCounters>, Vec<SeenClock>) {
        let asked =
            self.master.map().servers().cloned().collect::<Vec<_>>().into_iter().filter(
                |server| match of_all {
                    true => !server.state.is_lost(),
                    false => !server.is_away(),
                },
            );
        let answers: Arc<Mutex<(Vec<SeenCounters>, Vec<SeenClock>)>> = Arc::default();
        let cluster = Bytes::copy_from_slice(&self.master.uuid());
        let asked = asked.map(|server| {
            let (connections, cluster) = (self.connections.clone(), cluster.clone());
            let answers = Arc::clone(&answers);
            let ruler = self.clock;
            machine::spawn(async move {
                let name = name_of_server(&server.server_uuid);
                let request = messages::WhatSeen { cluster };
                let asked_at = machine::now();
                let asked_ms = ruler.0 + (asked_at - ruler.1).as_millis() as u64;
                let asked = async {
                    let connection = connections.connect(&server.address, name, CallClass::Control).await?;
                    connection.call::<messages::SeenReply>(Method::WhatSeen, &request, patience).await
                };
                if let Ok(Ok(seen)) = tokio::time::timeout(patience, asked).await {
                    let groups = seen.groups.iter();
                    let mut answers = answers.lock();
                    let took = machine::since(asked_at);
                    let ahead_ms = server_clocks::of_answer(seen.clock_ms, asked_ms, took);
                    answers.1.extend(ahead_ms.map(|ahead_ms| SeenClock { disk: server.disk, ahead_ms }));
                    answers.0.push(SeenCounters {
                        disk: server.disk,
                        term: seen.term,
                        version: seen.version,
                        groups: groups.map(|state| (GroupId(state.group), Epoch(state.epoch))).collect(),
                    });
                }
            })
        });
        for task in asked.collect::<Vec<_>>() {
            // One that failed has told nothing.
            let _ = task.await;
        }
        std::mem::take(&mut *answers.lock())
    }

    async fn probe(&self, server: &copal_master::ServerRow) -> Result<(), CallError> {
        let name = name_of_server(&server.server_uuid);
        let connection = self.connections.connect(&server.address, name, CallClass::Control).await?;
        let messages::Ping {} = connection.call(Method::Ping, &messages::Ping {}, PROBE).await?;
        Ok(())
    }

    /// Makes a volume; of a quota its members hear before anybody can write.
    async fn mkdir(self: Arc<Self>, request: messages::Mkdir) -> Result<Bytes, Status> {
        let this = Arc::clone(&self);
        let options = request.options.clone();
        let is_obeyed = |wish: &messages::VolumeWish| wish.replicas == 0 && wish.class.is_empty();
        if !options.as_ref().is_none_or(is_obeyed) {
            let reason = "this cluster chooses neither replicas nor disks for a single volume; make it without that wish";
            return Err(Status::new(Code::Denied, reason));
        }
        let quota = options.filter(|options| options.has_quota).map(|options| options.quota_bytes);
        let (parent, name) = (request.parent, request.name);
        let vid = blocking(move || Ok(this.master.mkdir(&parent, &name, quota)?));
        let vid = vid.await?;
        if quota.is_some() {
            // Whoever does not hear it now learns it from the map.
            let _ = self.tell_members(vid, messages::volume_state::State::Live).await;
        }
        Ok(encoded(&messages::Resolved { volume: vid.0, options: request.options }))
    }

    /// Removes a volume: its members take no more creates, then it is looked at, then its name and its files
    /// go.
    async fn rmdir(self: Arc<Self>, request: messages::Rmdir) -> Result<Bytes, Status> {
        let vid = VolumeId(request.volume);
        let (this, path) = (Arc::clone(&self), request.path);
        let begun = blocking(move || Ok(this.master.begin_rmdir(&path, vid)?));
        let removing = begun.await?;
        let began = machine::now();
        let told = self.tell_members(vid, messages::volume_state::State::Removing).await;
        let is_late = deadline_passed();
        let is_kept = match &told {
            // What members were told is forgotten after a minute.
            Ok(_) if machine::since(began) > TO_DECIDE || is_late => true,
            Ok(has_files) => *has_files && !request.with_files,
            Err(_) => true,
        };
        // What was begun is ended one way or the other, whoever waits for it.
        without_deadline(async move {
            let this = Arc::clone(&self);
            if is_kept {
                // A member that does not hear of it learns it from the map.
                let _ = self.tell_members(vid, messages::volume_state::State::Live).await;
                blocking(move || Ok(this.master.undo_rmdir(&removing)?)).await?;
                told?;
                if machine::since(began) > TO_DECIDE || is_late {
                    return Err(Status::new(
                        Code::Unavailable,
                        "the members took too long to answer; try again",
                    ));
                }
                return Err(VolumeError::NotEmpty.into());
            }
            blocking(move || Ok(this.master.rmdir(&removing)?)).await?;
            // Whoever is away learns it from the map.
            let _ = self.tell_members(vid, messages::volume_state::State::Gone).await;
            Ok(encoded(&messages::Done {}))
        })
        .await
    }

    /// Tells all members of a volume that are up; whether any has files of it.
    async fn tell_members(
        &self,
        vid: VolumeId,
        state: messages::volume_state::State,
    ) -> Result<bool, Status> {
        let group = vid.birth_group();
        let places = self.master.map().members_up(group);
        let quota = self.master.quota(vid);
        let request = messages::VolumeState {
            group: group.0,
            volume: vid.0,
            state: state.into(),
            term: self.master.term(),
            quota_bytes: quota.unwrap_or(0),
            has_quota: quota.is_some(),
        };
        let mut has_files = false;
        for server in places {
            let told = async {
                let name = name_of_server(&server.server_uuid);
                let connection = self.connections.connect(&server.address, name, CallClass::Control).await?;
                connection.call::<messages::VolumeStateReply>(Method::VolumeState, &request, TO_TELL).await
            };
            let reply = told.await.map_err(|error| {
                let name = &server.name;
                let text = format!("{name} does not answer, and has to: {error}; try again");
                Status::new(Code::Unavailable, text)
            })?;
            has_files |= reply.has_files;
        }
        Ok(has_files)
    }

    /// The right to write below a path: taken, renewed, given back.
    fn writer_lease(&self, request: messages::WriterLease) -> Result<Bytes, Status> {
        let now_ms = self.now_ms();
        let action = Action::try_from(request.action).unwrap_or_default();
        let messages::WriterLease { path, holder, number, .. } = request;
        let given = match action {
            Action::Take => self.master.take_lease(&path, &holder, now_ms),
            Action::Renew => {
                self.master.renew_lease(&path, &PathLease { number, holder, ends_ms: 0 }, now_ms)
            }
            Action::Release => {
                self.master.release_lease(&path, number);
                return Ok(encoded(&WriterLeaseReply::default()));
            }
            Action::Unspecified => {
                return Err(Status::new(Code::Invalid, "a lease is taken, renewed or released"));
            }
        };
        Ok(encoded(&match given {
            Ok(lease) => WriterLeaseReply {
                number: lease.number,
                milliseconds: WRITER_LEASE_MS,
                ..WriterLeaseReply::default()
            },
            Err(LeaseRefusal::Held { holder, seconds }) => {
                WriterLeaseReply { held_by: holder, seconds, ..WriterLeaseReply::default() }
            }
            Err(LeaseRefusal::Ended) => WriterLeaseReply::default(),
        }))
    }

    fn names(&self, method: Method, message: Bytes) -> Result<Bytes, Status> {
        match method {
            Method::Resolve => {
                let request: messages::Resolve = read(message)?;
                let vid = self.master.resolve(&request.path)?;
                Ok(encoded(&messages::Resolved { volume: vid.0, options: None }))
            }
            Method::Known => {
                let request: messages::Known = read(message)?;
                let known = self.master.was_created(VolumeId(request.volume));
                Ok(encoded(&messages::KnownReply { known }))
            }
            Method::Rename => {
                let request: messages::Rename = read(message)?;
                self.master.rename(&request.from, &request.to)?;
                Ok(encoded(&messages::Done {}))
            }
            Method::ListDirs => {
                const MOST: u32 = 10_000;
                let request: messages::ListDirs = read(message)?;
                let after = request.has_after.then_some(request.after.as_str());
                let limit = request.limit.min(MOST) as usize;
                let found = self.master.list(&request.parent, after, limit)?;
                let entry = |(name, vid): (String, VolumeId)| messages::DirEntry { name, volume: vid.0 };
                Ok(encoded(&messages::DirList { entries: found.into_iter().map(entry).collect() }))
            }
            _ => Err(Status::new(Code::Invalid, "a master does not answer that")),
        }
    }
}

impl Handler for MasterServer {
    const OF_STRANGERS: &'static [Method] = &[Method::Join, Method::JoinMaster];

    /// Not before a data server has told its clock: one clock that is wrong would refuse all servers, and so
    /// never be overruled.
    fn clock_ms(&self) -> Option<u64> {
        self.master.has_server_clock().then(|| self.now_ms())
    }

    async fn call(self: Arc<Self>, peer: Peer, method: Method, message: Bytes) -> Result<Bytes, Status> {
        if let Some(client) = peer.client_name() {
            let this = Arc::clone(&self);
            let (client, message) = (client.to_owned(), message.clone());
            blocking(move || this.check_client(&client, method, message)).await?;
        }
        match method {
            Method::Ping => Ok(encoded(&messages::Ping {})),
            Method::Permit => {
                let request = read(message)?;
                blocking(move || self.permit(&request, &peer)).await
            }
            Method::WatchMap => self.watch_map(read(message)?).await,
            Method::Suspect => {
                let request: messages::Suspect = read(message)?;
                machine::spawn(self.suspect(request.disk));
                Ok(encoded(&messages::Done {}))
            }
            Method::Heartbeat => {
                let request = read(message)?;
                blocking(move || self.beat(request, &peer)).await
            }
            Method::BecomeWhole => {
                let request = read(message)?;
                blocking(move || self.become_whole(request, &peer)).await
            }
            Method::Leading => Ok(encoded(&messages::Leading {})),
            Method::Renew => {
                let request = read(message)?;
                blocking(move || self.renew(&request, &peer)).await
            }
            Method::JoinMaster => {
                let request = read(message)?;
                blocking(move || self.join_master(request)).await
            }
            Method::Join => {
                let request = read(message)?;
                blocking(move || self.join(request)).await
            }
            Method::Rmdir => {
                require_any_client(&peer)?;
                self.rmdir(read(message)?).await
            }
            Method::Ask => Err(older_release()),
            Method::WriterLease => {
                require_any_client(&peer)?;
                let request = read(message)?;
                blocking(move || self.writer_lease(request)).await
            }
            method if Method::ADMINISTRATION.contains(&method) => {
                require_any_client(&peer)?;
                self.administer(method, message).await
            }
            Method::Mkdir => {
                require_any_client(&peer)?;
                self.mkdir(read(message)?).await
            }
            Method::Rename => {
                require_any_client(&peer)?;
                blocking(move || self.names(method, message)).await
            }
            other => blocking(move || self.names(other, message)).await,
        }
    }
}

/// A client sent a request as releases before this one did: in words.
fn older_release() -> Status {
    let own = env!("CARGO_PKG_VERSION");
    let text = format!("this command line is of an older release than the master: use that of release {own}");
    Status::new(Code::Denied, text)
}

/// Named clients were looked at before: they do this where they may.
fn require_any_client(peer: &Peer) -> Result<(), Status> {
    require(peer.is_client(), "this takes a client's certificate")
}

fn require(holds: bool, otherwise: &str) -> Result<(), Status> {
    match holds {
        true => Ok(()),
        false => Err(Status::new(Code::Denied, otherwise)),
    }
}

/// Refuses an address that says only that a process listens at every interface of its machine: all clients
/// would be told it.
fn check_reachable(address: &str) -> Result<(), Status> {
    let parsed = address.parse::<std::net::SocketAddr>();
    match parsed.is_ok_and(|at| at.ip().to_canonical().is_unspecified()) {
        false => Ok(()),
        true => Err(Status::new(
            Code::Invalid,
            format!(
                "no other machine reaches {address}; start the new process with --advertise and the address that others are to use"
            ),
        )),
    }
}

/// The name of a zone or a rack; none is empty.
fn place(name: &str) -> Result<String, Status> {
    let is_good = name.is_empty() || copal_volume::check_volume_name(name).is_ok();
    match is_good && name.len() <= SITE_NAME_BYTES {
        true => Ok(name.to_owned()),
        false => {
            Err(Status::new(Code::Invalid, "a zone or rack has a name of 100 bytes at most, without slashes"))
        }
    }
}

fn uuid(bytes: &[u8]) -> Result<[u8; 16], Status> {
    bytes.try_into().map_err(|_| Status::new(Code::Invalid, "an id has sixteen bytes"))
}
