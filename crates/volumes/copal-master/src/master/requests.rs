//! Calls of data servers and of clients: heartbeats, clocks, volumes, writer leases.

use super::Master;
use crate::{
    error::MasterResult,
    membership::{
        clocks::{self, ClockVerdict},
        servers::{self, ServerHeartbeat, ServerJoin},
    },
    names::{
        path_leases::{LeaseRefusal, PathLease},
        volumes::{self, VolumeRemoval},
    },
};
use copal_volume::{
    VolumeId,
    group::{Epoch, GroupId},
};
use std::sync::atomic::Ordering;

/// Data servers.
impl Master {
    /// Adds a token: one server that shows its secret within ten minutes may join. The tables keep the hash of
    /// the secret.
    /// # Errors
    /// `Meta`.
    pub fn add_token(&self, secret_hash: [u8; 32], now_ms: u64) -> MasterResult<()> {
        servers::add_token(&mut self.state.lock(), secret_hash, now_ms)
    }

    /// Uses a token up.
    /// # Errors
    /// `Denied`: it never existed, is used, or has ended.
    pub fn take_token(&self, secret_hash: [u8; 32], now_ms: u64) -> MasterResult<()> {
        servers::take_token(&mut self.state.lock(), secret_hash, now_ms)
    }

    /// Adds a server and returns the number of its disk. Groups get their first members once enough servers
    /// have joined.
    /// # Errors
    /// `Denied`: another server has that name.
    pub fn join(&self, request: &ServerJoin, now_ms: u64) -> MasterResult<u32> {
        servers::join(&mut self.state.lock(), request, now_ms)
    }

    /// Takes a heartbeat and returns the number of the server's disk.
    /// # Errors
    /// `Denied`: the server never joined, or has another disk. `StaleTables`: it has seen a newer term or map.
    pub fn heartbeat(&self, heartbeat: ServerHeartbeat, now_ms: u64) -> MasterResult<u32> {
        servers::heartbeat(&mut self.state.lock(), heartbeat, now_ms)
    }

    /// Records that a member is in sync in groups, before the member acts on it. From here on it has missed
    /// nothing there, and operations can complete in views in which it takes part. Returns the groups in which
    /// it must not act on it: their view has changed, or the member is down in it.
    /// # Errors
    /// `Meta`.
    pub fn record_in_sync(&self, disk: u32, groups: &[(GroupId, Epoch)]) -> MasterResult<Vec<GroupId>> {
        servers::record_in_sync(&mut self.state.lock(), disk, groups)
    }

    /// Lets time pass: a server that was silent too long counts as failed. The caller calls it every few
    /// hundred milliseconds.
    /// # Errors
    /// `Meta`.
    pub fn tick(&self, now_ms: u64) -> MasterResult<()> {
        servers::tick(&mut self.state.lock(), now_ms)
    }

    /// Marks a server as failed, after it refused connections of a client and of the master itself.
    /// # Errors
    /// `Meta`.
    pub fn mark_failed(&self, disk: u32, why: &str, now_ms: u64) -> MasterResult<()> {
        servers::mark_failed(&mut self.state.lock(), disk, why, now_ms)
    }
}

/// Clocks.
impl Master {
    /// How far the reference is ahead of the ruler, ms.
    pub fn reference_ahead_ms(&self) -> i64 {
        self.shared.reference_ahead_ms.load(Ordering::Acquire)
    }

    /// Whether the reference includes the clock of a data server. The leader's own clock alone ends no
    /// certificate.
    pub fn has_server_clock(&self) -> bool {
        self.shared.has_server_clock.load(Ordering::Acquire)
    }

    /// Judges all clocks anew. `leader_ahead_ms`: how far the leader's own clock is ahead of the ruler. Returns
    /// whether the reference moved.
    /// # Errors
    /// `Meta`.
    pub fn judge_clocks(&self, leader_ahead_ms: i64, now_ms: u64) -> MasterResult<bool> {
        clocks::judge_clocks(&mut self.state.lock(), leader_ahead_ms, now_ms)
    }

    /// Sets clocks that were measured before the first answer of this term: disk, and how far the clock of its
    /// server is ahead of the ruler. Returns whether the reference moved.
    /// # Errors
    /// `Meta`.
    pub fn record_clocks(
        &self,
        measured: &[(u32, i64)],
        leader_ahead_ms: i64,
        now_ms: u64,
    ) -> MasterResult<bool> {
        clocks::record_clocks(&mut self.state.lock(), measured, leader_ahead_ms, now_ms)
    }

    /// The master's judgement of a server's clock.
    pub fn clock_verdict(&self, disk: u32) -> ClockVerdict {
        clocks::clock_verdict(&self.state.lock(), disk)
    }
}

/// Volumes.
impl Master {
    /// The volume at a path; the empty path is the root.
    /// # Errors
    /// `NotFound`.
    pub fn resolve(&self, path: &str) -> MasterResult<VolumeId> {
        volumes::resolve(&mut *self.state.lock().tables, path)
    }

    /// Makes a volume below another. No data server is asked: the group exists, and its rows begin with the
    /// first file.
    /// # Errors
    /// `VolumeExists`, `NotFound`, `InvalidName`; `Unavailable`: too few data servers have joined.
    pub fn mkdir(&self, parent: &str, name: &str, quota: Option<u64>) -> MasterResult<VolumeId> {
        let state = &mut *self.state.lock();
        let made = state.volumes.mkdir(&mut *state.tables, &mut state.map, (parent, name), quota)?;
        if quota.is_some() {
            state.notify_watchers();
        }
        Ok(made)
    }

    /// Volumes directly below one.
    /// # Errors
    /// `NotFound`.
    pub fn list(
        &self,
        parent: &str,
        after: Option<&str>,
        limit: usize,
    ) -> MasterResult<Vec<(String, VolumeId)>> {
        let mut state = self.state.lock();
        let parent = volumes::resolve(&mut *state.tables, parent)?;
        let rows = state.tables.list(parent, after, limit)?;
        Ok(rows.into_iter().map(|row| (row.name, row.vid)).collect())
    }

    /// The quota of a volume.
    pub fn quota(&self, vid: VolumeId) -> Option<u64> {
        self.state.lock().volumes.quota(vid)
    }

    /// Whether a volume of that id was ever made.
    pub fn was_created(&self, vid: VolumeId) -> bool {
        self.state.lock().volumes.was_created(vid)
    }

    /// Moves a volume with the volumes below it.
    /// # Errors
    /// `NotFound`, `VolumeExists`; `InvalidName`: into itself.
    pub fn rename(&self, from: &str, to: &str) -> MasterResult<()> {
        volumes::rename(&mut *self.state.lock().tables, from, to)
    }

    /// Begins the removal of a volume without volumes below it: its name no longer resolves. `path` is the place
    /// where the caller has found it. If the volume has moved since, all volumes are searched. Returns its
    /// place.
    /// # Errors
    /// `NotEmpty`, `VolumeGone`.
    pub fn begin_rmdir(&self, path: &str, vid: VolumeId) -> MasterResult<VolumeRemoval> {
        let mut state = self.state.lock();
        let removal = volumes::find_place(&mut *state.tables, path, vid)?;
        state.tables.mark_removing(removal.place(), true)??;
        Ok(removal)
    }

    /// Cancels the removal of a volume.
    /// # Errors
    /// `VolumeGone`.
    pub fn undo_rmdir(&self, removal: &VolumeRemoval) -> MasterResult<()> {
        Ok(self.state.lock().tables.mark_removing(removal.place(), false)??)
    }

    /// Removes a volume for good, with its files. The caller checks before that it may.
    /// # Errors
    /// `VolumeGone`.
    pub fn rmdir(&self, removal: &VolumeRemoval) -> MasterResult<()> {
        let state = &mut *self.state.lock();
        state.volumes.rmdir(&mut *state.tables, &mut state.map, removal)?;
        state.notify_watchers();
        Ok(())
    }
}

/// Writer leases.
impl Master {
    /// Gives a client the writer lease below a path.
    /// # Errors
    /// Another client has it.
    pub fn take_lease(&self, path: &str, holder: &str, now_ms: u64) -> Result<PathLease, LeaseRefusal> {
        self.shared.path_leases.lock().take(self.term, path, holder, now_ms)
    }

    /// Renews a writer lease.
    /// # Errors
    /// It has ended.
    pub fn renew_lease(&self, path: &str, lease: &PathLease, now_ms: u64) -> Result<PathLease, LeaseRefusal> {
        self.shared.path_leases.lock().renew(path, lease, now_ms)
    }

    /// End of the writer lease with this number, ms of the master's clock; `None`: it has ended, or another
    /// lease is on the path.
    pub fn lease_ends(&self, path: &str, number: u64, now_ms: u64) -> Option<u64> {
        self.shared.path_leases.lock().ends(path, number, now_ms)
    }

    /// Gives a writer lease back.
    pub fn release_lease(&self, path: &str, number: u64) {
        self.shared.path_leases.lock().release(path, number);
    }
}
