//! The recovery queue: order, source and target of the copies of groups that lost a replica.
//!
//! Design: docs/design/cluster.md#rules VOL-25, VOL-26
//! Paper:  beanfs §5.3
//! Invariants
//! - No job of a group with more in-sync copies starts while one with fewer could run.
//! - A disk is read by at most one copy and written by at most one at a time. No more copies run than half
//!   the servers: more would only share disks.
//! - A job leaves the queue finished or withdrawn; every failure brings it back.
//! - While too many servers are down at once, only jobs that an administrator ordered start: a failed switch
//!   must not cause a storm of copies.
//!
//! Not here: choice of targets (`placement`), copying and verification (`copal-data`), calls of this module
//! (`copal-master`).

mod hold;
#[cfg(test)]
mod tests;

pub use hold::MassFailure;

use super::{DiskId, GroupId};
use hold::ServerFailures;
use std::collections::{BTreeMap, BTreeSet};

/// Failures less than this apart have equal age, so that a boost can order them.
const AGE_STEP_MS: u64 = 60_000;
/// Pause of a job after its copy failed although both disks are up.
const RETRY_AFTER_MS: u64 = 10_000;
/// Number of jobs examined for one with two idle disks, before any with free slots is taken.
const LOOK_AHEAD: usize = 1024;

/// A group that lacks a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveryJob {
    /// The group.
    pub group: GroupId,
    /// Number of remaining in-sync copies (N); with none it waits until there is a source.
    pub in_sync_copies: u8,
    /// When the copy was lost.
    pub since_ms: u64,
    /// Set by an administrator: higher goes first among jobs of equal age.
    pub boost: u32,
    /// The pool: lower goes first among otherwise equal jobs.
    pub pool: u32,
    /// Disks with an in-sync copy, the nearest first.
    pub sources: Vec<DiskId>,
    /// The new member; `None`: it has to be chosen before the job can run.
    pub target: Option<DiskId>,
    /// Whether an administrator ordered it: it then runs during a mass failure too.
    pub is_ordered: bool,
}

/// Order to copy a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CopyOrder {
    /// The group.
    pub group: GroupId,
    /// Read from here.
    pub source: DiskId,
    /// Written to here.
    pub target: DiskId,
}

/// Position in the queue; the lowest goes first. The group makes it unique.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct JobPriority {
    in_sync_copies: u8,
    age_step: u64,
    less_boost: u32,
    pool: u32,
    group: GroupId,
}

impl RecoveryJob {
    fn priority(&self) -> JobPriority {
        JobPriority {
            in_sync_copies: self.in_sync_copies,
            age_step: self.since_ms / AGE_STEP_MS,
            less_boost: u32::MAX - self.boost,
            pool: self.pool,
            group: self.group,
        }
    }
}

#[derive(Clone, Debug)]
struct WaitingJob {
    job: RecoveryJob,
    /// End of its pause.
    ready_ms: u64,
}

#[derive(Clone, Debug)]
struct RunningCopy {
    job: RecoveryJob,
    start: CopyOrder,
}

/// Waiting jobs and running copies. Nothing here waits or reads a clock.
#[derive(Clone, Debug)]
pub struct RecoveryQueue {
    waiting: BTreeMap<JobPriority, WaitingJob>,
    places: BTreeMap<GroupId, JobPriority>,
    running: BTreeMap<GroupId, RunningCopy>,
    read_from: BTreeSet<DiskId>,
    written_to: BTreeSet<DiskId>,
    most_running: usize,
    failures: ServerFailures,
}

impl RecoveryQueue {
    /// An empty queue of a cluster of `servers`.
    pub fn new(servers: usize) -> RecoveryQueue {
        RecoveryQueue {
            waiting: BTreeMap::new(),
            places: BTreeMap::new(),
            running: BTreeMap::new(),
            read_from: BTreeSet::new(),
            written_to: BTreeSet::new(),
            most_running: (servers / 2).max(1),
            failures: ServerFailures::new(servers),
        }
    }

    /// Sets the number of parallel copies, at least one, until [`RecoveryQueue::set_servers`]. The default is
    /// half the servers.
    pub fn limit_running(&mut self, most: usize) {
        self.most_running = most.max(1);
    }

    /// Adds the job of a group, or replaces its waiting job. A running copy keeps its target; the new
    /// sources, age and boost count only if the job returns to the queue.
    pub fn put(&mut self, job: RecoveryJob) {
        if let Some(running) = self.running.get_mut(&job.group) {
            let target = running.job.target;
            running.job = RecoveryJob { target, ..job };
            return;
        }
        let rests_until_ms = self.withdraw_waiting(job.group).map_or(0, |waiting| waiting.ready_ms);
        self.wait(job, rests_until_ms);
    }

    /// Adds a copy that is already running, by any order. It occupies its slots even if a disk then has
    /// several copies. Returns whether it was new.
    pub fn resume(&mut self, job: RecoveryJob, start: CopyOrder) -> bool {
        if self.running.contains_key(&start.group) {
            return false;
        }
        self.withdraw_waiting(start.group);
        self.read_from.insert(start.source);
        self.written_to.insert(start.target);
        self.running.insert(start.group, RunningCopy { job, start });
        true
    }

    /// Adjusts the waiting times after a step of the caller's clock.
    pub fn move_times(&mut self, step_ms: i64) {
        for waiting in self.waiting.values_mut() {
            waiting.ready_ms = waiting.ready_ms.saturating_add_signed(step_ms);
        }
    }

    fn wait(&mut self, job: RecoveryJob, ready_ms: u64) {
        let priority = job.priority();
        self.places.insert(job.group, priority);
        self.waiting.insert(priority, WaitingJob { job, ready_ms });
    }

    fn withdraw_waiting(&mut self, group: GroupId) -> Option<WaitingJob> {
        let priority = self.places.remove(&group)?;
        self.waiting.remove(&priority)
    }

    /// Returns the copies to start now. They run until a call of [`RecoveryQueue::finished`],
    /// [`RecoveryQueue::failed`] or [`RecoveryQueue::disk_failed`].
    ///
    /// Among jobs of equal urgency, those with two idle disks go first. One disk is read and written at once
    /// only when nothing else can run.
    pub fn next(&mut self, now_ms: u64) -> Vec<CopyOrder> {
        let mut starts = Vec::new();
        let mut urgency = self.waiting.keys().next().map(|first| first.in_sync_copies);
        while let Some(in_sync_copies) = urgency {
            self.start_those_with(in_sync_copies, DiskLoad::IdleDisks, now_ms, &mut starts);
            self.start_those_with(in_sync_copies, DiskLoad::FreeSlots, now_ms, &mut starts);
            if self.running.len() >= self.most_running {
                break;
            }
            let less_urgent = self.waiting.keys().map(|priority| priority.in_sync_copies);
            urgency = less_urgent.into_iter().find(|&copies| copies > in_sync_copies);
        }
        starts
    }

    fn start_those_with(
        &mut self,
        in_sync_copies: u8,
        load: DiskLoad,
        now_ms: u64,
        starts: &mut Vec<CopyOrder>,
    ) {
        let looked_at = match load {
            DiskLoad::IdleDisks => LOOK_AHEAD,
            DiskLoad::FreeSlots => usize::MAX,
        };
        let is_held = self.failures.hold().is_some();
        let mut found: Vec<(JobPriority, CopyOrder)> = Vec::new();
        for (priority, waiting) in self
            .waiting
            .iter()
            .skip_while(|(priority, _)| priority.in_sync_copies < in_sync_copies)
            .take_while(|(priority, _)| priority.in_sync_copies == in_sync_copies)
            .take(looked_at)
        {
            if self.running.len() + found.len() >= self.most_running {
                break;
            }
            if waiting.ready_ms > now_ms || (is_held && !waiting.job.is_ordered) {
                continue;
            }
            let Some(start) = self.fitting(&waiting.job, load) else {
                continue;
            };
            self.read_from.insert(start.source);
            self.written_to.insert(start.target);
            found.push((*priority, start));
        }
        for (priority, start) in found {
            if let Some(waiting) = self.waiting.remove(&priority) {
                self.places.remove(&start.group);
                let job = waiting.job;
                self.running.insert(start.group, RunningCopy { job, start });
                starts.push(start);
            }
        }
    }

    fn fitting(&self, job: &RecoveryJob, load: DiskLoad) -> Option<CopyOrder> {
        let target = job.target?;
        let is_free = |disk: &DiskId, own: &BTreeSet<DiskId>, other: &BTreeSet<DiskId>| {
            !own.contains(disk) && (load == DiskLoad::FreeSlots || !other.contains(disk))
        };
        if !is_free(&target, &self.written_to, &self.read_from) {
            return None;
        }
        let is_source = |disk: &&DiskId| **disk != target && is_free(disk, &self.read_from, &self.written_to);
        let source = *job.sources.iter().find(is_source)?;
        Some(CopyOrder { group: job.group, source, target })
    }

    fn stop(&mut self, group: GroupId) -> Option<RecoveryJob> {
        let running = self.running.remove(&group)?;
        // A resumed copy may share a slot.
        let (source, target) = (running.start.source, running.start.target);
        if self.running.values().all(|other| other.start.source != source) {
            self.read_from.remove(&source);
        }
        if self.running.values().all(|other| other.start.target != target) {
            self.written_to.remove(&target);
        }
        Some(running.job)
    }

    /// The copy is complete: removes its job and frees its slots. Returns whether a copy of the group was
    /// running.
    pub fn finished(&mut self, group: GroupId) -> bool {
        self.stop(group).is_some()
    }

    /// The copy failed although both disks are up: the job returns and pauses for 10 s.
    pub fn failed(&mut self, group: GroupId, now_ms: u64) {
        if let Some(job) = self.stop(group) {
            self.wait(job, now_ms.saturating_add(RETRY_AFTER_MS));
        }
    }

    /// A disk is down: copies that read or write it return to the queue, and no job reads it any more.
    /// Returns the groups that had it as target: each needs a new one ([`RecoveryQueue::put`]).
    pub fn disk_failed(&mut self, disk: DiskId) -> Vec<GroupId> {
        let cut: Vec<GroupId> = self
            .running
            .values()
            .filter(|running| running.start.source == disk || running.start.target == disk)
            .map(|running| running.start.group)
            .collect();
        for group in cut {
            if let Some(job) = self.stop(group) {
                self.wait(job, 0);
            }
        }
        for running in self.running.values_mut() {
            running.job.sources.retain(|&source| source != disk);
        }
        let mut without_target = Vec::new();
        for waiting in self.waiting.values_mut() {
            waiting.job.sources.retain(|&source| source != disk);
            if waiting.job.target == Some(disk) {
                waiting.job.target = None;
                without_target.push(waiting.job.group);
            }
        }
        without_target.sort_unstable();
        without_target
    }

    /// The group needs no copy any more: its member returned, or its pool was removed. Returns the running
    /// copy, which the caller stops.
    pub fn withdraw(&mut self, group: GroupId) -> Option<CopyOrder> {
        self.withdraw_waiting(group);
        let start = self.running.get(&group).map(|running| running.start);
        self.stop(group);
        start
    }

    /// A server is down. Enough of them within 60 s hold the queue.
    pub fn server_failed(&mut self, server: u32, now_ms: u64) {
        self.failures.failed(server, now_ms);
    }

    /// A server is up again; the hold ends when its mass failure does.
    pub fn server_returned(&mut self, server: u32) {
        self.failures.returned(server);
    }

    /// Sets all servers, up or down, with their rack numbers: the base of mass failures. A server without a
    /// known rack has a unique number.
    pub fn set_servers(&mut self, racks: BTreeMap<u32, u32>) {
        self.most_running = (racks.len() / 2).max(1);
        self.failures.set_racks(racks);
    }

    /// The mass failure that holds the queue: the alarm to show.
    pub fn hold(&self) -> Option<MassFailure> {
        self.failures.hold()
    }

    /// An administrator states that the failed servers will not return: all copies start.
    pub fn lift_hold(&mut self) {
        self.failures.lift();
    }

    /// Numbers of waiting jobs and of running copies.
    pub fn len(&self) -> (usize, usize) {
        (self.waiting.len(), self.running.len())
    }

    /// The job of a group, waiting or running.
    pub fn job(&self, group: GroupId) -> Option<&RecoveryJob> {
        if let Some(running) = self.running.get(&group) {
            return Some(&running.job);
        }
        let priority = self.places.get(&group)?;
        self.waiting.get(priority).map(|waiting| &waiting.job)
    }

    /// Waiting jobs, the next first.
    pub fn waiting(&self) -> impl Iterator<Item = &RecoveryJob> + '_ {
        self.waiting.values().map(|waiting| &waiting.job)
    }

    /// Running copies, by group.
    pub fn running(&self) -> impl Iterator<Item = CopyOrder> + '_ {
        self.running.values().map(|running| running.start)
    }
}

/// Permitted load of the disks of a new copy.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DiskLoad {
    /// Neither is read or written by another copy.
    IdleDisks,
    /// The source may be being written, the target being read.
    FreeSlots,
}
