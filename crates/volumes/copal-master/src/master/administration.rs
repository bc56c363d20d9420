//! Calls of administrators: orders, moves, status, clients.

use super::Master;
use crate::{
    error::MasterResult,
    membership::{
        disk_facts::{disk_facts, slowest_rate},
        force_accept::{self, RemainingMember},
        full_disks::group_facts,
        moves::{self, MoveOrder, named_plan},
        orders, replacement,
    },
    names::clients,
    status::{cluster_status, disk_usage::disk_list, group_story::group_story},
    tables::meta_store::{ClientRow, EventRow},
};
use copal_proto::administration::{
    AbsenceReport, BoostReport, CancelReport, ClusterStatus, DiskList, DrainReport, GroupList, GroupMembers,
    GroupStory, MoveReport, PauseReport, RebalancePlan, RemovalReport,
};
use copal_volume::{
    VolumeError,
    group::{
        Epoch, GroupId,
        rebalance::{self, PlanGoal},
    },
};

/// Orders for servers and groups.
impl Master {
    /// Lets the copy of a group run before copies of the same urgency that became due in the same minute. Each
    /// call raises its boost by one.
    /// # Errors
    /// `NotFound`: the group does not exist. `Meta`.
    pub fn boost(&self, group: GroupId, now_ms: u64) -> MasterResult<BoostReport> {
        orders::boost(&mut self.state.lock(), group, now_ms)
    }

    /// Drains a server: each of its groups gets another member, and leaves the server when that one is in sync.
    /// Until then the server takes part as before. `undo` ends the drain; groups that have left do not return.
    /// The report names the obstacles; they are no error.
    /// # Errors
    /// `NotFound`; `Denied`: the server was given up. `Meta`.
    pub fn drain(&self, name: &str, undo: bool, dry_run: bool, now_ms: u64) -> MasterResult<DrainReport> {
        orders::drain(&mut self.state.lock(), name, undo, dry_run, now_ms)
    }

    /// Removes a server that holds no group.
    /// # Errors
    /// `NotFound`; `Denied`: it holds some. `Meta`.
    pub fn remove_server(&self, name: &str, dry_run: bool, now_ms: u64) -> MasterResult<RemovalReport> {
        orders::remove_server(&mut self.state.lock(), name, dry_run, now_ms)
    }

    /// Announces that a server will be down for at most `for_ms`. Until then it does not count as lost, nor as
    /// part of a mass failure. Zero withdraws the announcement.
    /// # Errors
    /// `NotFound`; `Denied`: the server was given up, or the time is longer than a day. `Meta`.
    pub fn announce_absence(
        &self,
        name: &str,
        for_ms: u64,
        dry_run: bool,
        now_ms: u64,
    ) -> MasterResult<AbsenceReport> {
        orders::announce_absence(&mut self.state.lock(), name, for_ms, dry_run, now_ms)
    }

    /// Gives a server up: its groups are copied from others at once, and the server is not let back in. A
    /// repeated call changes nothing.
    /// # Errors
    /// `NotFound`; `Denied`: the server is up, so the operator has to stop it first.
    pub fn give_up_server(&self, name: &str, now_ms: u64) -> MasterResult<()> {
        replacement::give_up_server(&mut self.state.lock(), name, now_ms)
    }

    /// Checks whether a group can continue from the operations that one of its members has.
    /// # Errors
    /// `NotFound`: the group does not exist. `Denied`: there is no such server, it is no member or down, or a
    /// member that is up is in sync or has not reported yet.
    pub fn remaining_member(&self, group: GroupId, name: &str) -> MasterResult<RemainingMember> {
        force_accept::remaining_member(&self.state.lock(), group, name)
    }

    /// Accepts the state of a member as the complete state of a group, and adds an event with `text`. In the
    /// next view, whose epoch is returned, this member has missed nothing, and all others have missed the
    /// earlier operations.
    /// # Errors
    /// As [`Master::remaining_member`]; `Meta`.
    pub fn force_accept(&self, group: GroupId, name: &str, text: &str, now_ms: u64) -> MasterResult<Epoch> {
        let mut state = self.state.lock();
        let epoch = force_accept::force_accept(&mut state, group, name, text, now_ms)?;
        drop(state);
        self.shared.watchers.notify_all();
        Ok(epoch)
    }
}

/// Moves.
impl Master {
    /// Moves a copy of a group. The leaving member stays in sync until the new one is.
    /// # Errors
    /// `NotFound`: the group does not exist. `Denied`: the move is impossible. `Meta`.
    pub fn move_group(&self, order: &MoveOrder, dry_run: bool, now_ms: u64) -> MasterResult<MoveReport> {
        if !self.state.lock().map.groups.contains_key(&order.group) {
            return Err(VolumeError::NotFound.into());
        }
        self.rebalance_apply(std::slice::from_ref(order), dry_run, now_ms)
    }

    /// Cancels the move of a group, or a copy that an ended drain has left: the leaving member stays, and the
    /// unfinished copy is dropped.
    /// # Errors
    /// `NotFound`: the group does not exist. `Denied`: its server is being drained. `Meta`.
    pub fn cancel_move(&self, group: GroupId, dry_run: bool, now_ms: u64) -> MasterResult<CancelReport> {
        moves::cancel_move(&mut self.state.lock(), group, dry_run, now_ms)
    }

    /// Plans moves that relieve full disks and make all disks about equally full. Moves nothing.
    pub fn rebalance_plan(&self) -> RebalancePlan {
        let state = self.state.lock();
        let (facts, groups) = (disk_facts(&state), group_facts(&state));
        let rate = slowest_rate(&state);
        drop(state);
        // Without the lock, since planning takes long in a large cluster.
        let plan = rebalance::plan(&facts, &groups, PlanGoal::Even);
        named_plan(&self.state.lock(), &plan, rate)
    }

    /// Carries a plan out, and nothing else. Moves that are made already are skipped.
    /// # Errors
    /// `Denied`: a move of it is impossible, would fill a disk, or would bring members into one rack; nothing
    /// was begun. `Meta`.
    pub fn rebalance_apply(
        &self,
        orders: &[MoveOrder],
        dry_run: bool,
        now_ms: u64,
    ) -> MasterResult<MoveReport> {
        moves::apply_plan(&mut self.state.lock(), orders, dry_run, now_ms)
    }

    /// Pauses all moves, those of plans and those of the master itself, until a plan is carried out again.
    /// Moves that have begun continue.
    /// # Errors
    /// `Meta`.
    pub fn rebalance_pause(&self, dry_run: bool, now_ms: u64) -> MasterResult<PauseReport> {
        moves::pause_moves(&mut self.state.lock(), dry_run, now_ms)
    }
}

/// Reports.
impl Master {
    /// Health, servers, groups and tasks.
    pub fn status(&self, now_ms: u64) -> ClusterStatus {
        let state = self.state.lock();
        cluster_status::cluster_status(&state, self.address(), now_ms)
    }

    /// Members of a group: name, address and role, by the map and by their own reports.
    pub fn group(&self, group: GroupId) -> Option<GroupMembers> {
        cluster_status::group_members(&self.state.lock(), group)
    }

    /// All groups with their members.
    pub fn groups(&self) -> GroupList {
        let groups: Vec<GroupId> = self.state.lock().map.groups.keys().copied().collect();
        GroupList { groups: groups.into_iter().filter_map(|group| self.group(group)).collect() }
    }

    /// Events after a number, the oldest first.
    /// # Errors
    /// `Meta`.
    pub fn events(&self, after: u64, limit: usize) -> MasterResult<Vec<EventRow>> {
        Ok(self.state.lock().tables.events(after, limit)?)
    }

    /// Reasons why a group lacks a copy; for a group in sync, a report without reasons. `None`: the group does
    /// not exist.
    /// # Errors
    /// `Meta`.
    pub fn why_degraded(&self, group: GroupId, now_ms: u64) -> MasterResult<Option<GroupStory>> {
        group_story(&mut self.state.lock(), group, now_ms)
    }

    /// All disks with their sites, usage, and the bytes that they still take.
    pub fn disks(&self) -> DiskList {
        disk_list(&self.state.lock())
    }
}

/// Clients with restricted rights.
impl Master {
    /// All clients, by name.
    /// # Errors
    /// The database failed.
    pub fn clients(&self) -> MasterResult<Vec<ClientRow>> {
        Ok(self.state.lock().tables.clients()?)
    }

    /// Adds a client; false: a client has that name.
    /// # Errors
    /// `Denied`: a removed client had that name. The database failed.
    pub fn add_client(&self, client: &ClientRow) -> MasterResult<bool> {
        clients::add_client(&mut *self.state.lock().tables, client)
    }

    /// Names of removed clients that may still have a valid permit.
    pub fn removed_clients(&self, now_ms: u64) -> Vec<String> {
        self.state.lock().removed_clients.with_permits(now_ms)
    }

    /// Removes a client and reserves its name; false: no client has that name. Its permits end within ten
    /// minutes.
    /// # Errors
    /// The database failed.
    pub fn remove_client(&self, name: &str, now_ms: u64) -> MasterResult<bool> {
        let state = &mut *self.state.lock();
        state.removed_clients.remove_client(&mut *state.tables, name, now_ms)
    }
}
