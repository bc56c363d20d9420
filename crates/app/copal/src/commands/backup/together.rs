//! A backup in a fleet: queries the reachable agents, and waits for a VM that another host is backing up.

use super::super::CommandContext;
use crate::asker::{self, PART_BYTES};
use copal_agent::agent::FleetClient;
use copal_backup::{
    BackupRequest, BackupSummary, Collaboration, Error, Holder, LeaseWatch, Progress, Repository, Result,
    peers::Writer,
};
use std::time::{Duration, Instant};

/// Poll interval of a VM that another host is backing up.
const POLL_INTERVAL: Duration = Duration::from_secs(5);

/// Backs up a VM with the help of all reachable agents.
pub(super) fn run(
    context: &CommandContext<'_>,
    repository: &Repository,
    mut request: BackupRequest,
    timeout: Duration,
    progress: &dyn Progress,
) -> Result<BackupSummary> {
    let name = asker::own_name();
    request.holder = Holder { name: name.clone(), address: String::new() };
    let spool = asker::spool_directory()?;
    let client = FleetClient::connect(repository, &name, spool.path(), timeout)?;
    if client.is_none() {
        progress
            .notice("no agent can be asked: only chunks that are popular already are shared with other VMs");
    }
    let others = client.as_ref().map(|client| Collaboration {
        peers: client,
        spool_directory: spool.path().to_owned(),
        writer: Writer::of(&name),
        part_bytes: PART_BYTES,
    });
    let began = Instant::now();
    let mut watch = LeaseWatch::new();
    loop {
        match repository.backup_with(&request, others.as_ref(), progress, &context.cancel) {
            Err(error @ Error::SessionOpen { .. }) => {
                if began.elapsed() >= context.wait {
                    return Err(error);
                }
                progress.notice(&error.to_string());
                if !is_free(context, repository, &request.vm, (began, &mut watch))? {
                    return Err(error);
                }
            }
            outcome => return outcome,
        }
    }
}

/// Waits until no session has the VM; `false`: the wait or the command ended first.
fn is_free(
    context: &CommandContext<'_>,
    repository: &Repository,
    vm: &str,
    (began, watch): (Instant, &mut LeaseWatch),
) -> Result<bool> {
    while !repository.watch_vm(vm, watch, began.elapsed())?.is_empty() {
        let rest = context.wait.saturating_sub(began.elapsed());
        if rest.is_zero() || context.is_ended() {
            return Ok(false);
        }
        context.pause(POLL_INTERVAL.min(rest));
    }
    Ok(true)
}
