//! Heartbeats of a data server: its state goes to the leading master each second, and new views come back.
//!
//! Invariants
//! - A view is entered once it is durable, and reported only then.
//! - The server reports itself in sync only if each of its groups is, by the newest views it received.

use crate::net::messages::{blocking, encoded};
use crate::net::status::Status;
use crate::replica::host::ReplicaHost;
use crate::replica::own_clock::SendTime;
use bytes::Bytes;
use copal_client::{CachedView, CallError, machine};
use copal_data::{AssignedView, GroupMembership, VolumeNotice};
use copal_proto::{Method, messages, messages::failure::Code, role_of};
use copal_volume::{
    VolumeId,
    group::{DiskId, Term},
};
use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

/// Interval of heartbeats.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);
/// Time limit of one heartbeat.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// The master's refusal of this data server, which ends its process.
#[derive(Debug, thiserror::Error)]
#[error("the master refuses this server: {0}")]
pub struct ServerRefusal(pub String);

impl ReplicaHost {
    /// Sends heartbeats until the task is dropped.
    /// # Errors
    /// The master refuses this server: it was declared lost, or its directory is not the one that joined.
    pub(crate) async fn run_heartbeat(self: Arc<Self>) -> Result<(), ServerRefusal> {
        let mut last_term = 0;
        loop {
            match self.send_heartbeat(&mut last_term).await {
                Ok(()) => {}
                Err(CallError::Failed(failure)) if failure.code == i32::from(Code::Denied) => {
                    return Err(ServerRefusal(failure.text));
                }
                Err(error) => tracing::debug!(%error, "heartbeat failed: no master was reached"),
            }
            // A change is reported at once.
            let _ = tokio::time::timeout(HEARTBEAT_INTERVAL, self.heartbeat_due.notified()).await;
        }
    }

    /// The newest term and map version that this server has seen, including earlier boots.
    fn newest_seen(&self, memberships: &[GroupMembership]) -> (Term, u64) {
        let epochs = memberships.iter().map(|membership| membership.epoch.0);
        let entered = self.entered_version.load(Ordering::Acquire);
        let term = self.store.term().unwrap_or_default();
        (term, epochs.fold(entered, u64::max))
    }

    /// Reports the newest term, map and group states to a master that is about to lead.
    pub(crate) async fn report_seen(self: Arc<Self>, request: messages::WhatSeen) -> Result<Bytes, Status> {
        if request.cluster != self.identity.cluster[..] {
            return Err(Status::new(Code::Denied, "this server belongs to another cluster"));
        }
        blocking(move || {
            let memberships = self.store.memberships()?;
            let (term, version) = self.newest_seen(&memberships);
            let state = |membership: &GroupMembership| messages::GroupState {
                group: membership.group.0,
                epoch: membership.last_in_sync.0,
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

    async fn send_heartbeat(&self, last_term: &mut u64) -> Result<(), CallError> {
        let reported: Vec<GroupMembership> = std::mem::take(&mut *self.unreported.lock());
        let state = |membership: &GroupMembership| messages::GroupState {
            group: membership.group.0,
            epoch: membership.epoch.0,
            role: role_of(membership.role).into(),
        };
        let map_version = self.entered_version.load(Ordering::Acquire);
        let (used_bytes, capacity_bytes) = self.space.bytes();
        let memberships = self.store.memberships().unwrap_or_default();
        let sizes = self.throttle.changed_sizes(&self.store, &memberships, used_bytes);
        if self.throttle.wants_flush(used_bytes) {
            let store = self.store.clone();
            machine::spawn_blocking(move || {
                if let Err(error) = store.flush() {
                    tracing::debug!(%error, "memtables were not flushed");
                }
            });
        }
        let (seen_term, seen_version) = self.newest_seen(&memberships);
        let clock = *self.clock.lock();
        let future_seals = self.store.has_future_seals().unwrap_or_default();
        let sent = SendTime::now(self.store.own_clock_ms());
        let beat = messages::Heartbeat {
            server_uuid: self.identity.server.to_vec().into(),
            disk_uuid: self.identity.disk.to_vec().into(),
            incarnation: self.identity.incarnation.0,
            map_version,
            pid: std::process::id(),
            address: self.address.clone(),
            used_bytes,
            capacity_bytes,
            groups: reported.iter().map(state).collect(),
            failed: self.store.failure().unwrap_or_default(),
            recovered: self.is_in_sync_everywhere(),
            copied_bytes: self.throttle.received_bytes(),
            sizes,
            recovery_bytes_per_s: self.throttle.bytes_per_s(),
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
            self.masters.call(Method::Heartbeat, &beat, REPLY_TIMEOUT).await;
        let reply = match reply {
            Ok(reply) => reply,
            Err(error) => {
                if copal_client::expired_certificate(&error).is_some() {
                    self.renewal_due.notify_one();
                }
                // Reported again, before newer states.
                let mut later = self.unreported.lock();
                let newer = std::mem::take(&mut *later);
                *later = reported;
                later.extend(newer);
                self.throttle.forget_reported();
                return Err(error);
            }
        };
        *self.last_ack.lock() = Some(machine::now());
        if !reply.removed_clients.is_empty() {
            self.access.remove_clients(reply.removed_clients.clone());
        }
        let is_measured = clock.term == reply.term;
        self.clock.lock().update(&reply, &sent, self.store.own_clock_ms());
        if !is_measured && self.clock.lock().term == reply.term {
            // The measurement is reported at once.
            self.heartbeat_due.notify_one();
        }
        self.disk.store(reply.disk.into(), Ordering::Relaxed);
        if reply.term != *last_term {
            *last_term = reply.term;
            self.throttle.forget_reported();
            // A new leader knows only the states that are reported to it.
            if let Ok(all) = self.store.memberships() {
                *self.unreported.lock() = all;
            }
        }
        if let Some(map) = reply.map
            && let Err(error) = self.enter_map(map, sent.instant()).await
        {
            tracing::error!(text = error.text(), "views could not be entered");
        }
        Ok(())
    }

    /// Fetches the newest map from the master and enters its views.
    pub(crate) async fn refresh_map(&self) {
        let request = messages::WatchMap { since: self.entered_version.load(Ordering::Acquire), wait_ms: 0 };
        let asked_at = machine::now();
        let asked: Result<messages::Map, _> =
            self.masters.call(Method::WatchMap, &request, REPLY_TIMEOUT).await;
        if let Ok(map) = asked
            && let Err(error) = self.enter_map(map, asked_at).await
        {
            tracing::error!(text = error.text(), "views could not be entered");
        }
    }

    /// Enters the views of a map that was requested at `asked`; one map after the other.
    async fn enter_map(&self, map: messages::Map, asked: Instant) -> Result<(), Status> {
        if self.masters.learn(&map.masters) {
            // The addresses are saved for the next start.
            self.masters_changed.notify_one();
        }
        let _turn = self.view_lock.lock().await;
        let disk = self.disk();
        if disk == DiskId(0) || map.version <= self.entered_version.load(Ordering::Acquire) {
            self.map.apply_answer(&map, asked);
            return Ok(());
        }
        // Before views are entered: they judge seals by the time of the map.
        self.map.apply_answer(&map, asked);
        let store = self.store.clone();
        // All known views, since a view learned earlier may not be entered yet.
        let known = self.map.groups().into_iter().filter_map(|group| self.map.cached(group));
        let known: Vec<CachedView> = known.collect();
        let (term, version) = (Term(map.term), map.version);
        let removed: Vec<VolumeId> = map.gone_volumes.iter().map(|vid| VolumeId(*vid)).collect();
        let limits = map.limits.iter().map(|limit| (VolumeId(limit.volume), limit.quota_bytes));
        let limits: Vec<(VolumeId, u64)> = limits.collect();
        let entered = blocking(move || {
            if !store.accept_term(term)? {
                return Ok(None);
            }
            let mut views = Vec::new();
            for cached in &known {
                let view = &cached.view;
                match view.members.iter().position(|(member, _)| *member == disk) {
                    Some(at) => views.push(AssignedView {
                        group: view.group,
                        epoch: view.epoch,
                        role: view.members[at].1,
                        missed: cached.missed[at],
                    }),
                    None => store.leave(view.group)?,
                }
            }
            let entered = store.enter_views(&views)?;
            for (vid, quota_bytes) in limits {
                if store.membership(vid.birth_group())?.is_some() {
                    let quota_bytes = Some(quota_bytes);
                    store.note_volume(vid, VolumeNotice::Live { quota_bytes })?;
                }
            }
            for vid in removed {
                if store.membership(vid.birth_group())?.is_some() {
                    store.note_volume(vid, VolumeNotice::Removed)?;
                }
            }
            Ok(Some(entered))
        });
        let Some(entered) = entered.await? else {
            return Ok(());
        };
        self.entered_version.store(version, Ordering::Release);
        if !entered.is_empty() {
            self.report_memberships(entered);
            self.resync_due.notify_one();
        }
        Ok(())
    }

    /// Reports group states to the master with an immediate heartbeat.
    pub(crate) fn report_memberships(&self, memberships: Vec<GroupMembership>) {
        self.unreported.lock().extend(memberships);
        self.heartbeat_due.notify_one();
    }

    /// Whether every group is in sync, by the newest views.
    fn is_in_sync_everywhere(&self) -> bool {
        let all = self.store.memberships();
        all.is_ok_and(|all| all.iter().all(|membership| membership.role.is_in_sync()))
            && self.entered_version.load(Ordering::Acquire) > 0
    }
}

#[cfg(test)]
mod tests;
