//! Copal's own scheme: real rules for rounds, partitions, detectors, patience and promotion; modelled turns
//! and messages.
//!
//! Design: docs/design/backup.md#the-simulator
//! Real: `copal_agent::{rounds, detect, markers, fleet::partition, limits::deadline}`, on real ids. Every part
//! of a VM asks every owner, and a marker reaches all owners at one time, so all owners share the markers of a
//! round.
//! Step functions, since the real ones are threads and connections:
//! - turns of a host (`copal_agent::agent::turns`): one VM reads or stores at a time, popular chunks before
//!   the rest;
//! - when a host gives up;
//! - the check by another host (`copal_agent::agent::checker`): the first two in rank read a pack, the second
//!   5 s later;
//! - repeated requests: a host that carries an id learns from the log when it is checked. After a time-out it
//!   stores the chunk itself;
//! - the end of a job ([`settling`]): the real detectors answer requests for all private ids again, and the
//!   popular ones are given up.
//!
//! Not modelled: stand-ins. A host without an answer in time stores the chunks itself.

mod checkers;
mod log;
mod owners;
mod parts;
mod settling;

use super::engine::{Engine, LinkId, Nanos};
use super::hosts::Hosts;
use super::inputs::{BACK_END_BYTES_PER_S, ROUND_TRIP_S, copal};
use super::outcome::{Bytes, Chunks, Outcome, VmTime};
use super::trace::{Seen, Trace};
use anyhow::{Result, ensure};
use checkers::first_two;
use copal_agent::fleet::partition::IdPartitions;
use copal_agent::limits::deadline::{AnswerTimes, LEAST_DEADLINE, patience_after};
use copal_agent::markers::RoundMarkers;
use copal_agent::rounds::RoundCount;
use copal_backup::peers::{Answer, ShortId};
use log::{Log, PackNumber};
use owners::{Batch, Owners, Reply, io_bytes};
use parts::{Part, plan};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::path::Path;
use std::time::{Duration, Instant};

/// Delay of the second in rank before it reads a pack.
const HEAD_START_S: f64 = 5.0;
/// Time between two days' jobs.
const DAY: Duration = Duration::from_secs(86_400);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Tag {
    /// Reading or sending of a host's turn has ended.
    Leg(usize),
    Marker(usize, usize),
    PatienceEnds(usize),
    GivesUp(usize, usize),
    Compared(usize),
    Checked(PackNumber),
    CarryEnds(usize),
    AskedAgain(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Read(usize),
    StorePopular(usize),
    StoreRest(usize),
}

/// Options of the scheme.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub(super) rounds: RoundCount,
}

/// State that lasts over days: detectors, popular chunks, names.
pub(super) struct Domain {
    names: Vec<String>,
    owners: Owners,
    log: Log,
    checked: HashSet<ShortId>,
    day: u32,
}

impl Domain {
    pub(super) fn open(hosts: usize, trace: &Trace, fewer_partitions: u32, scratch: &Path) -> Result<Domain> {
        let names: Vec<String> = (0..hosts).map(|host| format!("host{host:05}")).collect();
        Ok(Domain {
            owners: Owners::open(&names, u64::from(trace.popular()), fewer_partitions, scratch)?,
            names,
            log: Log::default(),
            checked: HashSet::new(),
            day: 0,
        })
    }

    /// Simulates a day's job of all hosts.
    pub(super) fn job(&mut self, hosts: &Hosts<'_>, trace: &Trace, rules: Rules) -> Result<Outcome> {
        let (parts, rounds) = plan(hosts, trace, rules.rounds);
        let mut engine = Engine::new();
        let state: Vec<Host> = (0..hosts.count())
            .map(|host| Host {
                disk: engine.link(hosts.disk_bytes_per_s(host)),
                upload: engine.link(hosts.upload_bytes_per_s(host)),
                checks_until: 0,
                round: 0,
                round_began: 0,
                reads_left: 0,
                parts_left: 0,
                turns: VecDeque::new(),
                turn: None,
                legs: 0,
                seen: HashMap::new(),
                times: AnswerTimes::default(),
                marked: vec![],
                longest: Duration::ZERO,
            })
            .collect();
        let most_rounds = rounds.iter().map(Vec::len).max().unwrap_or(0);
        let chunks_per_id = trace.id_bytes / copal::CHUNK_BYTES;
        let popular_chunks = f64::from(trace.popular()) * chunks_per_id;
        let mut job = Job {
            engine,
            hosts,
            trace,
            state,
            parts,
            rounds,
            markers: (0..most_rounds).map(|_| RoundMarkers::default()).collect(),
            replies: BTreeMap::new(),
            carrying: HashMap::new(),
            began: vec![0; hosts.fleet.vms.len()],
            bytes: Bytes::default(),
            chunks: Chunks::default(),
            vms: Vec::new(),
            chunks_per_id,
            partitions: f64::from(
                IdPartitions::for_fleet(popular_chunks as u64, hosts.count() as u32).count(),
            ),
            epoch: Instant::now(),
            domain: self,
        };
        let most_answers = job.most_answers();
        for host in 0..hosts.count() {
            job.begin_round(host);
        }
        while let Some(tag) = job.engine.next() {
            job.step(tag)?;
        }
        job.settle()?;
        ensure!(job.chunks.adds_up(), "chunks are missing: {:?}", job.chunks);
        ensure!(job.vms.len() == hosts.fleet.vms.len(), "not all VMs have ended");
        let outcome = Outcome {
            scheme: "copal",
            memory_bytes: Some(most_answers),
            bytes: job.bytes,
            chunks: job.chunks,
            vms: job.vms,
            hosts: hosts.count(),
            slow: hosts.slow,
        };
        self.day += 1;
        Ok(outcome)
    }
}

struct Host {
    disk: LinkId,
    upload: LinkId,
    /// End of its last check of a pack.
    checks_until: Nanos,
    round: usize,
    round_began: Nanos,
    /// Parts of the round that are still to be read.
    reads_left: usize,
    parts_left: usize,
    turns: VecDeque<Turn>,
    turn: Option<Turn>,
    /// Unfinished transfers of the turn: reading and sending run in parallel.
    legs: u8,
    /// Ids seen, by VM.
    seen: HashMap<usize, Seen>,
    times: AnswerTimes,
    /// Times at which each of its rounds had sent all requests.
    marked: Vec<Nanos>,
    /// Its longest round.
    longest: Duration,
}

struct Job<'a> {
    engine: Engine<Tag>,
    hosts: &'a Hosts<'a>,
    trace: &'a Trace,
    state: Vec<Host>,
    parts: Vec<Part>,
    /// Indexes of parts, by host and round.
    rounds: Vec<Vec<Vec<usize>>>,
    markers: Vec<RoundMarkers<usize>>,
    /// Answers of unfinished comparisons.
    replies: BTreeMap<usize, Vec<Reply>>,
    /// Indexes of parts that wait for an id.
    carrying: HashMap<ShortId, Vec<usize>>,
    /// Begin of each VM.
    began: Vec<Nanos>,
    bytes: Bytes,
    chunks: Chunks,
    vms: Vec<VmTime>,
    chunks_per_id: f64,
    /// Number of partitions of a fleet that is not scaled down.
    partitions: f64,
    /// Zero of the agents' clocks.
    epoch: Instant,
    domain: &'a mut Domain,
}

impl Job<'_> {
    /// The most memory that a host's round needs for answers.
    fn most_answers(&self) -> f64 {
        let bytes = |round: &Vec<usize>| round.iter().map(|&part| self.parts[part].bytes).sum::<f64>();
        let largest = self.rounds.iter().flatten().map(bytes).fold(0.0, f64::max);
        largest / copal::CHUNK_BYTES * copal_agent::rounds::ANSWER_BYTES as f64
    }

    fn step(&mut self, tag: Tag) -> Result<()> {
        match tag {
            Tag::Leg(host) => {
                self.state[host].legs -= 1;
                if self.state[host].legs == 0
                    && let Some(turn) = self.state[host].turn.take()
                {
                    self.end_turn(host, turn)?;
                    self.next_turn(host);
                }
            }
            Tag::Marker(host, round) => self.mark(host, round)?,
            Tag::PatienceEnds(round) => {
                let now = self.now();
                if self.markers[round].take_due(now) {
                    self.compare_due(round)?;
                }
            }
            Tag::GivesUp(host, round) => self.give_up(host, round),
            Tag::Compared(owner) => {
                self.domain.owners.end(owner);
                for reply in self.replies.remove(&owner).unwrap_or_default() {
                    self.answer(&reply)?;
                }
                self.compare_next(owner)?;
            }
            Tag::Checked(pack) => self.check(pack),
            Tag::CarryEnds(part) => self.end_carrying(part),
            Tag::AskedAgain(part) => self.enter_turn(Turn::StoreRest(part)),
        }
        Ok(())
    }

    fn begin_round(&mut self, host: usize) {
        let round = self.state[host].round;
        let Some(parts) = self.rounds[host].get(round).cloned() else {
            // Other hosts wait for the markers of all rounds.
            for later in round..self.markers.len() {
                self.engine.after(ROUND_TRIP_S / 2.0, Tag::Marker(host, later));
            }
            return;
        };
        let now = self.engine.now();
        let state = &mut self.state[host];
        state.round_began = now;
        (state.reads_left, state.parts_left) = (parts.len(), parts.len());
        parts.into_iter().for_each(|part| self.enter_turn(Turn::Read(part)));
    }

    fn enter_turn(&mut self, turn: Turn) {
        let (Turn::Read(part) | Turn::StorePopular(part) | Turn::StoreRest(part)) = turn;
        let host = self.parts[part].host;
        self.state[host].turns.push_back(turn);
        self.next_turn(host);
    }

    fn next_turn(&mut self, host: usize) {
        if self.state[host].turn.is_some() {
            return;
        }
        let Some(turn) = self.state[host].turns.pop_front() else {
            return;
        };
        let spool =
            |part: &Part| (part.ids.end - part.ids.start) as f64 * self.chunks_per_id * copal::SPOOL_BYTES;
        let id_bytes = self.trace.id_bytes;
        let (disk, upload) = match turn {
            Turn::Read(part) => (self.parts[part].bytes + spool(&self.parts[part]), 0.0),
            Turn::StorePopular(part) => {
                let stored = self.parts[part].popular.len() as f64 * id_bytes;
                (stored * copal::OVER_READ, stored)
            }
            Turn::StoreRest(part) => {
                let stored = self.parts[part].private.len() as f64 * id_bytes;
                (stored * copal::OVER_READ + spool(&self.parts[part]), stored)
            }
        };
        if let Turn::Read(part) = turn
            && self.parts[part].is_first
        {
            self.began[self.parts[part].vm] = self.engine.now();
        }
        self.bytes.local_io += disk;
        self.bytes.stored += upload;
        let state = &mut self.state[host];
        (state.turn, state.legs) = (Some(turn), 2);
        self.engine.send(state.disk, disk, Tag::Leg(host));
        self.engine.send(state.upload, upload, Tag::Leg(host));
    }

    fn end_turn(&mut self, host: usize, turn: Turn) -> Result<()> {
        match turn {
            Turn::Read(part) => {
                self.ask(part)?;
                self.state[host].reads_left -= 1;
                if self.state[host].reads_left == 0 {
                    self.all_asked(host);
                }
                if self.parts[part].open == 0 {
                    self.enter_turn(Turn::StorePopular(part));
                }
            }
            Turn::StorePopular(part) => {
                self.store_popular(host, part);
                self.carry(part);
            }
            Turn::StoreRest(part) => {
                self.chunks.private += self.parts[part].private.len() as u64;
                if self.parts[part].is_last {
                    let (began, ended) = (self.began[self.parts[part].vm], self.engine.now());
                    self.vms.push(VmTime { host, began, ended });
                }
                self.state[host].parts_left -= 1;
                if self.state[host].parts_left == 0 {
                    self.state[host].round += 1;
                    self.begin_round(host);
                }
            }
        }
        Ok(())
    }

    /// Names the chunks of a part, and asks the owners about chunks that the VM does not have.
    fn ask(&mut self, number: usize) -> Result<()> {
        let day = self.domain.day;
        let part = &mut self.parts[number];
        let state = &mut self.state[part.host];
        let mut seen = state.seen.remove(&part.vm).unwrap_or_default();
        let all = part.ids.end - part.ids.start;
        for at in part.ids.clone() {
            let chunk = self.trace.chunk(part.vm, day, at);
            if seen.is_first(chunk) {
                part.asked.push(self.trace.id(chunk, part.vm, day, at));
            }
        }
        if !part.is_last {
            state.seen.insert(part.vm, seen);
        }
        part.asked.sort_unstable();
        part.open = part.asked.len() as u64;
        self.chunks.all += all;
        self.chunks.inner += all - part.open;
        let chunks = part.open as f64 * self.chunks_per_id;
        self.bytes.messages +=
            chunks * copal::MESSAGE_BYTES + chunks.min(self.partitions) * copal::BATCH_BYTES;
        let round = state.round;
        if part.open > 0 {
            self.markers[round].ask(part.host);
        }
        let batches: Vec<_> = self.domain.owners.batches(&part.asked).collect();
        part.unanswered = batches.iter().map(|(first, ids)| (*first, ids.len())).collect();
        for (first, ids) in batches {
            self.domain.owners.take(&Batch {
                job: day,
                round,
                host: part.host,
                vm: part.vm,
                number: (number as u64) << 32 | first as u64,
                ids,
            })?;
        }
        Ok(())
    }

    fn all_asked(&mut self, host: usize) {
        let now = self.engine.now();
        let state = &mut self.state[host];
        state.marked.push(now);
        state.longest = state.longest.max(Duration::from_nanos(now - state.round_began));
        let timeout = Duration::from_secs_f64(copal::TIMEOUT_S);
        let p99 = state.times.percentile(99).unwrap_or(timeout);
        let usual = p99.saturating_mul(3).max(LEAST_DEADLINE).min(timeout);
        let deadline = (patience_after(state.longest) + usual).as_secs_f64();
        let round = state.round;
        self.engine.after(ROUND_TRIP_S / 2.0, Tag::Marker(host, round));
        self.engine.after(deadline, Tag::GivesUp(host, round));
    }

    fn mark(&mut self, host: usize, round: usize) -> Result<()> {
        let (now, all) = (self.now(), self.hosts.count());
        let patience = patience_after(self.state[host].longest);
        let markers = &mut self.markers[round];
        let before = markers.due();
        if markers.mark(host, patience, all, now) {
            return self.compare_due(round);
        }
        if let Some(due) = markers.due()
            && before != Some(due)
        {
            let seconds = (due - now).as_secs_f64();
            self.engine.after(seconds, Tag::PatienceEnds(round));
        }
        Ok(())
    }

    /// The simulated time as the agents' rules expect it.
    fn now(&self) -> Instant {
        self.epoch + Duration::from_nanos(self.engine.now())
    }

    fn compare_due(&mut self, round: usize) -> Result<()> {
        self.domain.owners.close(round);
        (0..self.domain.owners.count()).try_for_each(|owner| self.compare_next(owner))
    }

    fn compare_next(&mut self, owner: usize) -> Result<()> {
        let now = DAY * self.domain.day + Duration::from_nanos(self.engine.now());
        let Some((compared, replies)) = self.domain.owners.begin(owner, &self.domain.log, now)? else {
            return Ok(());
        };
        let bytes = io_bytes(&compared, self.chunks_per_id);
        self.bytes.local_io += bytes;
        self.replies.insert(owner, replies);
        let own_bytes = bytes / self.domain.owners.hosts_per_partition();
        self.engine.send(self.state[owner].disk, own_bytes, Tag::Compared(owner));
        Ok(())
    }

    /// Enters the answers to a batch.
    fn answer(&mut self, reply: &Reply) -> Result<()> {
        let (number, first) = ((reply.batch >> 32) as usize, reply.batch as u32 as usize);
        let part = &mut self.parts[number];
        if part.open == 0 {
            // The part was given up.
            return Ok(());
        }
        part.unanswered.remove(&first);
        let ids = &part.asked[first..first + reply.answers.len()];
        for (&answer, id) in reply.answers.iter().zip(ids) {
            match answer {
                Answer::NEW | Answer::FRACTION_USED => part.private.push(*id),
                Answer::STORE_POPULAR => part.popular.push(*id),
                Answer::CARRY => {
                    part.carried.insert(*id);
                }
                hit => {
                    ensure!(self.domain.log.has_at(hit, id), "an answer leads to another chunk's frame");
                    self.chunks.hits += 1;
                }
            }
        }
        part.open -= reply.answers.len() as u64;
        let state = &mut self.state[part.host];
        if let Some(marked) = state.marked.get(state.round) {
            state.times.enter(Duration::from_nanos(self.engine.now() - marked));
        }
        if part.open == 0 {
            self.enter_turn(Turn::StorePopular(number));
        }
        Ok(())
    }

    /// Stores chunks without an answer in time as private ones.
    fn give_up(&mut self, host: usize, round: usize) {
        for number in self.rounds[host][round].clone() {
            let part = &mut self.parts[number];
            if part.open > 0 {
                for (first, len) in std::mem::take(&mut part.unanswered) {
                    part.private.extend_from_slice(&part.asked[first..first + len]);
                }
                self.chunks.unresolved += part.open;
                part.open = 0;
                self.enter_turn(Turn::StorePopular(number));
            }
        }
    }

    fn store_popular(&mut self, host: usize, number: usize) {
        let part = &mut self.parts[number];
        part.asked = Vec::new();
        let ids = std::mem::take(&mut part.popular);
        if ids.is_empty() {
            return;
        }
        self.chunks.popular += ids.len() as u64;
        let pack = self.domain.log.store(&ids);
        let bytes = ids.len() as f64 * self.trace.id_bytes;
        let at = self.checked_at(host, pack, bytes);
        let seconds = (at - self.engine.now()) as f64 / 1e9;
        self.engine.after(seconds, Tag::Checked(pack));
    }

    /// Time at which the first of the two checkers has read a pack.
    fn checked_at(&mut self, writer: usize, pack: PackNumber, bytes: f64) -> Nanos {
        let now = self.engine.now();
        let two = first_two(&self.domain.names, writer, pack);
        // A host that is alone checks its own packs.
        let first = (two[0].unwrap_or(writer), 0.0);
        let second = two[1].map(|host| (host, HEAD_START_S));
        let opened = [Some(first), second].into_iter().flatten().map(|(host, later)| {
            let slower = BACK_END_BYTES_PER_S / self.hosts.back_end_bytes_per_s(host);
            let took = super::engine::nanos(bytes * slower / BACK_END_BYTES_PER_S);
            let from = now + super::engine::nanos(later + copal::CHECKER_LOOK_S);
            (from.max(self.state[host].checks_until) + took, host)
        });
        let (at, by) = opened.min().unwrap_or((now, writer));
        self.state[by].checks_until = at;
        at
    }

    fn check(&mut self, pack: PackNumber) {
        let ids = self.domain.log.check(pack).to_vec();
        self.domain.checked.extend(ids.iter().copied());
        for id in ids {
            for number in self.carrying.remove(&id).unwrap_or_default() {
                let part = &mut self.parts[number];
                if !part.is_decided && part.carried.remove(&id) {
                    self.chunks.hits += 1;
                    if part.carried.is_empty() {
                        self.end_carrying(number);
                    }
                }
            }
        }
    }

    /// Waits for chunks that other hosts are storing.
    fn carry(&mut self, number: usize) {
        let part = &mut self.parts[number];
        self.bytes.messages += part.carried.len() as f64 * self.chunks_per_id * copal::MESSAGE_BYTES;
        let before = part.carried.len();
        part.carried.retain(|id| !self.domain.checked.contains(id));
        self.chunks.hits += (before - part.carried.len()) as u64;
        if part.carried.is_empty() {
            part.is_decided = true;
            let pause = if before > 0 { copal::ASK_AGAIN_S } else { 0.0 };
            self.engine.after(pause, Tag::AskedAgain(number));
            return;
        }
        for id in &part.carried {
            self.carrying.entry(*id).or_default().push(number);
        }
        self.engine.after(copal::TIMEOUT_S, Tag::CarryEnds(number));
    }

    /// Decides carried chunks, once all of them are there or the time is over.
    fn end_carrying(&mut self, number: usize) {
        let part = &mut self.parts[number];
        if std::mem::replace(&mut part.is_decided, true) {
            return;
        }
        self.chunks.unresolved += part.carried.len() as u64;
        part.private.extend(std::mem::take(&mut part.carried));
        self.engine.after(copal::ASK_AGAIN_S, Tag::AskedAgain(number));
    }
}
