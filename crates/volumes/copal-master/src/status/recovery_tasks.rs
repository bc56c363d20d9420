//! Copies that wait and copies that run, as `status` tells them: what is to do, when it ends, what keeps it
//! from that.

use crate::master::Reign;
use crate::recovery::recovery_state::Need;
use copal_proto::administration::{RecoveryStatus, TaskPriority, TaskStatus};
use copal_volume::group::GroupId;

/// Tasks that are told; the others are only counted.
const MOST_TOLD: usize = 200;

impl Reign {
    /// Seconds that so much takes at the rate that was measured, or at the rates that servers are given.
    pub(crate) fn seconds_for(&self, bytes: u64, groups: usize) -> Option<u64> {
        let measured = self.recovery.progress.seconds_for(bytes, groups);
        let slowest =
            self.watches.values().map(|watch| watch.recovery_bytes_per_s).filter(|rate| *rate > 0).min();
        measured.or_else(|| slowest.map(|rate| bytes.div_ceil(rate)))
    }

    /// Bytes that are still to be copied, and the seconds that they take at the rate that was measured;
    /// `None`: not known, also while some have no place to go.
    pub(crate) fn left(&self) -> (u64, Option<u64>) {
        let queue = &self.recovery.queue;
        let waiting = queue.waiting().map(|job| self.group_bytes(job.group));
        let running = queue.running().map(|start| {
            let all = self.group_bytes(start.group);
            all.saturating_sub(self.bytes_on(start.group, start.target.0))
        });
        let bytes = waiting.chain(running).fold(0_u64, u64::saturating_add);
        let (waiting, running) = queue.len();
        let seconds = self.seconds_for(bytes, waiting + running);
        (bytes, seconds.filter(|_| self.recovery.without_place.is_empty()))
    }

    /// Copies and moves: those that run, and the next of those that wait.
    pub(crate) fn tasks(&self) -> Vec<TaskStatus> {
        let recovery = &self.recovery;
        let name = |disk: u32| self.map.servers.get(&disk).map(|server| server.name.clone());
        let is_held = recovery.queue.hold().is_some();
        let task = |group: GroupId, src: Option<u32>, dst: Option<u32>, state: &str, done: f64| {
            let need = recovery.needs.get(&group).copied().unwrap_or(Need::Replace);
            let job = recovery.queue.job(group);
            TaskStatus {
                kind: need.word().to_owned(),
                gid: group.0,
                src: src.and_then(name),
                dst: dst.and_then(name),
                leaves: need.leaves().and_then(name),
                priority: TaskPriority {
                    whole_copies: job.map(|job| job.whole_copies),
                    since_ms: job.map(|job| job.since_ms),
                    boost: job.map(|job| job.boost),
                },
                state: state.to_owned(),
                done,
                bytes: self.group_bytes(group),
            }
        };
        let running = recovery.queue.running().map(|start| {
            let all = self.group_bytes(start.group).max(1);
            let here = self.bytes_on(start.group, start.target.0).min(all);
            let done = (here as f64 / all as f64 * 100.0).round() / 100.0;
            task(start.group, Some(start.source.0), Some(start.target.0), "running", done)
        });
        let waiting = recovery.queue.waiting().map(|job| {
            let state = match (job.target, job.sources.is_empty()) {
                (None, _) => "without_place",
                (Some(_), true) => "without_source",
                (Some(_), false) if is_held && !job.is_ordered => "held",
                (Some(_), false) => "waiting",
            };
            let source = job.sources.first().map(|disk| disk.0);
            task(job.group, source, job.target.map(|disk| disk.0), state, 0.0)
        });
        running.chain(waiting).take(MOST_TOLD).collect()
    }

    /// The queue in numbers, why nothing of it runs, and when it ends.
    pub(crate) fn recovery_status(&self) -> RecoveryStatus {
        let (waiting, running) = self.recovery.queue.len();
        let (bytes, seconds) = self.left();
        RecoveryStatus {
            running,
            waiting,
            bytes_left: bytes,
            bytes_per_s: self.recovery.progress.bytes_per_s(),
            ends_in_s: seconds,
            hold: self.recovery.queue.hold().map(|hold| hold.to_string()),
            blocked: self.blocked(),
            drains: self.drains(),
            paused: self.recovery.is_paused,
        }
    }

    /// What keeps groups from getting their copies, a sentence each, with what to do about it.
    pub(crate) fn blocked(&self) -> Vec<String> {
        let mut sentences: Vec<String> = Vec::new();
        sentences.extend(self.recovery.queue.hold().map(|hold| hold.to_string()));
        sentences.extend(self.full_disks());
        if let Some(reason) = self.recovery.without_place.values().next() {
            let groups = self.recovery.without_place.len();
            let fit = self
                .map
                .servers
                .values()
                .filter(|server| server.state.is_in_sync() && !server.is_draining)
                .count();
            sentences.push(self.why_without_place(groups, fit, reason));
        }
        let waiting = self.recovery.queue.waiting();
        let without_source = waiting.filter(|job| job.sources.is_empty()).count();
        if without_source > 0 {
            sentences.push(format!(
                "{without_source} groups have no whole copy that is there; bring back a server that has one"
            ));
        }
        sentences
    }
}
