//! Report of the recovery queue: tasks, remaining time, and the reasons why copies are blocked.

use crate::{
    leader::leader_state::LeaderState,
    membership::{
        disk_facts::{bytes_on, group_bytes, seconds_for},
        drains::{drain_sentences, why_without_place},
        full_disks::full_disk_sentences,
    },
    recovery::recovery_state::CopyReason,
};
use copal_proto::administration::{RecoveryStatus, TaskPriority, TaskStatus};
use copal_volume::group::GroupId;

/// Tasks in a report; further ones are only counted.
const MOST_TASKS: usize = 200;

/// Bytes that are still to be copied, and the seconds that they take at the measured rate. `None`: not known,
/// also while some groups have no place.
pub(crate) fn remaining_work(state: &LeaderState) -> (u64, Option<u64>) {
    let queue = &state.recovery.queue;
    let waiting = queue.waiting().map(|job| group_bytes(state, job.group));
    let running = queue.running().map(|start| {
        let all = group_bytes(state, start.group);
        all.saturating_sub(bytes_on(state, start.group, start.target.0))
    });
    let bytes = waiting.chain(running).fold(0_u64, u64::saturating_add);
    let (waiting, running) = queue.len();
    let seconds = seconds_for(state, bytes, waiting + running);
    (bytes, seconds.filter(|_| state.recovery.without_place.is_empty()))
}

/// Running copies and moves, then the next of the waiting ones.
pub(crate) fn task_list(state: &LeaderState) -> Vec<TaskStatus> {
    let recovery = &state.recovery;
    let name = |disk: u32| state.map.servers.get(&disk).map(|server| server.name.clone());
    let is_held = recovery.queue.hold().is_some();
    let task = |group: GroupId, src: Option<u32>, dst: Option<u32>, word: &str, done: f64| {
        let reason = recovery.reasons.get(&group).copied().unwrap_or(CopyReason::Replace);
        let job = recovery.queue.job(group);
        TaskStatus {
            kind: reason.word().to_owned(),
            gid: group.0,
            src: src.and_then(name),
            dst: dst.and_then(name),
            leaves: reason.leaving_disk().and_then(name),
            priority: TaskPriority {
                whole_copies: job.map(|job| job.in_sync_copies),
                since_ms: job.map(|job| job.since_ms),
                boost: job.map(|job| job.boost),
            },
            state: word.to_owned(),
            done,
            bytes: group_bytes(state, group),
        }
    };
    let running = recovery.queue.running().map(|start| {
        let all = group_bytes(state, start.group).max(1);
        let here = bytes_on(state, start.group, start.target.0).min(all);
        let done = (here as f64 / all as f64 * 100.0).round() / 100.0;
        task(start.group, Some(start.source.0), Some(start.target.0), "running", done)
    });
    let waiting = recovery.queue.waiting().map(|job| {
        let word = match (job.target, job.sources.is_empty()) {
            (None, _) => "without_place",
            (Some(_), true) => "without_source",
            (Some(_), false) if is_held && !job.is_ordered => "held",
            (Some(_), false) => "waiting",
        };
        let source = job.sources.first().map(|disk| disk.0);
        task(job.group, source, job.target.map(|disk| disk.0), word, 0.0)
    });
    running.chain(waiting).take(MOST_TASKS).collect()
}

/// The queue in numbers, the reasons why copies are blocked, and the remaining time.
pub(crate) fn recovery_status(state: &LeaderState) -> RecoveryStatus {
    let recovery = &state.recovery;
    let (waiting, running) = recovery.queue.len();
    let (bytes, seconds) = remaining_work(state);
    RecoveryStatus {
        running,
        waiting,
        bytes_left: bytes,
        bytes_per_s: recovery.progress.bytes_per_s(),
        ends_in_s: seconds,
        hold: recovery.queue.hold().map(|hold| hold.to_string()),
        blocked: blocked_sentences(state),
        drains: drain_sentences(state),
        paused: recovery.are_moves_paused,
    }
}

/// Reasons why groups do not get their copies, a sentence each with the advice.
pub(crate) fn blocked_sentences(state: &LeaderState) -> Vec<String> {
    let recovery = &state.recovery;
    let mut sentences: Vec<String> = Vec::new();
    sentences.extend(recovery.queue.hold().map(|hold| hold.to_string()));
    sentences.extend(full_disk_sentences(state));
    if let Some(reason) = recovery.without_place.values().next() {
        let groups = recovery.without_place.len();
        let fit = state
            .map
            .servers
            .values()
            .filter(|server| server.state.is_in_sync() && !server.is_draining)
            .count();
        sentences.push(why_without_place(state, groups, fit, reason));
    }
    let waiting = recovery.queue.waiting();
    let without_source = waiting.filter(|job| job.sources.is_empty()).count();
    if without_source > 0 {
        sentences.push(format!(
            "{without_source} groups have no copy in sync that is up; bring back a server that has one"
        ));
    }
    sentences
}
