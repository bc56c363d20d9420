//! What calls of a server have in common: messages in, messages out, work that blocks on a thread of its own.

use crate::status::{Status, expired};
use bytes::Bytes;
use copal_client::{current_deadline, machine};
use copal_proto::messages::failure::Code;
use prost::Message;

/// Reads a request.
/// # Errors
/// It is none.
pub fn read<T: Message + Default>(message: Bytes) -> Result<T, Status> {
    T::decode(message)
        .map_err(|error| Status::new(Code::Invalid, format!("the request cannot be read: {error}")))
}

/// Encodes an answer.
pub fn encoded(message: &impl Message) -> Bytes {
    message.encode_to_vec().into()
}

/// Runs what blocks, unless nobody waits for it any more when its turn has come.
/// # Errors
/// As it does; `Expired`; `Internal`: it panicked, and the process goes on without it.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Status> + Send + 'static,
) -> Result<T, Status> {
    // What the work logs is part of the call.
    let span = tracing::Span::current();
    let end = current_deadline();
    let work = move || match end.is_some_and(|end| machine::now() >= end) {
        true => Err(expired()),
        false => span.in_scope(work),
    };
    match machine::run_blocking(work).await {
        Ok(outcome) => outcome,
        Err(error) => Err(Status::new(Code::Internal, format!("the call ended early: {error}"))),
    }
}
