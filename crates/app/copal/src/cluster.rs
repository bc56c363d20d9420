//! Connection of a command to a cluster: its profile, its client, and the mapping of its errors.

use crate::{
    arguments::CommonArgs,
    failure::{Failure, Outcome, exit},
    human,
};
use copal_client::{
    CallError, ClientProfile, ClusterStore, ConnectError, ProfileError, administration::AdminRequest,
};
use copal_server::{CertificateValidity, SigningRequest};
use copal_volume::{FileInfo, VolumeError};
use serde::Serialize;
use serde_json::{Value, json};
use std::{path::Path, time::Duration};

/// Longest search for a master.
pub(crate) const TO_CONNECT: Duration = Duration::from_secs(10);

/// Reads the profile that the options name.
pub(crate) fn profile(common: &CommonArgs) -> Outcome<ClientProfile> {
    let none = || {
        Failure::usage(
            "which cluster? give --cluster FILE or set COPAL_CLUSTER; `copal master --new` and `copal serve --dev` write \
             the file client.json into their directory",
        )
    };
    read_profile(common.cluster.as_deref().ok_or_else(none)?)
}

pub(crate) fn read_profile(path: &Path) -> Outcome<ClientProfile> {
    ClientProfile::read(path).map_err(|error: ProfileError| Failure::usage(error.to_string()))
}

/// Connects to the cluster that the options name.
pub(crate) fn connect(common: &CommonArgs) -> Outcome<ClusterStore> {
    let mut profile = profile(common)?;
    let store = connect_within(&profile, common.threads)?;
    let masters = store.cluster().masters();
    if let Some(path) = &common.cluster
        && profile.masters != masters
    {
        profile.masters = masters;
        // If the file is not writable, later commands use its old list of masters.
        let _ = profile.write(path);
    }
    if let Some(path) = &common.cluster {
        keep_renewed(&store, path);
    }
    Ok(store)
}

/// Interval of a long-running process between checks of its profile's certificate.
const POLL_INTERVAL: Duration = Duration::from_secs(3600);

/// Renews the certificate of the profile at `path` when it is due, now and while this process runs. Renewal
/// is due at half of the lifetime, so a failed try is repeated in time by the next check or command.
pub(crate) fn keep_renewed(store: &ClusterStore, path: &Path) {
    renew_in_place(store, path);
    let (store, path) = (store.clone(), path.to_owned());
    let looks = move || {
        loop {
            std::thread::park_timeout(POLL_INTERVAL);
            renew_in_place(&store, &path);
        }
    };
    if let Err(error) = std::thread::Builder::new().name("profile".into()).spawn(looks) {
        tracing::debug!(%error, "no thread to renew the certificate of the profile");
    }
}

/// Renews the certificate of a profile after half of its lifetime by the cluster's clock, if the file is
/// writable. Then uses the certificate in the file, which another process may have renewed.
fn renew_in_place(store: &ClusterStore, path: &Path) {
    let Ok(mut profile) = ClientProfile::read(path) else {
        return;
    };
    let now_ms = copal_volume::VolumeStore::now_ms(store);
    let is_due =
        CertificateValidity::of_pem(&profile.certificate).is_ok_and(|validity| validity.is_half_over(now_ms));
    if is_due && rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok() {
        let Ok(drawn) = SigningRequest::draw() else { return };
        match store.wait(store.cluster().renew(&drawn.request, TO_CONNECT)) {
            Ok(certificate) => {
                (profile.certificate, profile.key) = (certificate, drawn.key);
                if let Err(error) = profile.write(path) {
                    tracing::debug!(%error, "renewed profile not written");
                    return;
                }
            }
            Err(error) => tracing::debug!(%error, "certificate of the profile not renewed"),
        }
    }
    if let Err(error) = store.cluster().replace_certificate(&profile) {
        tracing::debug!(%error, "certificate of the profile rejected");
    }
}

/// Connects with a profile.
pub(crate) fn connect_with(profile: &ClientProfile) -> Outcome<ClusterStore> {
    connect_within(profile, None)
}

/// As [`connect_with`], within the threads that the command was given.
pub(crate) fn connect_within(profile: &ClientProfile, threads: Option<usize>) -> Outcome<ClusterStore> {
    let connected = match threads {
        Some(threads) => ClusterStore::connect_within(profile, TO_CONNECT, threads),
        None => ClusterStore::connect(profile, TO_CONNECT),
    };
    connected.map_err(of_connect)
}

fn of_connect(error: ConnectError) -> Failure {
    match error {
        ConnectError::Masters(error) if copal_client::expired_certificate(&error).is_some() => {
            let sentence = copal_client::expired_certificate(&error).unwrap_or_default();
            Failure::new(exit::PASSWORD, "certificate_ended", sentence)
        }
        ConnectError::Masters(error @ CallError::Unreachable { .. }) if is_of_certificate(&error) => {
            Failure::new(
                exit::DENIED,
                "denied",
                format!(
                    "{error}; the profile is of another cluster, or its certificate is not accepted: take client.json of the \
                 cluster that is meant"
                ),
            )
        }
        ConnectError::Masters(CallError::Broken { address }) => Failure::new(
            exit::DENIED,
            "denied",
            format!(
                "{address} closed the connection: it does not accept this profile's certificate; take client.json of its cluster"
            ),
        ),
        // The master answers with a reason.
        ConnectError::Masters(error @ CallError::Failed(_)) => of_call(error),
        ConnectError::Tls(error) => Failure::usage(format!("{error}; take client.json of the cluster again")),
        error => Failure::new(
            exit::TOO_FEW,
            "unavailable",
            format!("{error}; is the master running? see `copal master --help`"),
        ),
    }
}

/// Whether a handshake failed, rather than the connection to the machine.
fn is_of_certificate(error: &CallError) -> bool {
    let text = error.to_string();
    text.contains("certificate") || text.contains("authority") || text.contains("UnknownIssuer")
}

/// A reply of the master as `--json` prints it.
pub(crate) fn as_json(reply: &impl Serialize) -> Outcome<Value> {
    serde_json::to_value(reply).map_err(|error| Failure::plain("malformed", error.to_string()))
}

/// Maps an error of a call to the master.
pub(crate) fn of_call(error: CallError) -> Failure {
    if let CallError::OtherRelease(sentence) = error {
        return Failure::plain("malformed", sentence);
    }
    if let Some(sentence) = copal_client::expired_certificate(&error) {
        return Failure::new(exit::PASSWORD, "certificate_ended", sentence);
    }
    of_volume(copal_client::volume_error(error))
}

/// Exit code and JSON code of a volume error.
pub(crate) fn word(error: &VolumeError) -> (u8, &'static str) {
    match error {
        VolumeError::NotFound | VolumeError::VolumeGone => (exit::NOT_FOUND, "not_found"),
        VolumeError::Exists { .. } | VolumeError::VolumeExists { .. } => (exit::EXISTS, "exists"),
        VolumeError::NotEmpty => (exit::EXISTS, "not_empty"),
        VolumeError::Degraded { .. } => (exit::TOO_FEW, "degraded"),
        VolumeError::Incomplete { .. } => (exit::TOO_FEW, "incomplete"),
        VolumeError::Deadline { .. } => (exit::TOO_FEW, "deadline"),
        VolumeError::Unavailable { .. } => (exit::TOO_FEW, "unavailable"),
        VolumeError::Unknown { .. } => (exit::UNKNOWN, "unknown"),
        VolumeError::NoSpace => (exit::NO_ROOM, "full"),
        VolumeError::QuotaExceeded { .. } => (exit::NO_ROOM, "quota"),
        VolumeError::Corrupt { .. } => (exit::DAMAGED, "damaged"),
        VolumeError::Denied { .. } => (exit::DENIED, "denied"),
        VolumeError::InvalidName { .. } => (exit::USAGE, "invalid_name"),
        VolumeError::TooLarge { .. } => (exit::USAGE, "too_large"),
        _ => (exit::FAILURE, "failed"),
    }
}

/// The file id in an error.
pub(crate) fn fid_of(error: &VolumeError) -> Option<String> {
    match error {
        VolumeError::Exists { fid } | VolumeError::Unknown { fid } => Some(fid.to_string()),
        _ => None,
    }
}

/// Maps a volume error to a failure of the command.
pub(crate) fn of_volume(error: VolumeError) -> Failure {
    let (exit_code, code) = word(&error);
    let sentence = match &error {
        VolumeError::Unknown { fid } => format!(
            "the outcome of file {fid} is unknown: some servers may have it; `copal fs settle VOLUME {fid}` decides it"
        ),
        VolumeError::NotFound => "not found; `copal fs ls` lists volumes and files".to_owned(),
        VolumeError::QuotaExceeded { quota, used, wanted } => format!(
            "the quota of the volume is reached: {} of {} used, {} more wanted; delete something",
            human::bytes(*used),
            human::bytes(*quota),
            human::bytes(*wanted)
        ),
        error => error.to_string(),
    };
    let mut failure = Failure::new(exit_code, code, sentence);
    failure.more.fid = fid_of(&error);
    if let Some(trace) = copal_client::last_trace().map(copal_client::trace_text) {
        // Errors about which the servers' logs have details.
        if matches!(exit_code, exit::FAILURE | exit::DAMAGED | exit::TOO_FEW | exit::UNKNOWN) {
            let sentence = &mut failure.sentence;
            sentence.push_str(&format!("; the servers' logs call this operation {trace}"));
        }
        failure.more.trace = Some(trace);
    }
    failure
}

/// Fields of a file's head.
pub(crate) fn file_as_json(info: &FileInfo) -> Value {
    json!({
        "fid": info.fid.to_string(), "size": info.size, "crc32c": info.crc32c, "created_ms": info.created_ms,
    })
}

/// Sends an administrative request to the master.
pub(crate) fn administer<R: AdminRequest>(store: &ClusterStore, request: &R) -> Outcome<R::Reply> {
    store.wait(store.cluster().administer(request, TO_CONNECT)).map_err(of_call)
}

/// Like [`administer`], for a group that may not exist.
pub(crate) fn administer_group<R: AdminRequest>(
    store: &ClusterStore,
    group: u32,
    request: &R,
) -> Outcome<R::Reply> {
    administer(store, request).map_err(|failure| match failure.exit_code {
        exit::NOT_FOUND => Failure::new(
            exit::NOT_FOUND,
            "not_found",
            format!("there is no group {group}; `copal group ls` lists them"),
        ),
        _ => failure,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_master_of_another_release_is_named_as_the_cause() {
        let sentence = "the master is of an older release";
        let failure = of_call(CallError::OtherRelease(sentence.to_owned()));
        assert_eq!(
            (failure.exit_code, failure.code, &*failure.sentence),
            (exit::FAILURE, "malformed", sentence)
        );
    }
}
