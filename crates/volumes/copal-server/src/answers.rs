//! What calls of a server have in common: messages in, messages out, work that blocks on a thread of its own.

use crate::listener::{Refused, expired, refused};
use bytes::Bytes;
use copal_client::{current_end, machine};
use copal_proto::{messages::failure::Code, of_id};
use copal_volume::VolumeError;
use prost::Message;

/// Reads a request.
/// # Errors
/// It is none.
pub fn read<T: Message + Default>(message: Bytes) -> Result<T, Refused> {
    T::decode(message).map_err(|error| refused(Code::Invalid, format!("the request cannot be read: {error}")))
}

/// Encodes an answer.
pub fn encoded(message: &impl Message) -> Bytes {
    message.encode_to_vec().into()
}

/// Runs what blocks, unless nobody waits for it any more when its turn has come.
/// # Errors
/// As it does; `Expired`; `Internal`: it panicked, and the process goes on without it.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Refused> + Send + 'static,
) -> Result<T, Refused> {
    // What the work logs is part of the call.
    let span = tracing::Span::current();
    let end = current_end();
    let work = move || match end.is_some_and(|end| machine::now() >= end) {
        true => Err(expired()),
        false => span.in_scope(work),
    };
    match machine::on_a_thread(work).await {
        Ok(outcome) => outcome,
        Err(error) => Err(refused(Code::Internal, format!("the call ended early: {error}"))),
    }
}

/// A volume store's error as a refusal.
pub(crate) fn of_volume_error(error: &VolumeError) -> Refused {
    let (code, numbers) = match error {
        VolumeError::Exists { fid } => {
            let mut taken = refused(Code::Exists, error.to_string());
            taken.fid = Some(of_id(fid.0));
            return taken;
        }
        VolumeError::VolumeExists { vid } => (Code::VolumeExists, vec![vid.0]),
        VolumeError::NotFound => (Code::NotFound, Vec::new()),
        VolumeError::NotEmpty => (Code::NotEmpty, Vec::new()),
        VolumeError::Corrupt { what } => return refused(Code::Corrupt, what),
        VolumeError::NoSpace => (Code::NoSpace, Vec::new()),
        VolumeError::QuotaExceeded { quota, used, wanted } => (Code::Quota, vec![*quota, *used, *wanted]),
        VolumeError::VolumeGone => (Code::VolumeGone, Vec::new()),
        VolumeError::Denied { reason } => return refused(Code::Denied, reason),
        VolumeError::Unavailable { reason } => return refused(Code::Unavailable, reason),
        VolumeError::Failed { reason } => return refused(Code::Internal, reason),
        VolumeError::TooLarge { bytes, limit, .. } => (Code::TooLarge, vec![*bytes, *limit]),
        VolumeError::InvalidName { reason } => return refused(Code::Invalid, reason),
        _ => (Code::Unavailable, Vec::new()),
    };
    let mut refusal = refused(code, error.to_string());
    refusal.numbers = numbers;
    refusal
}
