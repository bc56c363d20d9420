//! The recovery queue: which groups that lost a copy are copied next, from where to where.
//!
//! Design: docs/design/cluster.md#rules VOL-25, VOL-26
//! Paper:  beanfs §5.3
//! Invariants
//! - No job of a group with more whole copies starts while one with fewer could run.
//! - A disk is read by at most one copy and written by at most one at a time, and no more copies run than
//!   half the servers: beyond that they only share disks.
//! - A job leaves the queue finished or withdrawn; whatever fails on the way brings it back.
//! - While too many servers are away at once nothing starts but what an administrator asked for: a dead
//!   switch must not start a storm of copies.
//!
//! Not here: where a copy goes (`placement`), how it is made and verified (`copal-data`), who calls this
//! (`copal-master`).

mod hold;
#[cfg(test)]
mod tests;

pub use hold::MassFailure;

use super::{DiskId, GroupId};
use hold::Failures;
use std::collections::{BTreeMap, BTreeSet};

/// Failures less than this apart are of one age, so that a boost can order them.
const AGE_STEP_MS: u64 = 60_000;
/// How long a job rests after its copy failed though both disks are there.
const RETRY_AFTER_MS: u64 = 10_000;
/// Jobs looked at for one whose two disks are both idle, before any with free slots is taken.
const LOOK_AHEAD: usize = 1024;

/// A group that lacks a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// The group.
    pub group: GroupId,
    /// Whole copies (N) that are left; with none it waits until there is a source.
    pub whole_copies: u8,
    /// When the copy was lost.
    pub since_ms: u64,
    /// An administrator's wish: higher goes first among those of one age.
    pub boost: u32,
    /// The pool: lower goes first when all else is equal.
    pub pool: u32,
    /// Disks with a whole copy, the nearest first.
    pub sources: Vec<DiskId>,
    /// The new member; `None`: it has to be chosen before the job can run.
    pub target: Option<DiskId>,
    /// An administrator wants it: it runs while a mass failure holds the others.
    pub is_ordered: bool,
}

/// Order to copy a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Start {
    /// The group.
    pub group: GroupId,
    /// Read from here.
    pub source: DiskId,
    /// Written to here.
    pub target: DiskId,
}

/// Place in the queue; the lowest goes first. The group makes it unique.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Priority {
    whole_copies: u8,
    age_step: u64,
    less_boost: u32,
    pool: u32,
    group: GroupId,
}

impl Job {
    fn priority(&self) -> Priority {
        Priority {
            whole_copies: self.whole_copies,
            age_step: self.since_ms / AGE_STEP_MS,
            less_boost: u32::MAX - self.boost,
            pool: self.pool,
            group: self.group,
        }
    }
}

#[derive(Clone, Debug)]
struct Waiting {
    job: Job,
    /// It rests until then.
    ready_ms: u64,
}

#[derive(Clone, Debug)]
struct Running {
    job: Job,
    start: Start,
}

/// Jobs that wait and copies that run. Nothing here waits or reads a clock.
#[derive(Clone, Debug)]
pub struct RecoveryQueue {
    waiting: BTreeMap<Priority, Waiting>,
    places: BTreeMap<GroupId, Priority>,
    running: BTreeMap<GroupId, Running>,
    read_from: BTreeSet<DiskId>,
    written_to: BTreeSet<DiskId>,
    most_running: usize,
    failures: Failures,
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
            failures: Failures::new(servers),
        }
    }

    /// Lets another number of copies run at once than half the servers, at least one, until
    /// [`RecoveryQueue::set_servers`].
    pub fn limit_running(&mut self, most: usize) {
        self.most_running = most.max(1);
    }

    /// Puts a group in, or replaces what was known of it while it waits. A copy that runs goes on to the
    /// target it has; only its sources, age and boost are taken over, for the case that it comes back.
    pub fn put(&mut self, job: Job) {
        if let Some(running) = self.running.get_mut(&job.group) {
            let target = running.job.target;
            running.job = Job { target, ..job };
            return;
        }
        let rests_until_ms = self.withdraw_waiting(job.group).map_or(0, |waiting| waiting.ready_ms);
        self.wait(job, rests_until_ms);
    }

    /// Takes in a copy that runs already, whoever started it. It holds its slots even where a disk has more
    /// copies than one by now; whether it was not known yet.
    pub fn resume(&mut self, job: Job, start: Start) -> bool {
        if self.running.contains_key(&start.group) {
            return false;
        }
        self.withdraw_waiting(start.group);
        self.read_from.insert(start.source);
        self.written_to.insert(start.target);
        self.running.insert(start.group, Running { job, start });
        true
    }

    /// The clock by which times are given has moved: what waits is as far from its turn as before.
    pub fn move_times(&mut self, step_ms: i64) {
        for waiting in self.waiting.values_mut() {
            waiting.ready_ms = waiting.ready_ms.saturating_add_signed(step_ms);
        }
    }

    fn wait(&mut self, job: Job, ready_ms: u64) {
        let priority = job.priority();
        self.places.insert(job.group, priority);
        self.waiting.insert(priority, Waiting { job, ready_ms });
    }

    fn withdraw_waiting(&mut self, group: GroupId) -> Option<Waiting> {
        let priority = self.places.remove(&group)?;
        self.waiting.remove(&priority)
    }

    /// Copies to start now. They run until [`RecoveryQueue::finished`], [`RecoveryQueue::failed`] or
    /// [`RecoveryQueue::disk_failed`] is told.
    ///
    /// Among jobs of equal urgency those go first whose two disks are idle; one disk is read and written at
    /// once only when nothing else can run.
    pub fn next(&mut self, now_ms: u64) -> Vec<Start> {
        let mut starts = Vec::new();
        let mut urgency = self.waiting.keys().next().map(|first| first.whole_copies);
        while let Some(whole_copies) = urgency {
            self.start_those_with(whole_copies, Load::IdleDisks, now_ms, &mut starts);
            self.start_those_with(whole_copies, Load::FreeSlots, now_ms, &mut starts);
            if self.running.len() >= self.most_running {
                break;
            }
            let less_urgent = self.waiting.keys().map(|priority| priority.whole_copies);
            urgency = less_urgent.into_iter().find(|&copies| copies > whole_copies);
        }
        starts
    }

    fn start_those_with(&mut self, whole_copies: u8, load: Load, now_ms: u64, starts: &mut Vec<Start>) {
        let looked_at = match load {
            Load::IdleDisks => LOOK_AHEAD,
            Load::FreeSlots => usize::MAX,
        };
        let is_held = self.failures.hold().is_some();
        let mut found: Vec<(Priority, Start)> = Vec::new();
        for (priority, waiting) in self
            .waiting
            .iter()
            .skip_while(|(priority, _)| priority.whole_copies < whole_copies)
            .take_while(|(priority, _)| priority.whole_copies == whole_copies)
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
                self.running.insert(start.group, Running { job, start });
                starts.push(start);
            }
        }
    }

    fn fitting(&self, job: &Job, load: Load) -> Option<Start> {
        let target = job.target?;
        let is_free = |disk: &DiskId, own: &BTreeSet<DiskId>, other: &BTreeSet<DiskId>| {
            !own.contains(disk) && (load == Load::FreeSlots || !other.contains(disk))
        };
        if !is_free(&target, &self.written_to, &self.read_from) {
            return None;
        }
        let is_source = |disk: &&DiskId| **disk != target && is_free(disk, &self.read_from, &self.written_to);
        let source = *job.sources.iter().find(is_source)?;
        Some(Start { group: job.group, source, target })
    }

    fn stop(&mut self, group: GroupId) -> Option<Job> {
        let running = self.running.remove(&group)?;
        // What was resumed may share a slot.
        let (source, target) = (running.start.source, running.start.target);
        if self.running.values().all(|other| other.start.source != source) {
            self.read_from.remove(&source);
        }
        if self.running.values().all(|other| other.start.target != target) {
            self.written_to.remove(&target);
        }
        Some(running.job)
    }

    /// The copy is whole: its job is gone and its slots are free. Whether a copy of the group ran.
    pub fn finished(&mut self, group: GroupId) -> bool {
        self.stop(group).is_some()
    }

    /// The copy failed though both disks are there: the job returns and rests for 10 s.
    pub fn failed(&mut self, group: GroupId, now_ms: u64) {
        if let Some(job) = self.stop(group) {
            self.wait(job, now_ms.saturating_add(RETRY_AFTER_MS));
        }
    }

    /// A disk is away: copies that read it or write to it return to the queue, and no job reads it any more.
    /// The groups that were to be copied to it come back: each needs a new target ([`RecoveryQueue::put`]).
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

    /// The group needs no copy any more (its member returned, or its pool is gone). The copy that ran, which
    /// its caller stops.
    pub fn withdraw(&mut self, group: GroupId) -> Option<Start> {
        self.withdraw_waiting(group);
        let start = self.running.get(&group).map(|running| running.start);
        self.stop(group);
        start
    }

    /// A server is away. Enough of them within 60 s hold the queue.
    pub fn server_failed(&mut self, server: u32, now_ms: u64) {
        self.failures.failed(server, now_ms);
    }

    /// A server is back; the hold ends with the mass failure it was one of.
    pub fn server_returned(&mut self, server: u32) {
        self.failures.returned(server);
    }

    /// Tells which servers there are, away or not, and the number of the rack of each: what a mass failure is
    /// measured by. A server of which no rack is told has a number of its own.
    pub fn set_servers(&mut self, racks: BTreeMap<u32, u32>) {
        self.most_running = (racks.len() / 2).max(1);
        self.failures.set_racks(racks);
    }

    /// Why nothing starts: the alarm to show.
    pub fn hold(&self) -> Option<MassFailure> {
        self.failures.hold()
    }

    /// An administrator says that those that are away stay away: all copies start.
    pub fn lift_hold(&mut self) {
        self.failures.lift();
    }

    /// Jobs that wait, and copies that run.
    pub fn len(&self) -> (usize, usize) {
        (self.waiting.len(), self.running.len())
    }

    /// The job of a group, waiting or running.
    pub fn job(&self, group: GroupId) -> Option<&Job> {
        if let Some(running) = self.running.get(&group) {
            return Some(&running.job);
        }
        let priority = self.places.get(&group)?;
        self.waiting.get(priority).map(|waiting| &waiting.job)
    }

    /// Jobs that wait, the next first.
    pub fn waiting(&self) -> impl Iterator<Item = &Job> + '_ {
        self.waiting.values().map(|waiting| &waiting.job)
    }

    /// Copies that run, by group.
    pub fn running(&self) -> impl Iterator<Item = Start> + '_ {
        self.running.values().map(|running| running.start)
    }
}

/// What the disks of a copy may be doing when it starts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Load {
    /// Neither is read or written by another copy.
    IdleDisks,
    /// The source may be written to, the target read.
    FreeSlots,
}
