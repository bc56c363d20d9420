//! One episode of overlapping failures, simulated event by event with the real placement and recovery queue.

use super::{Arguments, Found, failures::Failure};
use anyhow::{Context, Result};
use copal_volume::group::{
    DiskId, GroupId,
    placement::{self, DiskFacts, DiskSite},
    recovery::{RecoveryJob, RecoveryQueue},
};
use std::collections::{BTreeMap, BTreeSet};

/// Size of a group; only its share of a disk matters.
const GROUP_BYTES: u64 = 1 << 30;
/// Disks are about half full, so that new replicas have space.
const CAPACITY_FACTOR: u64 = 2;

/// Result of an episode.
#[derive(Clone, Debug)]
pub(super) struct Dead {
    /// Groups that lost their last in-sync replica, by the number of replicas that failed permanently.
    pub(super) by_permanent: Vec<u64>,
    /// Number of times when as many servers were down as a group has replicas.
    pub(super) coincidences: u64,
}

/// The cluster with all replicas in sync.
pub(super) struct Cluster {
    replicas: usize,
    members: Vec<Vec<DiskId>>,
    groups_of: Vec<Vec<GroupId>>,
    disks: Vec<DiskFacts>,
    transient_ms: u64,
    declared_after_ms: u64,
    copy_ms: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Copied { group: GroupId, start: u64 },
    Return { server: u32 },
    Declare { server: u32 },
    Fail { server: u32, is_permanent: bool },
}

#[derive(Clone, Copy)]
struct Away {
    since_ms: u64,
    until_ms: Option<u64>,
}

/// Mutable state of an episode.
struct Play<'a> {
    cluster: &'a Cluster,
    disks: Vec<DiskFacts>,
    away: BTreeMap<u32, Away>,
    moved: BTreeMap<GroupId, Vec<DiskId>>,
    gained: BTreeMap<u32, Vec<GroupId>>,
    dead: BTreeSet<GroupId>,
    queue: RecoveryQueue,
    events: BTreeSet<(u64, Event)>,
    starts: u64,
    running: BTreeMap<GroupId, u64>,
    /// The disk that a group's recovery job replaces.
    replaced: BTreeMap<GroupId, DiskId>,
}

impl Cluster {
    pub(super) fn new(arguments: &Arguments) -> Result<Cluster> {
        let (servers, replicas) = (arguments.servers, usize::from(arguments.replicas));
        let groups_a_server =
            f64::from(arguments.groups) * f64::from(arguments.replicas) / f64::from(servers);
        let capacity_bytes = (groups_a_server.ceil() as u64 + 8) * CAPACITY_FACTOR * GROUP_BYTES;
        let mut disks: Vec<DiskFacts> = (0..servers)
            .map(|server| {
                let mut identity = [0; 16];
                identity[..4].copy_from_slice(&server.to_be_bytes());
                DiskFacts {
                    disk: DiskId(server),
                    identity,
                    site: DiskSite { rack: server, zone: server },
                    capacity_bytes,
                    used_bytes: 0,
                    is_up: true,
                    is_draining: false,
                }
            })
            .collect();
        let mut groups_of = vec![Vec::new(); servers as usize];
        let mut members = Vec::with_capacity(arguments.groups as usize);
        for group in (1..=arguments.groups).map(GroupId) {
            let weighed = disks.iter().map(|d| (d.disk, d.identity, d.capacity_bytes));
            let mut chosen = placement::rank(group, weighed);
            chosen.truncate(replicas);
            for disk in &chosen {
                let held: &mut Vec<GroupId> =
                    groups_of.get_mut(disk.0 as usize).context("a ranked disk is one of those named")?;
                held.push(group);
            }
            members.push(chosen);
        }
        for (disk, held) in disks.iter_mut().zip(&groups_of) {
            disk.used_bytes = held.len() as u64 * GROUP_BYTES;
        }
        // Copies run in waves of half the servers; the average copy ends after the average number of waves.
        let waves = (groups_a_server / f64::from((servers / 2).max(1))).max(1.0);
        let copying_s = arguments.permanent_time - arguments.declared_after;
        Ok(Cluster {
            replicas,
            members,
            groups_of,
            disks,
            transient_ms: milliseconds(arguments.transient_time),
            declared_after_ms: milliseconds(arguments.declared_after),
            copy_ms: milliseconds(2.0 * copying_s / (waves + 1.0)).max(1),
        })
    }

    /// Simulates one episode, from all replicas in sync until all recoverable ones are again.
    pub(super) fn play(&mut self, failures: &[Failure], found: &mut Found) -> Dead {
        let mut dead = Dead { by_permanent: vec![0; self.replicas + 1], coincidences: 0 };
        let start_s = failures.first().map_or(0.0, |first| first.at_s);
        let mut play = Play {
            cluster: self,
            disks: self.disks.clone(),
            away: BTreeMap::new(),
            moved: BTreeMap::new(),
            gained: BTreeMap::new(),
            dead: BTreeSet::new(),
            queue: RecoveryQueue::new(self.disks.len()),
            events: BTreeSet::new(),
            starts: 0,
            running: BTreeMap::new(),
            replaced: BTreeMap::new(),
        };
        for failure in failures {
            let event = Event::Fail { server: failure.server, is_permanent: failure.is_permanent };
            play.events.insert((milliseconds(failure.at_s - start_s), event));
        }
        while let Some((now_ms, event)) = play.events.pop_first() {
            play.happen(now_ms, event, &mut dead, found);
            // Copies of one wave end together: the queue is asked once for all.
            if play.events.first().is_none_or(|(next_ms, _)| *next_ms > now_ms) {
                play.start_copies(now_ms);
            }
        }
        dead
    }
}

impl Play<'_> {
    fn happen(&mut self, now_ms: u64, event: Event, dead: &mut Dead, found: &mut Found) {
        match event {
            Event::Fail { server, is_permanent } => self.fail(now_ms, server, is_permanent, dead),
            Event::Return { server } => {
                // A permanent failure may have come first.
                if self.away.get(&server).is_some_and(|away| away.until_ms == Some(now_ms)) {
                    self.away.remove(&server);
                    self.set_up(server, true);
                    self.queue.server_returned(server);
                    self.tell_jobs(server, now_ms);
                }
            }
            Event::Declare { server } => {
                // The replacement may have happened already.
                self.queue.lift_hold();
                for group in self.groups_on(server) {
                    self.replaced.entry(group).or_insert(DiskId(server));
                    self.put_job(group, now_ms);
                }
            }
            Event::Copied { group, start } => {
                if self.running.get(&group) == Some(&start) {
                    self.copied(group, now_ms, found);
                }
            }
        }
    }

    fn fail(&mut self, now_ms: u64, server: u32, is_permanent: bool, dead: &mut Dead) {
        let until_ms = (!is_permanent).then_some(now_ms + self.cluster.transient_ms);
        if let Some(away) = self.away.get_mut(&server) {
            if is_permanent && away.until_ms.is_some() {
                *away = Away { since_ms: now_ms, until_ms };
                self.declare_later(server, now_ms);
            }
            return;
        }
        self.away.insert(server, Away { since_ms: now_ms, until_ms });
        self.set_up(server, false);
        self.queue.server_failed(server, now_ms);
        match until_ms {
            Some(until_ms) => {
                self.events.insert((until_ms, Event::Return { server }));
            }
            None => self.declare_later(server, now_ms),
        }
        for group in self.queue.disk_failed(DiskId(server)) {
            self.put_job(group, now_ms);
        }
        let returned: Vec<GroupId> = self
            .running
            .keys()
            .copied()
            .filter(|&group| !self.queue.running().any(|start| start.group == group))
            .collect();
        for group in returned {
            self.running.remove(&group);
        }
        self.tell_jobs(server, now_ms);
        if self.away.len() >= self.cluster.replicas {
            dead.coincidences += 1;
            self.count_dead(server, dead);
        }
    }

    fn declare_later(&mut self, server: u32, now_ms: u64) {
        let at_ms = now_ms + self.cluster.declared_after_ms;
        self.events.insert((at_ms, Event::Declare { server }));
    }

    fn count_dead(&mut self, server: u32, dead: &mut Dead) {
        for group in self.groups_on(server) {
            let members = self.members(group);
            let away: Vec<&Away> = members.iter().filter_map(|disk| self.away.get(&disk.0)).collect();
            if away.len() < members.len() {
                continue;
            }
            let permanent = away.iter().filter(|away| away.until_ms.is_none()).count();
            if self.dead.insert(group) {
                dead.by_permanent[permanent] += 1;
            }
        }
    }

    fn start_copies(&mut self, now_ms: u64) {
        for start in self.queue.next(now_ms) {
            self.starts += 1;
            self.running.insert(start.group, self.starts);
            let event = Event::Copied { group: start.group, start: self.starts };
            self.events.insert((now_ms + self.cluster.copy_ms, event));
        }
    }

    fn copied(&mut self, group: GroupId, now_ms: u64, found: &mut Found) {
        self.running.remove(&group);
        let target = self.queue.job(group).and_then(|job| job.target);
        let (Some(target), Some(old)) = (target, self.replaced.remove(&group)) else {
            return;
        };
        self.queue.finished(group);
        let mut members = self.members(group).to_vec();
        for member in members.iter_mut().filter(|member| **member == old) {
            *member = target;
        }
        if let Some(away) = self.away.get(&old.0) {
            found.copied += 1;
            found.copied_after_s += (now_ms - away.since_ms) as f64 / 1000.0;
        }
        let others_gone = members.iter().copied().find(|member| self.is_declared(*member, now_ms));
        self.moved.insert(group, members);
        self.gained.entry(target.0).or_default().push(group);
        if let Some(next) = others_gone {
            self.replaced.insert(group, next);
            self.put_job(group, now_ms);
        }
    }

    fn is_declared(&self, disk: DiskId, now_ms: u64) -> bool {
        self.away.get(&disk.0).is_some_and(|away| {
            away.until_ms.is_none() && away.since_ms + self.cluster.declared_after_ms <= now_ms
        })
    }

    /// Updates the recovery jobs of groups with a replica on `server` with their in-sync replicas.
    fn tell_jobs(&mut self, server: u32, now_ms: u64) {
        for group in self.groups_on(server) {
            if self.queue.job(group).is_some() {
                self.put_job(group, now_ms);
            }
        }
    }

    fn put_job(&mut self, group: GroupId, now_ms: u64) {
        let members = self.members(group).to_vec();
        let sources: Vec<DiskId> =
            members.iter().copied().filter(|disk| !self.away.contains_key(&disk.0)).collect();
        let known = self.queue.job(group).cloned();
        let target = known.as_ref().and_then(|job| job.target).or_else(|| {
            let chosen =
                placement::choose_new_member(group, &members, &members, GROUP_BYTES, &self.disks).ok()?;
            self.disks[chosen.0 as usize].used_bytes += GROUP_BYTES;
            Some(chosen)
        });
        self.queue.put(RecoveryJob {
            group,
            in_sync_copies: sources.len() as u8,
            since_ms: known.map_or(now_ms, |job| job.since_ms),
            boost: 0,
            pool: 0,
            sources,
            target,
            is_ordered: false,
        });
    }

    fn set_up(&mut self, server: u32, is_up: bool) {
        if let Some(disk) = self.disks.get_mut(server as usize) {
            disk.is_up = is_up;
        }
    }

    fn members(&self, group: GroupId) -> &[DiskId] {
        self.moved.get(&group).unwrap_or(&self.cluster.members[group.0 as usize - 1])
    }

    fn groups_on(&self, server: u32) -> Vec<GroupId> {
        let gained = self.gained.get(&server).into_iter().flatten();
        self.cluster.groups_of[server as usize]
            .iter()
            .chain(gained)
            .copied()
            .filter(|&group| self.members(group).contains(&DiskId(server)))
            .collect()
    }
}

fn milliseconds(seconds: f64) -> u64 {
    (seconds * 1000.0).round() as u64
}
