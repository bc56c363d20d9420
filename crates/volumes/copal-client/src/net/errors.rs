//! Conversion of failed calls into errors of a volume store.

use crate::net::connection::CallError;
use copal_proto::{
    id,
    messages::{Failure, failure::Code},
};
use copal_volume::{FileId, VolumeError, VolumeId};

/// The error of a volume store for a failed call.
pub fn volume_error(error: CallError) -> VolumeError {
    match error {
        CallError::Failed(failure) => of_failure(&failure),
        CallError::Deadline => VolumeError::Deadline {
            reason: "the server accepted the call and did not answer it in time".to_owned(),
        },
        CallError::OtherRelease(reason) => VolumeError::Denied { reason },
        error @ (CallError::Unreachable { .. } | CallError::Broken { .. } | CallError::Malformed(_)) => {
            VolumeError::Unavailable { reason: error.to_string() }
        }
    }
}

/// The refusal text of a server for an expired certificate; `None`: the call failed for another reason.
pub fn expired_certificate(error: &CallError) -> Option<&str> {
    match error {
        CallError::Failed(failure) if failure.code == i32::from(Code::CertificateEnded) => {
            Some(&failure.text)
        }
        _ => None,
    }
}

fn of_failure(failure: &Failure) -> VolumeError {
    let number = |at: usize| failure.numbers.get(at).copied().unwrap_or(0);
    let text = || failure.text.clone();
    match Code::try_from(failure.code).unwrap_or(Code::Unspecified) {
        Code::Exists => VolumeError::Exists { fid: FileId(id(failure.fid)) },
        Code::VolumeExists => VolumeError::VolumeExists { vid: VolumeId(number(0)) },
        Code::NotFound => VolumeError::NotFound,
        Code::NotEmpty => VolumeError::NotEmpty,
        Code::VolumeGone => VolumeError::VolumeGone,
        Code::NoSpace => VolumeError::NoSpace,
        Code::Quota => VolumeError::QuotaExceeded { quota: number(0), used: number(1), wanted: number(2) },
        Code::Corrupt => VolumeError::Corrupt { what: text() },
        Code::Denied | Code::WrongCluster | Code::CertificateEnded => VolumeError::Denied { reason: text() },
        Code::Invalid => VolumeError::InvalidName { reason: text() },
        Code::TooLarge => VolumeError::TooLarge { what: "the request", bytes: number(0), limit: number(1) },
        Code::Internal => VolumeError::Failed { reason: text() },
        Code::Expired => VolumeError::Deadline { reason: text() },
        Code::Unspecified
        | Code::Stale
        | Code::Buried
        | Code::TooOld
        | Code::ClockSkew
        | Code::Missing
        | Code::Busy
        | Code::NotAuthoritative
        | Code::Fenced
        | Code::Unavailable
        | Code::NotLeader
        | Code::Newer => VolumeError::Unavailable { reason: text() },
    }
}
