//! Decoding of requests, encoding of replies, and blocking work of calls.

use crate::net::status::{Status, expired};
use bytes::Bytes;
use copal_client::{current_deadline, machine};
use copal_proto::messages::failure::Code;
use prost::Message;

/// Decodes a request.
/// # Errors
/// The bytes are no such message.
pub fn read<T: Message + Default>(message: Bytes) -> Result<T, Status> {
    T::decode(message)
        .map_err(|error| Status::new(Code::Invalid, format!("the request cannot be read: {error}")))
}

/// Encodes a reply.
pub fn encoded(message: &impl Message) -> Bytes {
    message.encode_to_vec().into()
}

/// Runs blocking work on a thread of its own; skips it if the deadline has passed when its turn comes.
/// # Errors
/// Those of the work; `Expired`; `Internal`: the work panicked, and the process continues.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Status> + Send + 'static,
) -> Result<T, Status> {
    // Log lines of the work belong to the call.
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
