//! The master server: timers, tokens, waiting for the map, the cluster's clock.

use crate::master::server_clocks;
use crate::net::messages::{blocking, encoded};
use crate::net::status::Status;
use crate::security::authority::CertificateAuthority;
use crate::security::token::{JoinRole, JoinToken};
use bytes::Bytes;
use copal_client::{ConnectionPool, machine, name_of_server};
use copal_master::{Master, MasterError, SeenCounters};
use copal_proto::{CallClass, Method, administration::ClusterStatus, messages};
use copal_volume::group::{Epoch, GroupId};
use parking_lot::Mutex;
use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{sync::Notify, time::timeout_at};

/// Interval of scans for silent servers.
const TICK_INTERVAL: Duration = Duration::from_millis(250);

/// Clock of a data server, measured before the leader answers any call.
pub(crate) struct ReportedClock {
    disk: u32,
    /// Lead over the ruler, ms.
    ahead_ms: i64,
}

/// A master that serves calls. See the module.
pub struct MasterServer {
    pub(crate) master: Master,
    pub(crate) authority: CertificateAuthority,
    /// The address of this master.
    pub(super) address: String,
    pub(crate) connections: ConnectionPool,
    changed: Arc<Notify>,
    pub(super) probing: Mutex<HashSet<u32>>,
    clock: (u64, Instant),
    /// Time of the last access to the database without an error.
    database_at: Mutex<Option<Instant>>,
}

impl MasterServer {
    /// A master at `address` that calls data servers over `connections`.
    pub fn new(
        master: Master,
        authority: CertificateAuthority,
        address: String,
        connections: ConnectionPool,
    ) -> Arc<MasterServer> {
        let changed = Arc::new(Notify::new());
        let waiters = Arc::clone(&changed);
        master.on_change(move || waiters.notify_waiters());
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

    /// Runs the timers of the cluster until the task is dropped: silent servers fail, lost replicas are
    /// replaced.
    pub async fn run_ticks(self: Arc<Self>) {
        let mut ticks = tokio::time::interval(TICK_INTERVAL);
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

    /// Time since the database last answered; `None`: it never has.
    pub(crate) fn database_age(&self) -> Option<Duration> {
        (*self.database_at.lock()).map(machine::since)
    }

    /// Status of the cluster.
    pub(crate) fn status(&self) -> ClusterStatus {
        self.master.status(self.now_ms())
    }

    /// Makes a token that admits one data server or one master.
    /// # Errors
    /// The operating system gives no randomness, or the database failed.
    pub fn draw_token(&self, joiner: JoinRole) -> Result<JoinToken, String> {
        let mut addresses = self.master.masters();
        if addresses.is_empty() {
            addresses.push(self.address.clone());
        }
        let token = JoinToken::draw(&addresses, self.authority.certificate())?;
        let kept = self.master.add_token(token.hash(joiner), self.now_ms());
        kept.map_err(|error| error.to_string())?;
        Ok(token)
    }

    /// The ruler that clocks are measured against: this machine's clock at the begin of the term, continued
    /// by a monotonic clock.
    pub(super) fn ruler_ms(&self) -> u64 {
        self.clock.0 + machine::since(self.clock.1).as_millis() as u64
    }

    /// The cluster's clock: the ruler, shifted to the median of all clocks.
    pub(crate) fn now_ms(&self) -> u64 {
        self.ruler_ms().saturating_add_signed(self.master.reference_ahead_ms())
    }

    /// Lead of this machine's clock over the ruler, ms.
    fn own_ahead_ms(&self) -> i64 {
        machine::wall_ms() as i64 - self.ruler_ms() as i64
    }

    /// Applies the clocks of data servers before any call is answered.
    pub(crate) fn apply_clocks(&self, seen: &[ReportedClock]) -> Result<(), MasterError> {
        let clocks: Vec<(u32, i64)> = seen.iter().map(|seen| (seen.disk, seen.ahead_ms)).collect();
        self.master.record_clocks(&clocks, self.own_ahead_ms(), self.now_ms())?;
        Ok(())
    }

    pub(super) async fn watch_map(&self, request: messages::WatchMap) -> Result<Bytes, Status> {
        const MAX_CALL_TIME: Duration = Duration::from_secs(30);
        let wait = Duration::from_millis(request.wait_ms.into()).min(MAX_CALL_TIME);
        let end = tokio::time::Instant::now() + wait;
        let reference = self.master.reference_ahead_ms();
        loop {
            let changed = self.changed.notified();
            let mut changed = std::pin::pin!(changed);
            // From here on every change wakes the waiter.
            changed.as_mut().enable();
            let map = self.master.map_since(request.since, Duration::ZERO, self.now_ms());
            // A moved clock is news, too: waiters take their time from the map.
            let is_moved = self.master.reference_ahead_ms() != reference;
            if map.version > request.since || is_moved || timeout_at(end, changed).await.is_err() {
                return Ok(encoded(&map));
            }
        }
    }

    /// Wakes all waiters for the map when this master stops leading.
    pub(crate) fn wake_all(&self) {
        self.master.wake_waiters();
        self.changed.notify_waiters();
    }

    /// Collects the newest term, map and group states from data servers, as far as they answer in time.
    /// `of_all`: of all that are not lost; otherwise of those that are up in the tables.
    pub(crate) async fn collect_reports(
        &self,
        of_all: bool,
        patience: Duration,
    ) -> (Vec<SeenCounters>, Vec<ReportedClock>) {
        let asked =
            self.master.map().servers().cloned().collect::<Vec<_>>().into_iter().filter(
                |server| match of_all {
                    true => !server.state.is_lost(),
                    false => !server.is_away(),
                },
            );
        let answers: Arc<Mutex<(Vec<SeenCounters>, Vec<ReportedClock>)>> = Arc::default();
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
                    answers.1.extend(ahead_ms.map(|ahead_ms| ReportedClock { disk: server.disk, ahead_ms }));
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
            // A failed task has no report.
            let _ = task.await;
        }
        std::mem::take(&mut *answers.lock())
    }
}
