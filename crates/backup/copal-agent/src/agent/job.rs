//! One job on one host: its VMs, backed up in rounds with the other hosts.
//!
//! Paper: low-profile-dedup §3, Figure 3.
//!
//! A VM's backup runs on its own thread from the round of its first part to that of its last, and holds a
//! turn while it reads or stores. Its disks are opened when its round begins, not when the job does.

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
use crate::asker::members::ResponsibleMembers;
use crate::asker::{Asker, AskerOptions, AskerTraffic, FleetMember};
use crate::fleet::network::FleetNetwork;
use crate::limits::throttle::ByteThrottle;
use crate::plan::scheme::DedupScheme;
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

/// Memory of one VM's pipeline: two segments in progress, packs, footers.
pub(super) const PIPELINE_BYTES: u64 = 22 << 20;

/// The terms of a job, equal on all its hosts.
#[derive(Clone, Debug)]
pub(crate) struct JobTerms {
    pub(crate) id: [u8; 16],
    /// The members that answer.
    pub(crate) members: Vec<FleetMember>,
    /// Number of hosts that take part.
    pub(crate) participants: u32,
    pub(crate) partition_bits: u8,
    /// Number of rounds, that of the host with the most.
    pub(crate) rounds: u32,
    pub(crate) timeout: Duration,
    pub(crate) scheme: DedupScheme,
    /// All agents of the job.
    pub(crate) agents: JobAgents,
}

/// State of a host that its jobs share.
pub(crate) struct JobHost {
    pub(crate) name: String,
    pub(crate) repository: Arc<Repository>,
    pub(crate) network: FleetNetwork,
    pub(crate) spool: PathBuf,
    pub(crate) read_limit: Arc<ByteThrottle>,
    pub(crate) upload_limit: Arc<ByteThrottle>,
    /// Set when the agent ends.
    pub(crate) stop: Arc<AtomicBool>,
    /// Holder id of this run's sessions; empty until its first heartbeat.
    pub(crate) holder: OnceLock<HolderId>,
    /// Jobs of which it compared a round early.
    pub(crate) early: Arc<EarlyRounds>,
    /// VMs that leak more than this are repaired after a job.
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

    /// Waits until a popular pack was stored, or the time limit is reached.
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
            .ok_or_else(|| io::Error::other("the job has no members to ask"))?;
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

/// A job on this host, running or ended.
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
    /// Settlement has ended, as far as the host's key allows it.
    is_settled: bool,
    is_done: bool,
    repairs: Vec<LeakRepair>,
    took: Duration,
}

impl HostJob {
    /// # Errors
    /// Failures to start threads, or no member to ask.
    pub(crate) fn new(host: Arc<JobHost>, agreed: JobTerms) -> io::Result<HostJob> {
        let patience = Arc::new(HostPatience::new(agreed.timeout, agreed.participants));
        let asker = host.asker(&agreed, (agreed.id, agreed.participants), Arc::clone(&patience))?;
        // A repeated query is made alone: owners wait for no other host.
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

    /// All agents of the job.
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

    /// Ends the repairs after this job: another job begins, or the agent ends.
    pub(crate) fn end_repairs(&self) {
        self.repairs_end.cancel();
    }

    /// Repairs VMs of this host that leak too much, unless another job runs; blocks.
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

    /// Progress of the job on this host.
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
        // The flag may still be set from the end of earlier repairs.
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
            // Other hosts wait for the markers of all rounds.
            for _ in turns.round()..self.agreed.rounds as usize {
                self.end_round();
            }
        });
        self.state.lock().is_stored = true;
        // The job is kept for its report, but its connections end here.
        self.asker.end();
    }

    /// Marks the job as ended.
    pub(crate) fn end(&self, is_settled: bool) {
        self.again.end();
        let mut state = self.state.lock();
        state.is_settled = is_settled;
        state.is_done = true;
        state.took = self.started.elapsed();
    }

    /// Whether this host knows of chunks that VMs stored for themselves and that may be popular now.
    pub(crate) fn has_gain(&self) -> bool {
        let has_rounds = self.agreed.rounds > 1;
        let was_early = self.asker.was_repeated() || self.host.early.has(&self.agreed.id);
        self.settles() && (has_rounds || was_early || self.state.lock().vms.iter().any(VmReport::has_gain))
    }

    /// Whether the job ends with a settlement; schemes for comparison do not.
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

    /// VMs whose backups stored chunks for themselves, by their positions in the plan.
    pub(super) fn to_settle(&self) -> Vec<(usize, String, SnapshotId)> {
        let state = self.state.lock();
        let vms = state.vms.iter().enumerate();
        vms.filter_map(|(index, vm)| vm.to_settle().map(|(name, snapshot)| (index, name, snapshot))).collect()
    }

    pub(super) fn note_settled(&self, vm: usize, settled: SettleOutcome) {
        self.state.lock().vms[vm].settle(settled);
    }

    /// Records refused chunks of a VM: the fraction of popular chunks is used up.
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
                let warnings = point.map(|point| point.end(BackupEnd::Published));
                summary.warnings.extend(warnings.into_iter().flatten());
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

/// Throttles the uploads of a backup.
struct UploadThrottle<'a> {
    host: &'a JobHost,
}

impl Progress for UploadThrottle<'_> {
    fn stored(&self, delta_bytes: u64) {
        // After a cancellation it continues unthrottled to its next safe point.
        let _ = self.host.upload_limit.take(delta_bytes, &self.host.stop);
    }

    fn notice(&self, message: &str) {
        tracing::info!(message);
    }
}

/// Peak memory of this process, from the kernel; 0 if unknown.
fn peak_memory_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}
