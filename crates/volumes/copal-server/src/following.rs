//! How a data server follows the master: a heartbeat each second, the views that come back, and what it tells
//! of itself.
//!
//! Invariants
//! - A view counts as entered when it is durable here, and the server says so only then.
//! - The server says that it is whole only when every group of it is, by the newest views it was told.

use crate::{
    answers::{blocking, encoded},
    data_server::DataServer,
    own_clock::SentAt,
    status::Status,
};
use bytes::Bytes;
use copal_client::{CachedView, CallError, machine};
use copal_data::{Membership, Told, ToldView};
use copal_proto::{Method, messages, messages::failure::Code, role_of};
use copal_volume::{
    VolumeId,
    group::{DiskId, Term},
};
use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

/// Between two heartbeats.
const BEAT: Duration = Duration::from_secs(1);
/// How long one may take.
const ANSWER: Duration = Duration::from_secs(5);

/// Why a data server ends: the master does not let it in.
#[derive(Debug, thiserror::Error)]
#[error("the master refuses this server: {0}")]
pub struct NotLetIn(pub String);

impl DataServer {
    /// Does all that a server does beside answering calls, until the task is dropped.
    /// # Errors
    /// As [`DataServer::follow`].
    pub async fn run(self: Arc<Self>) -> Result<(), NotLetIn> {
        machine::spawn(Arc::clone(&self).become_whole());
        machine::spawn(Arc::clone(&self).repair_damage());
        machine::spawn(Arc::clone(&self).gossip());
        machine::spawn(Arc::clone(&self).compare_groups());
        self.follow().await
    }

    /// Follows the master until the task is dropped.
    /// # Errors
    /// The master does not let this server in: it is given up, or its directory is not the one that joined.
    pub async fn follow(self: Arc<Self>) -> Result<(), NotLetIn> {
        let mut last_term = 0;
        loop {
            match self.beat(&mut last_term).await {
                Ok(()) => {}
                Err(CallError::Failed(failure)) if failure.code == i32::from(Code::Denied) => {
                    return Err(NotLetIn(failure.text));
                }
                Err(error) => tracing::debug!(%error, "the master was not reached"),
            }
            // What changes meanwhile goes at once.
            let _ = tokio::time::timeout(BEAT, self.beat_now.notified()).await;
        }
    }

    /// The newest reign and the newest map that this server ever heard of, before this boot, too.
    fn seen(&self, memberships: &[Membership]) -> (Term, u64) {
        let epochs = memberships.iter().map(|membership| membership.epoch.0);
        let entered = self.entered.load(Ordering::Acquire);
        let term = self.store.term().unwrap_or_default();
        (term, epochs.fold(entered, u64::max))
    }

    /// A master that is about to lead asks what this server has heard of.
    pub(crate) async fn show_what_was_seen(
        self: Arc<Self>,
        request: messages::WhatSeen,
    ) -> Result<Bytes, Status> {
        if request.cluster != self.identity.cluster[..] {
            return Err(Status::new(Code::Denied, "this server is of another cluster"));
        }
        blocking(move || {
            let memberships = self.store.memberships()?;
            let (term, version) = self.seen(&memberships);
            let state = |membership: &Membership| messages::GroupState {
                group: membership.group.0,
                epoch: membership.last_normal.0,
                role: role_of(membership.role).into(),
            };
            Ok(encoded(&messages::SeenReply {
                term: term.0,
                version,
                groups: memberships.iter().map(state).collect(),
                clock_ms: self.store.own_clock_ms(),
            }))
        })
        .await
    }

    async fn beat(&self, last_term: &mut u64) -> Result<(), CallError> {
        let untold: Vec<Membership> = std::mem::take(&mut *self.untold.lock());
        let state = |membership: &Membership| messages::GroupState {
            group: membership.group.0,
            epoch: membership.epoch.0,
            role: role_of(membership.role).into(),
        };
        let map_version = self.entered.load(Ordering::Acquire);
        let (used_bytes, capacity_bytes) = self.room.bytes();
        let memberships = self.store.memberships().unwrap_or_default();
        let sizes = self.copying.sizes(&self.store, &memberships, used_bytes);
        if self.copying.wants_flush(used_bytes) {
            let store = self.store.clone();
            machine::spawn_blocking(move || {
                if let Err(error) = store.flush() {
                    tracing::debug!(%error, "what lies in memory was not written");
                }
            });
        }
        let (seen_term, seen_version) = self.seen(&memberships);
        let clock = *self.clock.lock();
        let future_seals = self.store.has_future_seals().unwrap_or_default();
        let sent = SentAt::now(self.store.own_clock_ms());
        let beat = messages::Heartbeat {
            server_uuid: self.identity.server.to_vec().into(),
            disk_uuid: self.identity.disk.to_vec().into(),
            incarnation: self.identity.incarnation.0,
            map_version,
            pid: std::process::id(),
            address: self.address.clone(),
            used_bytes,
            capacity_bytes,
            groups: untold.iter().map(state).collect(),
            failed: self.store.failure().unwrap_or_default(),
            recovered: self.is_whole(),
            copied_bytes: self.copying.taken_bytes(),
            sizes,
            recovery_bytes_per_s: self.copying.bytes_per_s(),
            seen_term: seen_term.0,
            seen_version,
            zone: self.place.0.clone(),
            rack: self.place.1.clone(),
            medium: self.medium.clone(),
            clock_ms: self.store.own_clock_ms(),
            clock_term: clock.term,
            clock_ahead_ms: clock.ahead_ms,
            future_seals,
            full: self.store.is_full(),
            room_bytes: Some(self.store.room_bytes()),
            host_full: self.store.is_host_full(),
        };
        let reply: Result<messages::HeartbeatReply, _> =
            self.masters.call(Method::Heartbeat, &beat, ANSWER).await;
        let reply = match reply {
            Ok(reply) => reply,
            Err(error) => {
                if copal_client::expired_certificate(&error).is_some() {
                    self.renew_now.notify_one();
                }
                // Told again, unless something newer is there to be told.
                let mut later = self.untold.lock();
                let newer = std::mem::take(&mut *later);
                *later = untold;
                later.extend(newer);
                self.copying.forget_told();
                return Err(error);
            }
        };
        *self.beaten.lock() = Some(machine::now());
        if !reply.removed_clients.is_empty() {
            self.access.forget_clients(reply.removed_clients.clone());
        }
        let is_measured = clock.term == reply.term;
        self.clock.lock().hear(&reply, &sent, self.store.own_clock_ms());
        if !is_measured && self.clock.lock().term == reply.term {
            // The master is told at once.
            self.beat_now.notify_one();
        }
        self.disk.store(reply.disk.into(), Ordering::Relaxed);
        if reply.term != *last_term {
            *last_term = reply.term;
            self.copying.forget_told();
            // A new reign knows of no states but those it is told.
            if let Ok(all) = self.store.memberships() {
                *self.untold.lock() = all;
            }
        }
        if let Some(map) = reply.map
            && let Err(error) = self.enter(map, sent.moment()).await
        {
            tracing::error!(text = error.text(), "views could not be entered");
        }
        Ok(())
    }

    /// Asks the master for what is newer than the views that are known.
    pub(crate) async fn refresh(&self) {
        let request = messages::WatchMap { since: self.entered.load(Ordering::Acquire), wait_ms: 0 };
        let asked_at = machine::now();
        let asked: Result<messages::Map, _> = self.masters.call(Method::WatchMap, &request, ANSWER).await;
        if let Ok(map) = asked
            && let Err(error) = self.enter(map, asked_at).await
        {
            tracing::error!(text = error.text(), "views could not be entered");
        }
    }

    /// Enters the views of a map, one map after the other; when it was asked for.
    async fn enter(&self, map: messages::Map, asked: Instant) -> Result<(), Status> {
        if self.masters.learn(&map.masters) {
            // Whoever starts this server again asks those.
            self.masters_changed.notify_one();
        }
        let _turn = self.entering.lock().await;
        let disk = self.disk();
        if disk == DiskId(0) || map.version <= self.entered.load(Ordering::Acquire) {
            self.map.apply_answer(&map, asked);
            return Ok(());
        }
        // First: by its time seals are looked at when views are entered.
        self.map.apply_answer(&map, asked);
        let store = self.store.clone();
        // All views that are known: of one that was learned early nothing has been entered yet.
        let known = self.map.groups().into_iter().filter_map(|group| self.map.cached(group));
        let known: Vec<CachedView> = known.collect();
        let (term, version) = (Term(map.term), map.version);
        let gone: Vec<VolumeId> = map.gone_volumes.iter().map(|vid| VolumeId(*vid)).collect();
        let limits = map.limits.iter().map(|limit| (VolumeId(limit.volume), limit.quota_bytes));
        let limits: Vec<(VolumeId, u64)> = limits.collect();
        let entered = blocking(move || {
            if !store.hear(term)? {
                return Ok(None);
            }
            let mut told = Vec::new();
            for cached in &known {
                let view = &cached.view;
                match view.members.iter().position(|(member, _)| *member == disk) {
                    Some(at) => told.push(ToldView {
                        group: view.group,
                        epoch: view.epoch,
                        role: view.members[at].1,
                        missed: cached.missed[at],
                    }),
                    None => store.leave(view.group)?,
                }
            }
            let entered = store.enter_views(&told)?;
            for (vid, quota_bytes) in limits {
                if store.membership(vid.birth_group())?.is_some() {
                    let quota_bytes = Some(quota_bytes);
                    store.tell_volume(vid, Told::Live { quota_bytes })?;
                }
            }
            for vid in gone {
                if store.membership(vid.birth_group())?.is_some() {
                    store.tell_volume(vid, Told::Gone)?;
                }
            }
            Ok(Some(entered))
        });
        let Some(entered) = entered.await? else {
            return Ok(());
        };
        self.entered.store(version, Ordering::Release);
        if !entered.is_empty() {
            self.tell(entered);
            self.sync_now.notify_one();
        }
        Ok(())
    }

    /// Tells the master states of groups, at once.
    pub(crate) fn tell(&self, memberships: Vec<Membership>) {
        self.untold.lock().extend(memberships);
        self.beat_now.notify_one();
    }

    /// Whether every group is whole, by the newest views.
    fn is_whole(&self) -> bool {
        let all = self.store.memberships();
        all.is_ok_and(|all| all.iter().all(|membership| membership.role.is_in_sync()))
            && self.entered.load(Ordering::Acquire) > 0
    }
}

#[cfg(test)]
mod tests;
