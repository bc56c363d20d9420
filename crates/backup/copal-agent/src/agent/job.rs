//! One job on one host: its VMs, backed up in rounds with the other hosts.
//!
//! Paper: low-profile-dedup §3, Figure 3.
//!
//! A VM's backup runs on a thread of its own from the round of its first part to that of its last, and holds
//! a turn while it reads or stores. What it backs up is read when its round begins, not when the job does.

use super::{
    early_rounds::EarlyRounds,
    job_agents::JobAgents,
    leak_repairs::{LeakRepair, repair_leaks},
    patience::HostPatience,
    peers::{RetryAsker, VmPeers},
    planned_rounds::{PlannedBackup, PlannedRounds},
    report::{SettleOutcome, VmOutcome, VmReport},
    requests::hex,
    status::AgentStatus,
    turns::{TurnEffect, TurnTable},
};
use crate::{
    asker::{Asker, AskerOptions, AskerTraffic, FleetMember},
    members::ResponsibleMembers,
    network::FleetNetwork,
    scheme::DedupScheme,
    throttle::ByteThrottle,
};
use copal_backup::{
    BackupRequest, CancelFlag, Collaboration, HolderId, Progress, Repository, SnapshotId, peers::Writer,
};
use copal_live::{BackupEnd, PointInTime};
use parking_lot::{Condvar, Mutex};
use std::{
    io,
    path::PathBuf,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// Memory of one VM's pipeline: two segments on their way, packs, footers.
pub(super) const PIPELINE_BYTES: u64 = 22 << 20;

/// What all hosts of a job agree on.
#[derive(Clone, Debug)]
pub(crate) struct JobTerms {
    pub(crate) id: [u8; 16],
    /// Who answers.
    pub(crate) members: Vec<FleetMember>,
    /// Hosts that take part.
    pub(crate) participants: u32,
    pub(crate) partition_bits: u8,
    /// As many as the host with most has.
    pub(crate) rounds: u32,
    pub(crate) timeout: Duration,
    pub(crate) scheme: DedupScheme,
    /// All that has to do with it.
    pub(crate) agents: JobAgents,
}

/// What a host has for all its jobs.
pub(crate) struct JobHost {
    pub(crate) name: String,
    pub(crate) repository: Arc<Repository>,
    pub(crate) network: FleetNetwork,
    pub(crate) spool: PathBuf,
    pub(crate) read_limit: Arc<ByteThrottle>,
    pub(crate) upload_limit: Arc<ByteThrottle>,
    /// Set when the agent ends.
    pub(crate) stop: Arc<AtomicBool>,
    /// As whom this run holds sessions; empty until it beats.
    pub(crate) holder: OnceLock<HolderId>,
    /// Jobs of which it compared a round early.
    pub(crate) early: Arc<EarlyRounds>,
    /// VMs that leak more are repaired behind a job.
    pub(crate) leak_share_percent: Option<u8>,
    /// Held by repairs, which must not run beside a job.
    pub(crate) between_jobs: Mutex<()>,
    checker: Mutex<bool>,
    checker_woken: Condvar,
}

impl JobHost {
    pub(crate) fn new(
        name: &str,
        repository: Arc<Repository>,
        network: FleetNetwork,
        spool: PathBuf,
        (read_limit, upload_limit): (ByteThrottle, ByteThrottle),
        stop: Arc<AtomicBool>,
    ) -> JobHost {
        JobHost {
            name: name.to_owned(),
            repository,
            network,
            spool,
            read_limit: Arc::new(read_limit),
            upload_limit: Arc::new(upload_limit),
            stop,
            holder: OnceLock::new(),
            early: Arc::default(),
            leak_share_percent: None,
            between_jobs: Mutex::default(),
            checker: Mutex::default(),
            checker_woken: Condvar::new(),
        }
    }

    pub(crate) fn ends(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Somebody stored a popular pack, or time is over.
    pub(crate) fn wait_for_packs(&self, limit: Duration) {
        let mut woken = self.checker.lock();
        if !*woken {
            self.checker_woken.wait_for(&mut woken, limit);
        }
        *woken = false;
    }

    fn wake_checker(&self) {
        *self.checker.lock() = true;
        self.checker_woken.notify_all();
    }

    pub(crate) fn asker(
        &self,
        agreed: &JobTerms,
        (id, participants): ([u8; 16], u32),
        patience: Arc<HostPatience>,
    ) -> io::Result<Asker> {
        let owners = ResponsibleMembers::of(&agreed.members, agreed.partition_bits)
            .ok_or_else(|| io::Error::other("there is nobody to ask"))?;
        let mut options = AskerOptions::new(
            id,
            &self.name,
            agreed.members.clone(),
            self.network.clone(),
            self.spool.clone(),
        );
        options.participants = participants;
        Asker::new(options, Arc::new(owners), patience)
    }
}

/// A job that runs, or has run.
pub(crate) struct HostJob {
    host: Arc<JobHost>,
    agreed: JobTerms,
    asker: Asker,
    again: RetryAsker,
    patience: Arc<HostPatience>,
    cancel: CancelFlag,
    /// Ends the repairs after the job.
    repairs_end: CancelFlag,
    started: Instant,
    state: Mutex<JobState>,
}

#[derive(Default)]
struct JobState {
    vms: Vec<VmReport>,
    round: usize,
    /// All VMs have ended.
    is_stored: bool,
    /// It did what it may to settle its VMs.
    is_settled: bool,
    is_done: bool,
    repairs: Vec<LeakRepair>,
    took: Duration,
}

impl HostJob {
    /// # Errors
    /// When the system gives no thread, or there is nobody to ask.
    pub(crate) fn new(host: Arc<JobHost>, agreed: JobTerms) -> io::Result<HostJob> {
        let patience = Arc::new(HostPatience::new(agreed.timeout, agreed.participants));
        let asker = host.asker(&agreed, (agreed.id, agreed.participants), Arc::clone(&patience))?;
        // Who asks again asks alone: owners wait for nobody.
        let mut alone = [0; 16];
        getrandom::fill(&mut alone).map_err(io::Error::other)?;
        let at_once = Arc::new(HostPatience::new(agreed.timeout, 1));
        let again = RetryAsker::new(host.asker(&agreed, (alone, 1), at_once)?, agreed.timeout);
        Ok(HostJob {
            host,
            agreed,
            asker,
            again,
            patience,
            cancel: CancelFlag::new(),
            repairs_end: CancelFlag::new(),
            started: Instant::now(),
            state: Mutex::default(),
        })
    }

    pub(crate) fn id(&self) -> [u8; 16] {
        self.agreed.id
    }

    /// Who has to do with it.
    pub(crate) fn agents(&self) -> &JobAgents {
        &self.agreed.agents
    }

    pub(super) fn asker(&self) -> &Asker {
        &self.asker
    }

    pub(super) fn again(&self) -> &RetryAsker {
        &self.again
    }

    pub(super) fn wake_checker(&self) {
        self.host.wake_checker();
    }

    pub(crate) fn cancel(&self) {
        self.cancel.cancel();
    }

    /// Ends the repairs after it: another job begins, or the agent ends.
    pub(crate) fn end_repairs(&self) {
        self.repairs_end.cancel();
    }

    /// Repairs VMs of this host that leak too much. Not beside another job; blocks.
    pub(crate) fn repair(&self) {
        let Some(share_percent) = self.host.leak_share_percent else {
            return;
        };
        let _alone = self.host.between_jobs.lock();
        if self.ends() {
            return;
        }
        let names: Vec<String> = self.state.lock().vms.iter().map(|vm| vm.name().to_owned()).collect();
        let limits = (share_percent, PIPELINE_BYTES);
        let names = names.iter().map(String::as_str);
        let repairs = repair_leaks(&self.host.repository, names, limits, &self.repairs_end);
        self.state.lock().repairs = repairs;
    }

    pub(crate) fn ends(&self) -> bool {
        self.cancel.is_cancelled() || self.host.ends()
    }

    pub(super) fn end_round(&self) {
        self.patience.end_round();
        self.asker.end_round();
    }

    /// How far it is.
    pub(crate) fn status(&self) -> AgentStatus {
        let gain = self.settles().then(|| self.has_gain());
        let state = self.state.lock();
        let dropped = self.asker.dropped();
        let took = match state.is_done {
            true => state.took,
            false => self.started.elapsed(),
        };
        AgentStatus {
            job: hex(&self.agreed.id),
            age_ms: self.started.elapsed().as_millis() as u64,
            all_rounds: self.agreed.rounds,
            done: state.is_done,
            stored: state.is_stored,
            gain,
            settled: state.is_settled,
            round: state.round as u64,
            seconds: took.as_secs_f64(),
            dropped_answers: [
                dropped.late,
                dropped.repeated,
                dropped.foreign,
                dropped.miscounted,
                dropped.unknown_code,
                dropped.stale,
                dropped.violations,
            ]
            .iter()
            .sum(),
            message_bytes: bytes_of(self.asker.traffic()) + bytes_of(self.again.traffic()),
            peak_memory_bytes: peak_memory_bytes(),
            repairs: state.repairs.clone(),
            vms: state.vms.iter().map(VmReport::status).collect(),
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.state.lock().is_done
    }

    /// Whether all its VMs have ended.
    pub(crate) fn is_stored(&self) -> bool {
        self.state.lock().is_stored
    }

    /// Backs up all VMs; blocks.
    pub(crate) fn run(&self, planned: PlannedRounds) {
        // Repairs between jobs were told to end.
        drop(self.host.between_jobs.lock());
        self.state.lock().vms = planned.vms.iter().map(VmReport::waiting).collect();
        let turns = TurnTable::new(planned.rounds.clone());
        let ends = || self.ends();
        std::thread::scope(|scope| {
            let turns = &turns;
            loop {
                self.patience.begin_round();
                self.state.lock().round = turns.round();
                for vm in turns.beginners() {
                    let backup = &planned.vms[vm];
                    let run = move || self.vm(vm, backup, planned.part_bytes, turns);
                    let spawned = std::thread::Builder::new().name(format!("backup-{vm}"));
                    if let Err(error) = spawned.spawn_scoped(scope, run) {
                        self.end_vm(vm, turns, VmOutcome::failed("threads", &error.to_string()));
                    }
                }
                if turns.look() == TurnEffect::AllAsked {
                    self.end_round();
                }
                if !turns.next_round(&ends) {
                    break;
                }
            }
            // Others wait for the markers of all rounds.
            for _ in turns.round()..self.agreed.rounds as usize {
                self.end_round();
            }
        });
        self.state.lock().is_stored = true;
        // A job is remembered for its report: its connections end here.
        self.asker.end();
    }

    /// Nothing more is done for it.
    pub(crate) fn end(&self, is_settled: bool) {
        self.again.end();
        let mut state = self.state.lock();
        state.is_settled = is_settled;
        state.is_done = true;
        state.took = self.started.elapsed();
    }

    /// Whether chunks may be popular by now that VMs stored for themselves: as far as this host knows.
    pub(crate) fn has_gain(&self) -> bool {
        let has_rounds = self.agreed.rounds > 1;
        let was_early = self.asker.was_repeated() || self.host.early.has(&self.agreed.id);
        self.settles() && (has_rounds || was_early || self.state.lock().vms.iter().any(VmReport::has_gain))
    }

    /// Whether it ends with asking again; the schemes that ours stands beside do not.
    pub(crate) fn settles(&self) -> bool {
        self.agreed.scheme == DedupScheme::Collaborative
    }

    /// The other agents of the job.
    pub(super) fn others(&self) -> impl Iterator<Item = &FleetMember> {
        let members = self.agreed.members.iter();
        members.filter(|member| member.name != self.host.name)
    }

    pub(super) fn host(&self) -> &JobHost {
        &self.host
    }

    pub(super) fn age(&self) -> Duration {
        self.started.elapsed()
    }

    pub(super) fn cancel_flag(&self) -> &CancelFlag {
        &self.cancel
    }

    /// The VMs whose backups stored chunks for themselves, by their places in the plan.
    pub(super) fn to_settle(&self) -> Vec<(usize, String, SnapshotId)> {
        let state = self.state.lock();
        let vms = state.vms.iter().enumerate();
        vms.filter_map(|(index, vm)| vm.to_settle().map(|(name, snapshot)| (index, name, snapshot))).collect()
    }

    pub(super) fn note_settled(&self, vm: usize, settled: SettleOutcome) {
        self.state.lock().vms[vm].settle(settled);
    }

    /// Chunks of a VM were refused: the fraction of popular ones is used up.
    pub(super) fn note_refused(&self, vm: usize, chunks: u64) {
        self.state.lock().vms[vm].refuse(chunks);
    }

    fn vm(&self, index: usize, backup: &PlannedBackup, part_bytes: u64, turns: &TurnTable) {
        let peers = VmPeers { job: self, index, turns, again_since: Mutex::new(None) };
        self.state.lock().vms[index].begin();
        let outcome = self.back_up(backup, part_bytes, &peers).unwrap_or_else(|failed| failed);
        self.end_vm(index, turns, outcome);
    }

    fn end_vm(&self, index: usize, turns: &TurnTable, outcome: VmOutcome) {
        self.state.lock().vms[index].end(outcome);
        if turns.end_vm(index) == TurnEffect::AllAsked {
            self.end_round();
        }
    }

    fn back_up(
        &self,
        backup: &PlannedBackup,
        part_bytes: u64,
        peers: &VmPeers<'_>,
    ) -> Result<VmOutcome, VmOutcome> {
        let repository = &self.host.repository;
        let opened = backup.open(repository, &self.host.read_limit, &self.host.stop);
        let (point, disks) = opened.map_err(|error| VmOutcome::failed(error.code(), &error.to_string()))?;
        let mut request = BackupRequest::new(backup.vm.clone(), disks);
        request.memory_bytes = PIPELINE_BYTES;
        request.allow_smaller = backup.options.allow_smaller;
        request.full_every = backup.options.full_every;
        request.description = format!("by agent {}", self.host.name);
        let others = Collaboration {
            peers,
            spool_directory: self.host.spool.clone(),
            writer: Writer::of(&self.host.name),
            part_bytes: backup.part_bytes(part_bytes),
        };
        let is_alone = self.agreed.scheme == DedupScheme::DirtyBit;
        request.whole_segments = is_alone;
        let others = (!is_alone).then_some(&others);
        let progress = UploadThrottle { host: &self.host };
        let summary = repository.backup_with(&request, others, &progress, &self.cancel);
        drop(request);
        match (summary, point) {
            (Ok(mut summary), point) => {
                let told = point.map(|point| point.end(BackupEnd::Published));
                summary.warnings.extend(told.into_iter().flatten());
                Ok(VmOutcome::Done(Box::new(summary)))
            }
            (Err(error), point) => {
                let faults = point.as_ref().map(PointInTime::faults).unwrap_or_default();
                let left = point.map(|point| point.end(BackupEnd::Abandoned)).unwrap_or_default();
                let reason = match faults.is_empty() {
                    true => error.to_string(),
                    false => faults.join("; "),
                };
                let reason = [vec![reason], left].concat().join("; ");
                Err(VmOutcome::failed(error.code(), &reason))
            }
        }
    }
}

fn bytes_of(traffic: &AskerTraffic) -> u64 {
    traffic.sent_bytes() + traffic.received_bytes()
}

/// Holds a backup back to the limit of what is uploaded.
struct UploadThrottle<'a> {
    host: &'a JobHost,
}

impl Progress for UploadThrottle<'_> {
    fn stored(&self, delta_bytes: u64) {
        // Told to stop, it goes on unthrottled to its next safe point.
        let _ = self.host.upload_limit.take(delta_bytes, &self.host.stop);
    }

    fn notice(&self, message: &str) {
        tracing::info!(message);
    }
}

/// The most memory this process has had, as the kernel counts it; 0 where it does not say.
fn peak_memory_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}
