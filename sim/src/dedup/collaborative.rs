//! The paper's collaborative scheme: k rounds, each read twice, and an index of all unique chunks that is
//! read in every round.
//!
//! Paper: low-profile-dedup §3, figure 3
//! - A host's smallest VMs come first. A VM larger than the average is split at the byte where a round has
//!   its share of the host's bytes.
//! - A round is compared once all hosts have sent their requests, and stored once all have compared. Then the
//!   host reads for the next round: it has memory for the answers of one round.
//! - A VM begins with its first round and ends with its last one: rounds are the unit.
//!
//! A step function without code of Copal.

use super::engine::{Engine, LinkId, Nanos};
use super::hosts::Hosts;
use super::inputs::{ROUND_TRIP_S, paper};
use super::outcome::{Bytes, Chunks, Outcome, VmTime};
use super::trace::Trace;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Tag {
    Read(usize),
    AllAsked(usize),
    Compared(usize, usize),
    AllCompared(usize),
    /// End of the second reading or of the sending of a round, which run in parallel.
    Stored(usize),
}

/// A round of a host.
#[derive(Clone, Debug, Default)]
pub(super) struct Round {
    pub(super) bytes: f64,
    stored: f64,
    /// VMs by their index in the fleet.
    pub(super) vms: Vec<usize>,
    began: Nanos,
    ended: Nanos,
}

struct Host {
    disk: LinkId,
    back_end: LinkId,
    rounds: Vec<Round>,
    /// Number of rounds read, and of rounds stored.
    read: usize,
    stored: usize,
    /// Unfinished transfers of the round being stored: second reading and sending.
    open: u8,
}

struct Job {
    engine: Engine<Tag>,
    hosts: Vec<Host>,
    /// By round.
    asked: Vec<usize>,
    compared: Vec<usize>,
    /// Number of rounds that all hosts have compared.
    answered: usize,
    /// Bytes of one host's index, and of its messages in a round.
    index_bytes: f64,
    bytes: Bytes,
}

pub(super) fn run(
    hosts: &Hosts<'_>,
    trace: &Trace,
    rounds: u32,
    (stored, chunks): (&[u64], Chunks),
) -> Outcome {
    let rounds = rounds as usize;
    let mut engine = Engine::new();
    let state: Vec<Host> = (0..hosts.count())
        .map(|host| Host {
            disk: engine.link(hosts.disk_bytes_per_s(host)),
            back_end: engine.link(hosts.back_end_bytes_per_s(host)),
            rounds: plan(hosts, host, rounds, |vm| stored[vm] as f64 * trace.id_bytes),
            read: 0,
            stored: 0,
            open: 0,
        })
        .collect();
    let rows = hosts.fleet.dirty_bytes() / paper::CHUNK_BYTES / hosts.count() as f64;
    let mut job = Job {
        engine,
        hosts: state,
        asked: vec![0; rounds],
        compared: vec![0; rounds],
        answered: 0,
        index_bytes: rows * paper::INDEX_ROWS_PER_CHUNK * paper::ROW_BYTES,
        bytes: Bytes::default(),
    };
    (0..hosts.count()).for_each(|host| job.read_next(host));
    while let Some(tag) = job.engine.next() {
        job.step(tag);
    }
    let round_bytes = job.hosts.iter().flat_map(|host| &host.rounds).map(|round| round.bytes);
    let mean_round = round_bytes.sum::<f64>() / (hosts.count() * rounds) as f64;
    Outcome {
        scheme: "collaborative",
        memory_bytes: Some(mean_round / paper::CHUNK_BYTES * paper::ROW_BYTES),
        bytes: job.bytes,
        chunks,
        vms: times(hosts, &job.hosts),
        hosts: hosts.count(),
        slow: hosts.slow,
    }
}

/// The paper's rule. Rounds may differ by a quarter of an average VM; otherwise small VMs would be split.
pub(super) fn plan(
    hosts: &Hosts<'_>,
    host: usize,
    rounds: usize,
    stored: impl Fn(usize) -> f64,
) -> Vec<Round> {
    let dirty = |vm: usize| hosts.fleet.vms[vm].dirty_bytes;
    let mut vms = hosts.fleet.hosts[host].clone();
    vms.sort_by(|a, b| dirty(*a).total_cmp(&dirty(*b)));
    let share = (hosts.fleet.dirty_bytes_of(host) / rounds as f64).max(1.0);
    let average = hosts.fleet.dirty_bytes() / hosts.fleet.vms.len() as f64;
    let mut planned = vec![Round::default(); rounds];
    let mut before = 0.0;
    for vm in vms {
        let mut left = dirty(vm);
        while left > 0.0 {
            // The round with most bytes of an unsplit VM; for a larger VM, its next round.
            let looks_at = if dirty(vm) <= average { left / 2.0 } else { average / 4.0 };
            let round = (((before + looks_at) / share) as usize).min(rounds - 1);
            let to_its_end = share * (round + 1) as f64 - before;
            let is_last = dirty(vm) <= average || left <= to_its_end + average / 4.0 || round + 1 == rounds;
            let part = if is_last { left } else { to_its_end };
            let of = &mut planned[round];
            of.bytes += part;
            of.stored += stored(vm) * part / dirty(vm);
            of.vms.push(vm);
            before += part;
            left -= part;
        }
    }
    planned
}

fn times(hosts: &Hosts<'_>, of: &[Host]) -> Vec<VmTime> {
    let mut times: Vec<Option<VmTime>> = vec![None; hosts.fleet.vms.len()];
    for (host, state) in of.iter().enumerate() {
        for round in &state.rounds {
            for &vm in &round.vms {
                let began = times[vm].map_or(round.began, |before| before.began);
                let ended = round.ended;
                times[vm] = Some(VmTime { host, began, ended });
            }
        }
    }
    times.into_iter().flatten().collect()
}

impl Job {
    fn messages(&self, host: usize, round: usize) -> f64 {
        self.hosts[host].rounds[round].bytes / paper::CHUNK_BYTES * paper::MESSAGE_BYTES
    }

    fn step(&mut self, tag: Tag) {
        match tag {
            Tag::Read(host) => {
                let round = self.hosts[host].read;
                self.hosts[host].read += 1;
                self.asked[round] += 1;
                if self.asked[round] == self.hosts.len() {
                    self.engine.after(ROUND_TRIP_S, Tag::AllAsked(round));
                }
            }
            Tag::AllAsked(round) => {
                for host in 0..self.hosts.len() {
                    // Received messages, and the whole index.
                    let bytes = self.messages(host, round) + self.index_bytes;
                    self.bytes.local_io += bytes;
                    let tag = Tag::Compared(host, round);
                    self.engine.send(self.hosts[host].disk, bytes, tag);
                }
            }
            Tag::Compared(_, round) => {
                self.compared[round] += 1;
                if self.compared[round] == self.hosts.len() {
                    self.engine.after(ROUND_TRIP_S, Tag::AllCompared(round));
                }
            }
            Tag::AllCompared(round) => {
                self.answered = round + 1;
                (0..self.hosts.len()).for_each(|host| self.store_next(host));
            }
            Tag::Stored(host) => {
                self.hosts[host].open -= 1;
                if self.hosts[host].open == 0 {
                    let now = self.engine.now();
                    let of = &mut self.hosts[host];
                    of.rounds[of.stored].ended = now;
                    of.stored += 1;
                    self.store_next(host);
                    self.read_next(host);
                }
            }
        }
    }

    /// Starts reading for the next round.
    fn read_next(&mut self, host: usize) {
        let now = self.engine.now();
        let of = &mut self.hosts[host];
        let Some(round) = of.rounds.get_mut(of.read) else {
            return;
        };
        round.began = now;
        let (disk, read) = (of.disk, round.bytes);
        // Hosts are uniform: a host writes as many messages as it sends.
        let bytes = read + self.messages(host, self.hosts[host].read);
        self.bytes.local_io += bytes;
        self.bytes.messages += bytes - read;
        self.engine.send(disk, bytes, Tag::Read(host));
    }

    fn store_next(&mut self, host: usize) {
        let of = &mut self.hosts[host];
        if of.open > 0 || of.stored >= self.answered {
            return;
        }
        let round = &of.rounds[of.stored];
        of.open = 2;
        self.bytes.local_io += round.bytes;
        self.bytes.stored += round.stored;
        self.engine.send(of.disk, round.bytes, Tag::Stored(host));
        self.engine.send(of.back_end, round.stored, Tag::Stored(host));
    }
}
