//! Settlement on one host at the end of a job: its VMs give up chunks that they stored for themselves and
//! that are popular now.
//!
//! Design: docs/design/backup.md#rounds
//! Paper:  low-profile-dedup §2 (clean-up of undetected duplicates)
//!
//! A VM that asked in an early round, or before a slow host, stored chunks that no other host was known to
//! have. Once all hosts have stored their VMs, each asks again about the frames of this job, and gives up the
//! popular ones (`Repository::clean_up_vm`). This removes data, so a host does it only with a key of role
//! delete.
//!
//! Not here: VMs of hosts without such a key (`crate::job::settlement`).

use super::{
    job::{HostJob, PIPELINE_BYTES},
    peers::SettlingPeers,
    report::SettleOutcome,
};
use crate::asker::FleetMember;
use copal_backup::{CleanUpOptions, Collaboration, Role, Silent, peers::Writer};
use std::time::{Duration, Instant};

/// Other hosts are waited for as long again as this host needed for the job, and at least this long.
const LEAST_PATIENCE: Duration = Duration::from_secs(60);
/// A host that cannot be reached for this long is not waited for.
const UNREACHABLE_AFTER: Duration = Duration::from_secs(5);
/// Interval between queries of another host's progress: the first, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(500)];

/// Whether another host has stored all its VMs, and whether it knows of chunks to give up; an error: it
/// cannot be asked.
pub(super) type AskStored<'a> = &'a dyn Fn(&FleetMember) -> Result<(bool, bool), String>;

/// Settles the VMs of this host; `false`: its key does not allow that, or the job has ended.
pub(super) fn run(job: &HostJob, ask: AskStored<'_>) -> bool {
    if !job.host().repository.roles().has(Role::Delete) {
        return false;
    }
    if job.to_settle().is_empty() {
        return !job.ends();
    }
    let has_gain = wait_for_others(job, ask);
    if job.ends() {
        return false;
    }
    if has_gain {
        job.to_settle().into_iter().for_each(|(index, vm, snapshot)| {
            let options = CleanUpOptions { snapshot: Some(snapshot), ..CleanUpOptions::all(PIPELINE_BYTES) };
            job.note_settled(index, settle(job, &vm, options));
        });
    }
    !job.ends()
}

fn settle(job: &HostJob, vm: &str, options: CleanUpOptions) -> SettleOutcome {
    let host = job.host();
    let others = Collaboration {
        peers: &SettlingPeers::new(job),
        spool_directory: host.spool.clone(),
        writer: Writer::of(&host.name),
        part_bytes: u64::MAX,
    };
    let settled = host.repository.clean_up_vm(vm, &others, options, &Silent, job.cancel_flag());
    settled.map_or_else(
        |error| {
            tracing::warn!(vm, %error, "chunks of this VM may be stored twice: the snapshot is valid, `copal pds cleanup` asks again");
            SettleOutcome::Failed(error.to_string())
        },
        SettleOutcome::Done,
    )
}

/// Waits until all hosts of the job have stored their VMs or are gone, or the patience is over. Returns
/// whether there may be chunks to give up: a host knows of some, or does not answer.
fn wait_for_others(job: &HostJob, ask: AskStored<'_>) -> bool {
    let patience = Instant::now() + job.age().max(LEAST_PATIENCE);
    let mut has_gain = false;
    for other in job.others() {
        has_gain |= wait_for(job, (other, ask), patience).unwrap_or(true);
    }
    has_gain || job.has_gain()
}

/// `None`: the host does not answer.
fn wait_for(job: &HostJob, (other, ask): (&FleetMember, AskStored<'_>), patience: Instant) -> Option<bool> {
    let mut last_reply = Instant::now();
    let mut pause = PAUSES[0];
    while !job.ends() && Instant::now() < patience {
        match ask(other) {
            Ok((true, has_gain)) => return Some(has_gain),
            Ok(_) => last_reply = Instant::now(),
            Err(reason) if last_reply.elapsed() >= UNREACHABLE_AFTER => {
                tracing::warn!(reason, "not waited for");
                return None;
            }
            Err(_) => {}
        }
        std::thread::park_timeout(pause);
        pause = (pause * 2).min(PAUSES[1]);
    }
    if !job.ends() {
        tracing::warn!(agent = other.name, "host still stores its VMs, no longer waited for");
    }
    None
}
