//! Kinds of faults, their times and durations, drawn from the seed.
//!
//! Invariant: faults never exceed the failures that the cluster tolerates. A run loses at most one disk for
//! good, and only while every group has two other in-sync replicas.

use super::{
    checks,
    hosts::{DataHost, End, MasterHost},
    run::{Faults, Simulation},
};
use anyhow::Result;
use copal_client::administration::{AdminRequest, requests};
use copal_device::fault::{Fault, WriteFault};
use std::{sync::atomic::Ordering, time::Duration};

/// Repair of a fault, and its time.
pub(super) struct Mending {
    at_ms: u64,
    what: Mends,
}

#[derive(Clone, Copy)]
enum Mends {
    Server(usize),
    Master(usize),
    Way(u32, u32),
    PausedServer(usize),
    PausedMaster(usize),
    Clock(usize),
    MasterClock(usize),
    ClientClock(usize),
    SlowDisk(usize),
    FullDisk(usize),
    FilledDisk(usize),
    Database,
    Latency,
}

/// All kinds of faults, by the name under which they are counted.
pub(super) const KINDS: [&str; 23] = [
    "server killed",
    "power cut of one",
    "power cut of all",
    "power cut in the middle of a write",
    "disk error",
    "full disk",
    "slow disk",
    "one-way cut",
    "server cut from the masters",
    "clock jump",
    "server paused",
    "master paused beyond its lease",
    "master killed",
    "database away",
    "slow network",
    "client asked to be killed",
    "server given up",
    "server drained",
    "server added",
    "clock jump of a master",
    "clock jump of a client",
    "disk filled to its reserve",
    "host full in the middle of a write",
];

/// Offsets of a clock jump: from an hour back to a year ahead.
const CLOCK_JUMPS_MS: [i64; 6] = [-3_600_000, -300_000, -90_000, 90_000, 3_600_000, 365 * 24 * 3_600_000];

impl Simulation {
    /// Injects one fault, or none if none fits now.
    pub(super) async fn fault(&mut self, faults: Faults) -> Result<()> {
        let kind = match faults {
            Faults::None => return Ok(()),
            Faults::PowerCuts => 6 + self.world.below(7),
            Faults::FullDisks => [0, 6, 13, 14, 14, 14][self.world.below(6) as usize],
            Faults::All => self.world.below(42),
        };
        let at = self.world.below(self.data.len() as u64) as usize;
        let master = self.world.below(self.masters.len() as u64) as usize;
        let name = self.data[at].name.clone();
        let is_up = self.data[at].running.is_some();
        match kind {
            0..=5 if is_up => {
                self.met(0, &name);
                self.data[at].end(&self.network, End::Kill).await;
                self.mend_within(500, 25_000, Mends::Server(at));
            }
            6..=8 if is_up => {
                self.met(1, &name);
                self.data[at].end(&self.network, End::PowerCut).await;
                self.mend_within(500, 25_000, Mends::Server(at));
            }
            9 => {
                self.met(2, "");
                for at in 0..self.data.len() {
                    self.data[at].end(&self.network, End::PowerCut).await;
                    self.mend_within(500, 10_000, Mends::Server(at));
                }
                if self.world.one_in(2) {
                    for at in 0..self.masters.len() {
                        self.masters[at].kill(&self.network);
                        self.mend_within(500, 10_000, Mends::Master(at));
                    }
                }
            }
            10..=12 if is_up => {
                self.break_a_write(at, WriteFault::Error);
                if let Some(running) = &self.data[at].running {
                    self.met(3, &name);
                    running.process.doom(&self.data[at].device);
                }
            }
            13 if is_up => {
                let fault = [WriteFault::Error, WriteFault::HostFull][self.world.below(2) as usize];
                self.met(if fault == WriteFault::Error { 4 } else { 22 }, &name);
                self.break_a_write(at, fault);
                // It stays down until the repair starts it again.
                self.mend_within(20_000, 60_000, Mends::Server(at));
            }
            14 if is_up && self.world.one_in(2) => {
                self.met(21, &name);
                self.data[at].fill(true);
                self.mend_within(5_000, 60_000, Mends::FilledDisk(at));
            }
            14 if is_up => {
                self.met(5, &name);
                self.data[at].taken_percent.store(97, Ordering::Relaxed);
                self.mend_within(5_000, 40_000, Mends::FullDisk(at));
            }
            15..=16 if is_up => {
                self.met(6, &name);
                self.data[at].host.device_ms.store(2_000, Ordering::Relaxed);
                self.mend_within(5_000, 30_000, Mends::SlowDisk(at));
            }
            17..=20 => {
                let other = self.any_host();
                let own = self.data[at].number;
                if other != own {
                    let (from, to) = if self.world.one_in(2) { (own, other) } else { (other, own) };
                    self.met(7, &format!("{from} to {to}"));
                    self.network.cut(from, to, true);
                    self.mend_within(500, 30_000, Mends::Way(from, to));
                }
            }
            21..=22 => {
                self.met(8, &name);
                for master in 0..self.masters.len() {
                    let (from, to) = (self.data[at].number, self.masters[master].number);
                    self.network.cut(from, to, true);
                    self.network.cut(to, from, true);
                    self.mend_within(2_000, 30_000, Mends::Way(from, to));
                    self.mend_within(2_000, 30_000, Mends::Way(to, from));
                }
            }
            23 => {
                let jump_ms = CLOCK_JUMPS_MS[self.world.below(CLOCK_JUMPS_MS.len() as u64) as usize];
                self.met(9, &format!("{name} by {jump_ms} ms"));
                self.data[at].host.skew_ms.store(jump_ms, Ordering::Relaxed);
                self.mend_within(1_000, 60_000, Mends::Clock(at));
            }
            40 => {
                let jump_ms = CLOCK_JUMPS_MS[self.world.below(CLOCK_JUMPS_MS.len() as u64) as usize];
                self.met(19, &format!("{} by {jump_ms} ms", self.masters[master].number));
                self.masters[master].host.skew_ms.store(jump_ms, Ordering::Relaxed);
                self.mend_within(1_000, 60_000, Mends::MasterClock(master));
            }
            41 if !self.client_clocks.is_empty() => {
                let client = self.world.below(self.client_clocks.len() as u64) as usize;
                let jump_ms = CLOCK_JUMPS_MS[self.world.below(CLOCK_JUMPS_MS.len() as u64) as usize];
                self.met(20, &format!("{} by {jump_ms} ms", self.clients[client]));
                self.client_clocks[client].store(jump_ms, Ordering::Relaxed);
                self.mend_within(1_000, 60_000, Mends::ClientClock(client));
            }
            24..=26 => {
                if let Some(running) = &self.data[at].running {
                    running.process.pause(true);
                    self.met(10, &name);
                    self.mend_within(500, 25_000, Mends::PausedServer(at));
                }
            }
            27..=28 => {
                if let Some(process) = &self.masters[master].process {
                    process.pause(true);
                    self.met(11, "");
                    self.mend_within(11_000, 30_000, Mends::PausedMaster(master));
                }
            }
            29..=30 => {
                self.met(12, "");
                self.masters[master].kill(&self.network);
                self.mend_within(500, 20_000, Mends::Master(master));
            }
            31 => {
                self.met(13, "");
                self.database.set_away(true);
                self.mend_within(500, 15_000, Mends::Database);
            }
            32 => {
                self.met(14, "");
                self.network.set_latency(800);
                self.mend_within(2_000, 15_000, Mends::Latency);
            }
            33..=37 => {
                self.met(15, "");
                self.work.kill_one.store(true, Ordering::Relaxed);
            }
            38 if self.spares > 0
                && self.lost.is_none()
                && checks::survives_without(self.operator.1.map(), &self.data, at) =>
            {
                self.give_up(at).await?;
            }
            39 if self.drained.is_none() => {
                let drain = requests::DrainServer { name: name.clone(), undo: false, dry_run: false };
                if self.administer(drain).await.is_some() {
                    self.met(17, &name);
                    self.drained = Some(at);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn met(&self, kind: usize, whom: &str) {
        self.world.sometimes(KINDS[kind]);
        self.world.log(|| format!("FAULT {} {whom}", KINDS[kind]));
    }

    fn mend_within(&mut self, from_ms: u64, until_ms: u64, what: Mends) {
        let at_ms = self.world.now_ms() + self.world.between(from_ms, until_ms).as_millis() as u64;
        self.mendings.push(Mending { at_ms, what });
    }

    fn any_host(&self) -> u32 {
        let hosts =
            self.data.iter().map(|data| data.number).chain(self.masters.iter().map(|master| master.number));
        let hosts: Vec<u32> = hosts.chain(self.clients.iter().copied()).collect();
        hosts[self.world.below(hosts.len() as u64) as usize]
    }

    fn break_a_write(&self, at: usize, fault: WriteFault) {
        let skip = self.world.below(40) as u32;
        self.data[at].device.inject(Fault::Write { skip, fault });
    }

    /// Loses a disk for good; another server joins later.
    async fn give_up(&mut self, at: usize) -> Result<()> {
        self.data[at].end(&self.network, End::Kill).await;
        self.data[at].is_lost = true;
        self.lost = Some(at);
        self.met(16, &self.data[at].name.clone());
        Ok(())
    }

    /// Reports the lost disk to the master, and adds another server, once the master answers.
    pub(super) async fn replace_lost(&mut self) -> Result<()> {
        let Some(lost) = self.lost.filter(|_| self.spares > 0) else {
            return Ok(());
        };
        let name = self.data[lost].name.clone();
        if self.administer(requests::LoseServer { name }).await.is_none() {
            return Ok(());
        }
        self.add_server().await?;
        Ok(())
    }

    /// Adds another server, if a master answers.
    pub(super) async fn add_server(&mut self) -> Result<()> {
        let Some(token) = self.token().await else {
            return Ok(());
        };
        let mut spare = DataHost::new(&self.world, &self.names, self.data.len() as u32);
        if let Err(error) = spare.join(&self.network, token).await {
            self.world.log(|| format!("{} does not join: {error:#}", spare.name));
            return Ok(());
        }
        spare.start(&self.network).await?;
        self.data.push(spare);
        self.spares -= 1;
        self.met(18, "");
        Ok(())
    }

    /// Ends servers that lost their power when a write of their disk failed.
    pub(super) async fn end_doomed_servers(&mut self) {
        for at in 0..self.data.len() {
            let is_dead = self.data[at].running.as_ref().is_some_and(|running| running.process.is_dead());
            if is_dead {
                self.world.sometimes("a write was torn");
                self.world.log(|| format!("{} was torn down", self.data[at].name));
                self.data[at].end(&self.network, End::PowerCut).await;
                self.mend_within(500, 20_000, Mends::Server(at));
            }
        }
    }

    /// Repairs the faults that are due, or all of them.
    pub(super) async fn mend(&mut self, everything: bool) -> Result<()> {
        let now_ms = self.world.now_ms();
        let all = std::mem::take(&mut self.mendings);
        let (due, later) =
            all.into_iter().partition(|mending: &Mending| everything || mending.at_ms <= now_ms);
        self.mendings = later;
        let due: Vec<Mending> = due;
        for mending in due {
            match mending.what {
                Mends::Server(at) => self.start_server(at).await?,
                Mends::Master(at) => self.masters[at].start(&self.network).await?,
                Mends::Way(from, to) => self.network.cut(from, to, false),
                Mends::PausedServer(at) => {
                    if let Some(running) = &self.data[at].running {
                        running.process.pause(false);
                    }
                }
                Mends::PausedMaster(at) => resume(&self.masters[at]),
                Mends::Clock(at) => self.data[at].host.skew_ms.store(0, Ordering::Relaxed),
                Mends::MasterClock(at) => self.masters[at].host.skew_ms.store(0, Ordering::Relaxed),
                Mends::ClientClock(at) => self.client_clocks[at].store(0, Ordering::Relaxed),
                Mends::SlowDisk(at) => self.data[at].host.device_ms.store(0, Ordering::Relaxed),
                Mends::FullDisk(at) => self.data[at].taken_percent.store(0, Ordering::Relaxed),
                Mends::FilledDisk(at) => self.data[at].fill(false),
                Mends::Database => self.database.set_away(false),
                Mends::Latency => self.network.set_latency(3),
            }
        }
        if everything {
            self.network.mend();
            for at in 0..self.masters.len() {
                resume(&self.masters[at]);
                self.masters[at].start(&self.network).await?;
            }
            for at in 0..self.data.len() {
                self.start_server(at).await?;
            }
        }
        Ok(())
    }

    /// Starts a server; if its disk has failed, it ends and reopens first.
    async fn start_server(&mut self, at: usize) -> Result<()> {
        let data = &mut self.data[at];
        if data.is_broken() {
            data.end(&self.network, End::Kill).await;
        }
        data.device.heal();
        if data.running.is_none() && !data.is_lost {
            self.world.log(|| format!("{} starts", data.name));
        }
        data.start(&self.network).await
    }

    async fn token(&mut self) -> Option<copal_server::JoinToken> {
        self.administer(requests::DrawToken { master: false }).await?.token.parse().ok()
    }

    /// The master's answer, if it arrives within two seconds.
    pub(super) async fn administer<R: AdminRequest>(&self, request: R) -> Option<R::Reply> {
        let cluster = self.operator.1.clone();
        let asked =
            self.operator.0.run(async move { cluster.administer(&request, Duration::from_secs(2)).await });
        match asked.await? {
            Ok(reply) => Some(reply),
            Err(error) => {
                self.world.log(|| format!("the operator is told: {error}"));
                None
            }
        }
    }
}

fn resume(master: &MasterHost) {
    if let Some(process) = &master.process {
        process.pause(false);
    }
}
