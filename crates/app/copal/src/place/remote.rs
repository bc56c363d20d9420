//! Repositories in an object store: connecting, properties, failures.

use crate::{
    arguments::{CommonArgs, CopalArgs, CopalCommand, PdsCommand, VmCommand},
    failure::{Failure, Outcome, exit},
    place::RepositoryPlace,
    signals,
};
use copal_remote::{
    ProbeReport, RemoteError, RemoteFailure, RemoteOptions, RemoteStore, RemoteUrl, is_remote,
};
use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

/// Time after which a request is given up, unless `--retry-for` says otherwise.
const RETRY_FOR: Duration = Duration::from_secs(15 * 60);
/// Pause before a probe is repeated.
const PROBE_PAUSE: Duration = Duration::from_millis(200);

fn options(common: &CommonArgs) -> RemoteOptions {
    RemoteOptions {
        retry_for: common.retry_for.unwrap_or(RETRY_FOR),
        stop: Arc::new(signals::is_caught),
        credentials: common.credentials.clone(),
    }
}

/// Refuses a command before it begins: options that its repository does not take, and deletions that the credentials do
/// not permit.
/// # Errors
/// Usage; `denied`: nothing was changed.
pub(crate) fn check_command(arguments: &CopalArgs) -> Outcome<()> {
    refuse_credentials(arguments)?;
    let is_deletion = match &arguments.command {
        CopalCommand::Forget(words) => !words.dry_run,
        CopalCommand::Prune(words) => !words.dry_run,
        CopalCommand::Delete(words) => !words.dry_run,
        CopalCommand::Vm(VmCommand::Rm(_)) | CopalCommand::Pds(PdsCommand::Prune(_)) => true,
        _ => false,
    };
    match &arguments.common.repo {
        Some(named) if is_deletion => refuse_deletion(&arguments.common, named),
        _ => Ok(()),
    }
}

/// Refuses to delete without the right, rather than in the middle of the work.
fn refuse_deletion(common: &CommonArgs, named: &Path) -> Outcome<()> {
    let Some(RepositoryPlace::Remote(url)) = RepositoryPlace::shared(named)? else { return Ok(()) };
    match connect(common, &url)?.may_delete().map_err(of_remote)? {
        true => Ok(()),
        false => Err(Failure::new(
            exit::DENIED,
            "denied",
            format!(
                "{url}: these credentials may not delete, so all snapshots and their objects stay; run the command with \
                 credentials that may"
            ),
        )),
    }
}

fn refuse_credentials(arguments: &CopalArgs) -> Outcome<()> {
    let is_elsewhere = |named: &Path| is_remote(&named.to_string_lossy());
    let common = &arguments.common;
    let of_source = common.repo.as_deref().is_some_and(is_elsewhere);
    let (to_credentials, of_target) = match &arguments.command {
        CopalCommand::Copy(copy) => (copy.to_credentials.is_some(), is_elsewhere(&copy.to)),
        _ => (false, false),
    };
    if to_credentials && !of_target {
        return Err(Failure::usage(
            "--to-credentials are for a repository in an object store; leave it out, or give --to s3://BUCKET/PREFIX, az:// \
             or gs://",
        ));
    }
    match common.credentials.is_none() || of_source || of_target {
        true => Ok(()),
        false => Err(Failure::usage(
            "--credentials are for a repository in an object store; leave it out, or give --repo s3://BUCKET/PREFIX, az:// \
             or gs://",
        )),
    }
}

/// A store at the address; sends no request.
/// # Errors
/// Options that only a store of this machine or a cluster has.
pub(crate) fn connect(common: &CommonArgs, url: &RemoteUrl) -> Outcome<RemoteStore> {
    if common.store_limit.is_some() {
        return Err(Failure::usage(
            "--store-limit is for a store of this machine; set a quota with the tool of the provider",
        ));
    }
    RemoteStore::new(url, &options(common)).map_err(of_remote)
}

/// Asks the object store for its properties.
/// # Errors
/// No credentials, no bucket, no network.
pub(crate) fn probe(common: &CommonArgs, url: &RemoteUrl) -> Outcome<ProbeReport> {
    RemoteStore::probe(url, &options(common)).map_err(of_remote)
}

/// Refuses an object store without the properties that a repository needs. A bad network may end a probe early or spoil
/// it. A probe that ended early is repeated within the time for requests without an answer. Only two probes in turn
/// refuse a store.
/// # Errors
/// As [`probe`]; `unsuitable`.
pub(crate) fn check_properties(common: &CommonArgs, url: &RemoteUrl) -> Outcome<()> {
    let (began, limit) = (Instant::now(), options(common).retry_for);
    let mut is_doubted = false;
    loop {
        match probe(common, url).map(|report| report.unsuitable()) {
            Ok(None) => return Ok(()),
            Ok(Some(why)) if is_doubted => return Err(unsuitable(url, why)),
            Ok(Some(_)) => is_doubted = true,
            Err(failure)
                if failure.exit_code == exit::TOO_FEW && began.elapsed() < limit && !signals::is_caught() =>
            {
                tracing::debug!("{}; the probe begins again", failure.sentence);
                std::thread::park_timeout(PROBE_PAUSE);
            }
            Err(failure) => return Err(failure),
        }
    }
}

/// The failure of a store that lacks a property.
pub(crate) fn unsuitable(url: &RemoteUrl, why: &str) -> Failure {
    Failure::new(
        exit::DENIED,
        "unsuitable",
        format!("{url} can hold no repository: {why}; choose another store"),
    )
}

/// The failure for an error of an object store.
pub(crate) fn of_remote(error: RemoteError) -> Failure {
    let (exit_code, code) = match error.failure {
        RemoteFailure::Usage => (exit::USAGE, "usage"),
        RemoteFailure::Credentials => (exit::PASSWORD, "credentials"),
        RemoteFailure::Denied => (exit::DENIED, "denied"),
        RemoteFailure::Bucket => (exit::NO_REPOSITORY, "no_bucket"),
        RemoteFailure::Network => (exit::TOO_FEW, "network"),
        RemoteFailure::Unsuitable => (exit::DENIED, "unsuitable"),
        RemoteFailure::Archived => (exit::SOURCE, "archived"),
        RemoteFailure::Stopped => (exit::INTERRUPTED, "cancelled"),
    };
    Failure::new(exit_code, code, error.to_string())
}
