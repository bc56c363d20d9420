//! Data servers: joining, heartbeats, and failure after silence.
//!
//! Paper: beanfs §3.4.1 (heartbeats), §4.3 (transient and permanent failures)
//! Invariants
//! - A server that counted as failed returns as recovering, never as in sync: it reports when all its groups
//!   are.
//! - A disk that is not the one that joined, or whose boot is older than one that was seen, is not let back
//!   in. Once its server counts as failed, copies of its groups begin at once.

use crate::{
    error::{MasterError, MasterResult},
    leader::{
        disk_medium::DiskMedium,
        leader_state::LeaderState,
        staleness::{is_newer, record_staleness},
    },
    membership::{
        clocks::{can_work_without, must_shut_out, record_clock, seconds, server_clock},
        full_disks::report_fullness,
        layout::assign_first_members,
        replacement::replace_members,
    },
    names::removed_volumes::forget_removed_volumes,
    tables::meta_store::{ServerRow, ServerState},
};
use copal_volume::group::{DiskId, Epoch, GroupId, Incarnation, Role};

/// Validity of a token, ms.
const TOKEN_VALID_MS: u64 = 10 * 60_000;
/// Time between two new views because of seals from the future, ms.
const REOPEN_MS: u64 = 15_000;

/// Request of a server to join.
#[derive(Clone, Debug)]
pub struct ServerJoin {
    /// Name of the server.
    pub name: String,
    /// Its address.
    pub address: String,
    /// Name in its certificate.
    pub server_uuid: [u8; 16],
    /// Its disk.
    pub disk_uuid: [u8; 16],
    /// Bytes that the disk can hold.
    pub capacity_bytes: u64,
    /// Its zone; empty: not reported.
    pub zone: String,
    /// Its rack in the zone; empty: not reported.
    pub rack: String,
}

/// One heartbeat of a data server.
#[derive(Clone, Debug)]
pub struct ServerHeartbeat {
    /// The server.
    pub server_uuid: [u8; 16],
    /// Its disk.
    pub disk_uuid: [u8; 16],
    /// Its boot.
    pub incarnation: Incarnation,
    /// Its process.
    pub pid: u32,
    /// Its present address.
    pub address: String,
    /// Bytes in use.
    pub used_bytes: u64,
    /// Bytes that the disk can hold.
    pub capacity_bytes: u64,
    /// Groups whose state changed.
    pub groups: Vec<(GroupId, Epoch, Role)>,
    /// Reason why the disk takes no more writes.
    pub failed: Option<String>,
    /// All its groups are in sync.
    pub is_in_sync: bool,
    /// Version of the map that it uses.
    pub map_version: u64,
    /// Bytes that it has copied from other servers since its boot.
    pub copied_bytes: u64,
    /// Bytes of groups on its disk, for groups whose size changed much.
    pub sizes: Vec<(GroupId, u64)>,
    /// Bytes a second that copies may take there.
    pub recovery_bytes_per_s: u64,
    /// Medium of its disk; `None`: not known.
    pub medium: Option<DiskMedium>,
    /// Its disk takes no new files, or lately did not.
    pub is_full: bool,
    /// Its host ran full inside a write, so it takes no operation before its next boot.
    pub is_host_full: bool,
    /// Bytes that new files may still take there, estimated; `None`: not reported.
    pub room_bytes: Option<u64>,
    /// Newest term that it has ever seen; 0: not reported.
    pub seen_term: u64,
    /// Newest version of the map that it has ever seen; 0: not reported.
    pub seen_version: u64,
    /// Its zone; empty: not reported.
    pub zone: String,
    /// Its rack in the zone; empty: not reported.
    pub rack: String,
    /// How far its clock is ahead of the ruler, ms; `None`: not reported.
    pub clock_ahead_ms: Option<i64>,
    /// It holds seals from the future, which it ignores from the next view on.
    pub has_future_seals: bool,
}

/// Stores the hash of a token's secret; see [`crate::Master::add_token`].
pub(crate) fn add_token(state: &mut LeaderState, secret_hash: [u8; 32], now_ms: u64) -> MasterResult<()> {
    Ok(state.tables.add_token(secret_hash, now_ms + TOKEN_VALID_MS)?)
}

/// Uses a token up; see [`crate::Master::take_token`].
pub(crate) fn take_token(state: &mut LeaderState, secret_hash: [u8; 32], now_ms: u64) -> MasterResult<()> {
    match state.tables.take_token(secret_hash, now_ms)? {
        true => Ok(()),
        false => {
            let reason =
                "the token is unknown, used or older than ten minutes; get one with `copal node token`";
            Err(MasterError::Denied(reason.to_owned()))
        }
    }
}

/// Adds a server; see [`crate::Master::join`].
pub(crate) fn join(state: &mut LeaderState, request: &ServerJoin, now_ms: u64) -> MasterResult<u32> {
    let known = state
        .map
        .servers
        .values()
        .find(|server| server.name == request.name)
        .map(|server| (server.disk, server.server_uuid, server.disk_uuid));
    if let Some((disk, server_uuid, disk_uuid)) = known {
        // A repeated request, whose first answer was lost.
        if (server_uuid, disk_uuid) == (request.server_uuid, request.disk_uuid) {
            return Ok(disk);
        }
        let name = &request.name;
        let reason = format!("a server named {name} has joined already; choose another name");
        return Err(MasterError::Denied(reason));
    }
    let mut server = ServerRow {
        disk: 0,
        name: request.name.clone(),
        address: request.address.clone(),
        server_uuid: request.server_uuid,
        disk_uuid: request.disk_uuid,
        // It holds no group, so it lacks nothing.
        state: ServerState::Normal,
        version: 0,
        incarnation: Incarnation(0),
        is_draining: false,
        failed_since_ms: 0,
        capacity_bytes: request.capacity_bytes,
        zone: request.zone.clone(),
        rack: request.rack.clone(),
    };
    let (disk, version) = state.tables.add_server(&server)?;
    (server.disk, server.version) = (disk, version);
    state.map.servers.insert(disk, server);
    state.map.version = version;
    let activity = state.activity.entry(disk).or_default();
    activity.last_heartbeat_ms = now_ms;
    state.add_event(now_ms, "joined", &format!("{} joined at {}", request.name, request.address))?;
    assign_first_members(state, now_ms)?;
    state.notify_watchers();
    Ok(disk)
}

/// Finds the server of a heartbeat and checks that it may take part.
fn checked_server(
    state: &mut LeaderState,
    heartbeat: &ServerHeartbeat,
    now_ms: u64,
) -> MasterResult<ServerRow> {
    let mut servers = state.map.servers.values();
    let known = servers.find(|server| server.server_uuid == heartbeat.server_uuid).cloned();
    let Some(before) = known else {
        return Err(MasterError::Denied("this server never joined the cluster".to_owned()));
    };
    if before.state.is_lost() {
        let name = &before.name;
        let reason = format!(
            "{name} was given up by `copal node lost`; give the server a new name and an empty directory, and join again"
        );
        return Err(MasterError::Denied(reason));
    }
    let is_same_boot = heartbeat.incarnation == before.incarnation;
    // Two copies of one directory count the same boots, but draw different random numbers.
    if before.disk_uuid != heartbeat.disk_uuid
        || (!is_same_boot && heartbeat.incarnation.count() <= before.incarnation.count())
    {
        let name = &before.name;
        let reason = format!(
            "the directory of {name} is not the one that joined, or an older copy of it: it may lack acknowledged \
             operations; give the server a new name and an empty directory, and tell `copal node lost {name}`"
        );
        state.add_event(now_ms, "refused", &reason)?;
        // If the server that joined is up as well, its next heartbeat resets this.
        state.activity.entry(before.disk).or_default().has_lost_data = true;
        replace_members(state, now_ms)?;
        state.notify_watchers();
        return Err(MasterError::Denied(reason));
    }
    Ok(before)
}

/// Takes a heartbeat; see [`crate::Master::heartbeat`].
pub(crate) fn heartbeat(
    state: &mut LeaderState,
    heartbeat: ServerHeartbeat,
    now_ms: u64,
) -> MasterResult<u32> {
    let before = checked_server(state, &heartbeat, now_ms)?;
    let disk = before.disk;
    if is_newer(state, heartbeat.seen_term, heartbeat.seen_version) {
        return Err(record_staleness(state, (disk, heartbeat.seen_term, heartbeat.seen_version)));
    }
    let now_ms = record_clock(state, disk, heartbeat.clock_ahead_ms, now_ms)?;
    // A step of the reference may have changed its row.
    let before = state.map.servers.get(&disk).cloned().unwrap_or(before);
    let is_shut_out = must_shut_out(state, &before, now_ms);
    // Once its groups work without it, it could not even enter a view that has it again.
    let is_left_out = heartbeat.is_host_full && (before.state.is_down() || can_work_without(state, disk));
    let server = next_server_row(&before, &heartbeat, is_shut_out || is_left_out, now_ms);
    let is_new_boot = is_new_boot(&before, &heartbeat);
    let is_elsewhere = (&server.zone, &server.rack) != (&before.zone, &before.rack);
    let is_changed =
        server.state != before.state || server.address != before.address || is_new_boot || is_elsewhere;
    let reopens = heartbeat.has_future_seals && needs_new_view(state, disk, now_ms);
    if is_changed || before.incarnation != server.incarnation || reopens {
        state.change_server(server.clone())?;
        state.notify_watchers();
    }
    if server.state != before.state {
        let text = state_change_text(state, &server, &heartbeat, (is_left_out, is_shut_out));
        state.add_event(now_ms, "state", &text)?;
    }
    if before.state.is_in_sync() && server.state.is_in_sync() {
        report_damage(state, &server, &heartbeat.groups, now_ms)?;
    }
    let reasons = &state.recovery.reasons;
    let concerns_copies = heartbeat.groups.iter().any(|(group, ..)| reasons.contains_key(group));
    record_activity(state, &server, heartbeat, is_shut_out, now_ms)?;
    if concerns_copies {
        // The answer to the heartbeat has the next members.
        let before = state.map.version;
        replace_members(state, now_ms)?;
        if state.map.version != before {
            state.notify_watchers();
        }
    }
    Ok(disk)
}

fn is_new_boot(before: &ServerRow, heartbeat: &ServerHeartbeat) -> bool {
    before.incarnation.count() != 0 && heartbeat.incarnation != before.incarnation
}

/// The row of a server after a heartbeat.
fn next_server_row(
    before: &ServerRow,
    heartbeat: &ServerHeartbeat,
    is_excluded: bool,
    now_ms: u64,
) -> ServerRow {
    let is_new_boot = is_new_boot(before, heartbeat);
    let mut server = before.clone();
    server.address.clone_from(&heartbeat.address);
    server.capacity_bytes = heartbeat.capacity_bytes;
    (server.zone, server.rack) = (heartbeat.zone.clone(), heartbeat.rack.clone());
    server.incarnation = heartbeat.incarnation;
    server.state = match (before.state, &heartbeat.failed) {
        (_, Some(_)) => ServerState::Failed,
        (_, None) if is_excluded => ServerState::Failed,
        (ServerState::Failed, None) => ServerState::Recovering,
        (ServerState::Normal, None) if is_new_boot => ServerState::Recovering,
        // A server that was cut off from the master alone does not know that it missed operations before it
        // has this map.
        (ServerState::Recovering, None)
            if heartbeat.is_in_sync && !is_new_boot && heartbeat.map_version >= before.version =>
        {
            ServerState::Normal
        }
        (state, None) => state,
    };
    server.failed_since_ms = match (server.state, before.failed_since_ms) {
        (ServerState::Failed, since) if before.is_away() => since,
        (ServerState::Failed, _) => now_ms,
        // Its absence is announced, and has not begun.
        (_, until) if !before.is_away() && until > now_ms => until,
        _ => 0,
    };
    server
}

/// Sentence about the new state of a server.
fn state_change_text(
    state: &LeaderState,
    server: &ServerRow,
    heartbeat: &ServerHeartbeat,
    (is_left_out, is_shut_out): (bool, bool),
) -> String {
    match server.state {
        ServerState::Normal => format!("{} is in sync again", server.name),
        ServerState::Recovering => format!("{} is back and catches up", server.name),
        ServerState::Failed if is_left_out => {
            format!("the host of {} has no space left: its groups go on without it", server.name)
        }
        ServerState::Failed if is_shut_out => {
            let off = seconds(server_clock(state, server.disk).unwrap_or_default());
            format!(
                "the clock of {} is {off} from the cluster's: it takes no part in writes until it is right",
                server.name
            )
        }
        ServerState::Failed | ServerState::Lost => {
            let why = heartbeat.failed.as_deref().unwrap_or_default();
            format!("the disk of {} failed: {why}", server.name)
        }
    }
}

/// Records the reports of a heartbeat in memory, and adds an event when the disk became full or has room
/// again.
fn record_activity(
    state: &mut LeaderState,
    server: &ServerRow,
    heartbeat: ServerHeartbeat,
    is_shut_out: bool,
    now_ms: u64,
) -> MasterResult<()> {
    let activity = state.activity.entry(server.disk).or_default();
    (activity.last_heartbeat_ms, activity.pid) = (now_ms, heartbeat.pid);
    activity.used_bytes = heartbeat.used_bytes;
    activity.is_shut_out = is_shut_out;
    // A server never leaves a view that it has entered, also while a boot has not entered one yet.
    activity.entered_version = activity.entered_version.max(heartbeat.map_version);
    for (group, epoch, role) in heartbeat.groups {
        activity.roles.insert(group, (epoch, role));
    }
    activity.sizes.extend(heartbeat.sizes);
    activity.has_lost_data = false;
    // A smaller count than before is that of a new boot.
    let copied = match heartbeat.copied_bytes.checked_sub(activity.copied_bytes) {
        Some(more) => more,
        None => heartbeat.copied_bytes,
    };
    activity.copied_bytes = heartbeat.copied_bytes;
    (activity.recovery_bytes_per_s, activity.medium) = (heartbeat.recovery_bytes_per_s, heartbeat.medium);
    activity.room_bytes = heartbeat.room_bytes;
    let full_before = (activity.is_full, activity.is_host_full);
    (activity.is_full, activity.is_host_full) = (heartbeat.is_full, heartbeat.is_host_full);
    state.recovery.progress.copied(copied);
    if full_before != (heartbeat.is_full, heartbeat.is_host_full) {
        report_fullness(state, server, now_ms)?;
    }
    Ok(())
}

/// Records that a member is in sync; see [`crate::Master::record_in_sync`].
pub(crate) fn record_in_sync(
    state: &mut LeaderState,
    disk: u32,
    groups: &[(GroupId, Epoch)],
) -> MasterResult<Vec<GroupId>> {
    let map = &state.map;
    let is_present = |(group, epoch): &(GroupId, Epoch)| {
        let view = map.groups.get(group).map(|row| map.view(row));
        view.is_some_and(|view| {
            view.epoch == *epoch && view.role(DiskId(disk)).is_some_and(Role::takes_writes)
        })
    };
    let (accepted, refused): (Vec<_>, Vec<_>) = groups.iter().copied().partition(is_present);
    let groups = accepted.into_iter().map(|(group, _)| group);
    let groups: Vec<GroupId> = groups.filter(|group| map.missed.contains_key(&(*group, disk))).collect();
    if groups.is_empty() {
        return Ok(refused.into_iter().map(|(group, _)| group).collect());
    }
    // From now on operations may complete in the present view, with this member as the one in role N. The view
    // may stay the same until a member that is down returns, so that member's missed epoch is recorded here.
    let version = map.version;
    let missed = map.newly_missed(groups.iter().filter_map(|group| map.groups.get(group)), Some(disk));
    state.tables.forget_missed(disk, &groups, &missed, version)?;
    for group in groups {
        state.map.missed.remove(&(group, disk));
    }
    state.map.record_missed(missed, version);
    Ok(refused.into_iter().map(|(group, _)| group).collect())
}

/// Lets time pass; see [`crate::Master::tick`].
pub(crate) fn tick(state: &mut LeaderState, now_ms: u64) -> MasterResult<()> {
    let present: Vec<u32> =
        state.map.servers.values().filter(|server| !server.is_away()).map(|server| server.disk).collect();
    for disk in present {
        // At the begin of a term, each server has the whole time again.
        let activity = state.activity.entry(disk).or_default();
        if activity.last_heartbeat_ms == 0 {
            activity.last_heartbeat_ms = now_ms;
        }
        if now_ms.saturating_sub(activity.last_heartbeat_ms) >= state.options.failed_after_ms {
            fail_server(state, disk, "was silent too long", now_ms)?;
            state.notify_watchers();
        }
    }
    let before = state.map.version;
    // The number of first servers may be lower than in an earlier term.
    assign_first_members(state, now_ms)?;
    replace_members(state, now_ms)?;
    let activity = &state.activity;
    let entered = |disk: u32| activity.get(&disk).map_or(0, |activity| activity.entered_version);
    forget_removed_volumes(&mut state.volumes, &mut *state.tables, &state.map, entered, now_ms)?;
    if state.map.version != before {
        state.notify_watchers();
    }
    Ok(())
}

/// Marks a server as failed; see [`crate::Master::mark_failed`].
pub(crate) fn mark_failed(state: &mut LeaderState, disk: u32, why: &str, now_ms: u64) -> MasterResult<()> {
    if state.map.servers.get(&disk).is_some_and(|server| !server.is_away()) {
        fail_server(state, disk, why, now_ms)?;
        state.notify_watchers();
    }
    Ok(())
}

fn fail_server(state: &mut LeaderState, disk: u32, why: &str, now_ms: u64) -> MasterResult<()> {
    let Some(mut server) = state.map.servers.get(&disk).cloned() else {
        return Ok(());
    };
    server.state = ServerState::Failed;
    let is_announced = server.failed_since_ms > now_ms;
    server.failed_since_ms = server.failed_since_ms.max(now_ms);
    let text = match is_announced {
        true => format!("{} {why}: it is away as announced", server.name),
        false => format!("{} {why}: it is taken for failed", server.name),
    };
    state.change_server(server)?;
    state.add_event(now_ms, "state", &text)
}

/// Adds an event for each group in which a member that was in sync reports that it is not, although its server
/// was never down: the member has found damage.
fn report_damage(
    state: &mut LeaderState,
    server: &ServerRow,
    reported: &[(GroupId, Epoch, Role)],
    now_ms: u64,
) -> MasterResult<()> {
    let before = state.activity.get(&server.disk).map(|activity| &activity.roles);
    // A report about an older view is from the time before the member was in sync.
    let was_in_sync = |group: &GroupId, epoch: Epoch| {
        let view = state.map.groups.get(group).map(|row| state.map.view(row));
        let was = before.and_then(|roles| roles.get(group));
        view.is_some_and(|view| view.epoch == epoch)
            && was.is_some_and(|(reported_in, role)| *reported_in == epoch && role.is_in_sync())
    };
    let is_damaged =
        |(group, epoch, role): &&(GroupId, Epoch, Role)| role.is_recovering() && was_in_sync(group, *epoch);
    let damaged: Vec<GroupId> = reported.iter().filter(is_damaged).map(|(group, ..)| *group).collect();
    for group in damaged {
        let name = &server.name;
        let text = format!(
            "{name} is not in sync in group {group} any more, and copies missing operations from others"
        );
        state.add_event(now_ms, "repair", &text)?;
    }
    Ok(())
}

/// Whether groups of a disk must get a newer view, in which it ignores seals from the future (VOL-43); at most
/// once in [`REOPEN_MS`].
fn needs_new_view(state: &mut LeaderState, disk: u32, now_ms: u64) -> bool {
    let activity = state.activity.entry(disk).or_default();
    let is_due = activity.reopened_ms.abs_diff(now_ms) >= REOPEN_MS;
    if is_due {
        activity.reopened_ms = now_ms;
    }
    is_due
}
