//! Repositories in an object store: connecting, properties, failures.

use crate::{
    arguments::CommonArgs,
    failure::{Failure, Outcome, exit},
    signals,
};
use copal_remote::{ProbeReport, RemoteError, RemoteFailure, RemoteOptions, RemoteStore, RemoteUrl};
use std::{sync::Arc, time::Duration};

/// Time after which a request is given up, unless `--retry-for` says otherwise.
const RETRY_FOR: Duration = Duration::from_secs(15 * 60);

fn options(common: &CommonArgs) -> RemoteOptions {
    RemoteOptions { retry_for: common.retry_for.unwrap_or(RETRY_FOR), stop: Arc::new(signals::is_caught) }
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

/// Refuses an object store without the properties that a repository needs.
/// # Errors
/// As [`probe`]; `unsuitable`.
pub(crate) fn check_properties(common: &CommonArgs, url: &RemoteUrl) -> Outcome<()> {
    match probe(common, url)?.unsuitable() {
        Some(why) => Err(unsuitable(url, why)),
        None => Ok(()),
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

/// The failure of a command, with the exit code of the object store's own failure, if that was the cause.
pub(crate) fn explained(store: &RemoteStore, failure: Failure) -> Failure {
    let is_of_store = matches!(failure.exit_code, exit::DENIED | exit::TOO_FEW);
    match store.last_failure() {
        Some(error) if is_of_store => of_remote(error),
        _ => failure,
    }
}
