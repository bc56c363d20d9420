//! One call: its deadline, its dispatch to the handler, its reply.

use crate::net::admission::AdmittedBytes;
use crate::net::chain_frames::{ChainAcks, ChainParts, OutgoingFrame};
use crate::net::handler::CallHandler;
use crate::net::peer::PeerIdentity;
use crate::net::status::{Status, expired};
use crate::net::traffic::{CallRecord, TrafficCounters};
use bytes::Bytes;
use copal_client::{MAX_CALL_TIME, machine, trace_text, with_deadline, with_trace};
use copal_proto::{
    Method, WireFrame,
    messages::{Failure, failure::Code},
};
use prost::Message;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{sync::mpsc, time::timeout_at};
use tracing::Instrument;

/// Dispatches a call to its handler. Log lines of the call, here and in further calls made for it, carry the
/// number of the operation.
async fn dispatch<H: CallHandler>(
    handler: &Arc<H>,
    peer: PeerIdentity,
    method: Method,
    frame: &WireFrame,
    (end, chain): (Instant, Option<(ChainParts, ChainAcks)>),
) -> Result<Bytes, Status> {
    let (handler, message) = (Arc::clone(handler), frame.message.clone());
    let called = async move {
        peer.check_certificate(handler.clock_ms(), method)?;
        match chain {
            None => handler.call(peer, method, message).await,
            Some((parts, acks)) => handler.chain(peer, message, parts, acks).await,
        }
    };
    let called = with_deadline(end, called);
    if frame.trace == 0 {
        return called.await;
    }
    // Level error, so that the span is always enabled: otherwise a warning would not name its operation.
    let span = tracing::error_span!("call", trace = %trace_text(frame.trace), method = method.name());
    let called = async {
        let answer = called.await;
        match &answer {
            Ok(_) => tracing::debug!("answered"),
            Err(status) => {
                tracing::debug!(code = status.code().as_str_name(), text = status.text(), "refused")
            }
        }
        answer
    };
    with_trace(frame.trace, called).instrument(span).await
}

/// The reply to a request.
pub(crate) fn reply_frame(to: &WireFrame, answer: Result<Bytes, Status>) -> WireFrame {
    let (is_failure, message) = match answer {
        Ok(message) => (false, message),
        Err(status) => (true, Failure::from(status).encode_to_vec().into()),
    };
    WireFrame {
        permit: Bytes::new(),
        id: to.id,
        method: to.method,
        is_reply: true,
        is_failure,
        is_more: false,
        trace: 0,
        left_ms: None,
        message,
    }
}

/// Deadline of a request, as its caller gave it.
pub(crate) fn deadline_of(frame: &WireFrame) -> Instant {
    let left = frame.left_ms.map_or(MAX_CALL_TIME, |left| Duration::from_millis(left.into()));
    machine::now() + left.min(MAX_CALL_TIME)
}

/// An admitted call.
pub(crate) struct AdmittedCall {
    pub(crate) frame: WireFrame,
    pub(crate) room: AdmittedBytes,
    pub(crate) end: Instant,
    /// Further frames, of a chain only.
    pub(crate) chain: Option<(ChainParts, ChainAcks)>,
}

/// Answers a call exactly once. At the deadline the answer is `Expired`. The handler continues until it checks
/// the deadline itself, and holds the call's memory until then.
pub(crate) async fn answer_one<H: CallHandler>(
    handler: &Arc<H>,
    peer: PeerIdentity,
    call: AdmittedCall,
    traffic: &TrafficCounters,
    out: &mpsc::Sender<OutgoingFrame>,
) {
    let AdmittedCall { frame, room, end, chain } = call;
    // Fails if the connection has ended.
    let send = async |answer, room| {
        let frame = reply_frame(&frame, answer);
        drop(out.send(OutgoingFrame { frame, room }).await);
    };
    let Some(method) = Method::of_number(frame.method) else {
        let unknown = Status::new(Code::Invalid, "this release knows no such call");
        return send(Err(unknown), Some(room)).await;
    };
    let began = machine::now();
    let note = |answer: &Result<Bytes, Status>| {
        traffic.record(&CallRecord {
            method,
            bytes_in: frame.message.len(),
            bytes_out: answer.as_ref().map_or(0, Bytes::len),
            took: machine::since(began),
            refusal: answer.as_ref().err().map(|status| status.code().into()),
        });
    };
    if began >= end {
        let answer = Err(expired());
        note(&answer);
        return send(answer, Some(room)).await;
    }
    let mut work = std::pin::pin!(dispatch(handler, peer, method, &frame, (end, chain)));
    match timeout_at(end.into(), work.as_mut()).await {
        Ok(answer) => {
            note(&answer);
            send(answer, Some(room)).await;
        }
        Err(_) => {
            let answer = Err(expired());
            note(&answer);
            send(answer, None).await;
            let _ = work.await;
            drop(room);
        }
    }
}
