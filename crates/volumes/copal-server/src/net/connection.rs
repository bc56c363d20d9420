//! One connection: handshake, then calls until it ends.
//!
//! A connection has one task that reads and one that writes. Each call is a task; their number per connection
//! is bounded. A peer that sends more than it reads is slowed down by this bound and affects no other
//! connection.

use crate::net::call::{AdmittedCall, answer_one, deadline_of, reply_frame};
use crate::net::chain_frames::{ChainAcks, MAX_CALLS, OpenChains, OutgoingFrame};
use crate::net::handler::CallHandler;
use crate::net::peer::PeerIdentity;
use crate::net::request::{IncomingRequest, RequestError, RequestReader};
use crate::net::status::Status;
use crate::net::traffic::{CloseReason, TrafficCounters};
use crate::net::unauthenticated::PeerSlot;
use bytes::Bytes;
use copal_client::{
    codec, machine,
    machine::{AcceptedConnection, Stream},
    with_deadline,
};
use copal_proto::{Method, WireFrame, messages::failure::Code};
use futures_util::{SinkExt, StreamExt};
use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::WriteHalf,
    net::TcpStream,
    sync::{Semaphore, mpsc},
    time::timeout,
};
use tokio_rustls::TlsAcceptor;
use tokio_util::codec::{Framed, FramedWrite};

/// Time limit for the handshake, and for the request of an unauthenticated peer.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest frame of an unauthenticated peer.
const UNAUTHENTICATED_FRAME_BYTES: usize = 64 << 10;
/// Time limit for writing answers; then the connection ends and their memory is freed.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// An accepted connection before its handshake.
pub(crate) enum PendingConnection {
    Socket(TcpStream, SocketAddr, TlsAcceptor),
    Simulated(AcceptedConnection),
}

impl PendingConnection {
    pub(crate) fn address(&self) -> SocketAddr {
        match self {
            PendingConnection::Socket(_, address, _) => *address,
            PendingConnection::Simulated(taken) => taken.address,
        }
    }
}

/// Serves one connection to its end.
/// # Errors
/// The reason for which this side closed it.
pub(crate) async fn serve_connection<H: CallHandler>(
    pending: PendingConnection,
    mut slot: PeerSlot,
    handler: Arc<H>,
    traffic: &Arc<TrafficCounters>,
) -> Result<(), (CloseReason, String)> {
    let address = pending.address();
    let evicted = || (CloseReason::Crowded, "too many connections are unauthenticated".to_owned());
    let shaken = handshake(pending, Arc::clone(&slot.has_sent));
    let outcome = tokio::select! {
        biased;
        outcome = timeout(HANDSHAKE_TIMEOUT, shaken) => outcome,
        () = slot.evicted() => return Err(evicted()),
    };
    match outcome {
        Ok(Ok((stream, certificate @ Some(_)))) => {
            drop(slot);
            let peer = PeerIdentity::new(address, certificate);
            serve_calls(stream, peer, handler, traffic).await
        }
        Ok(Ok((stream, None))) => {
            let peer = PeerIdentity::new(address, None);
            let served = tokio::select! {
                biased;
                served = timeout(HANDSHAKE_TIMEOUT, serve_join(stream, peer, handler)) => served,
                () = slot.evicted() => return Err(evicted()),
            };
            match served {
                Ok(served) => served.map_err(|reason| (CloseReason::NoCertificate, reason)),
                Err(_) => Err((CloseReason::Silent, "no request arrived in time".to_owned())),
            }
        }
        Ok(Err(error)) => Err((CloseReason::Handshake, error.to_string())),
        Err(_) => Err((CloseReason::Silent, "the handshake took too long".to_owned())),
    }
}

async fn handshake(
    pending: PendingConnection,
    has_sent: Arc<AtomicBool>,
) -> std::io::Result<(Stream, Option<Arc<[u8]>>)> {
    let (socket, tls) = match pending {
        PendingConnection::Socket(socket, _, tls) => (socket, tls),
        PendingConnection::Simulated(taken) => return Ok((taken.stream, taken.certificate)),
    };
    socket.set_nodelay(true)?;
    socket.readable().await?;
    has_sent.store(true, Ordering::Relaxed);
    let stream = tls.accept(socket).await?;
    let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    let certificate = shown.map(|certificate| Arc::from(certificate.as_ref()));
    Ok((Box::new(stream), certificate))
}

/// Answers the one call of an unauthenticated peer.
async fn serve_join<H: CallHandler>(
    stream: Stream,
    peer: PeerIdentity,
    handler: Arc<H>,
) -> Result<(), String> {
    let mut codec = codec();
    codec.set_max_frame_length(UNAUTHENTICATED_FRAME_BYTES);
    let mut framed = Framed::new(stream, codec);
    let bytes = match framed.next().await {
        Some(Ok(bytes)) => bytes,
        Some(Err(error)) => return Err(error.to_string()),
        None => return Err("a peer without a certificate sent no request".to_owned()),
    };
    let frame = WireFrame::decode(bytes.freeze()).map_err(|error| error.to_string())?;
    let method = Method::of_number(frame.method).filter(|method| H::UNAUTHENTICATED_CALLS.contains(method));
    let answer = match method {
        Some(method) if !frame.is_reply => {
            let called = handler.call(peer, method, frame.message.clone());
            with_deadline(deadline_of(&frame), called).await
        }
        _ => Err(Status::new(Code::Denied, "this call requires a certificate of the cluster's authority")),
    };
    let is_refused = answer.is_err();
    let sent = framed.send(reply_frame(&frame, answer).encode()).await;
    sent.map_err(|error| error.to_string())?;
    match is_refused {
        true => Err("a request without a certificate was refused".to_owned()),
        false => Ok(()),
    }
}

/// Writes answers until there are no more, or the peer stops reading.
async fn write_answers(into: WriteHalf<Stream>, mut answers: mpsc::Receiver<OutgoingFrame>) {
    let mut sink = FramedWrite::new(into, codec());
    while let Some(first) = answers.recv().await {
        let written = async {
            let mut rooms = vec![first.room];
            sink.feed(first.frame.encode()).await?;
            while let Ok(more) = answers.try_recv() {
                rooms.push(more.room);
                sink.feed(more.frame.encode()).await?;
            }
            SinkExt::<Bytes>::flush(&mut sink).await
        };
        if !matches!(timeout(WRITE_TIMEOUT, written).await, Ok(Ok(()))) {
            return;
        }
    }
    // Closes the stream in order: the peer learns that no more answers follow.
    let _ = timeout(WRITE_TIMEOUT, SinkExt::<Bytes>::close(&mut sink)).await;
}

/// Serves calls until the peer closes the connection.
/// # Errors
/// The peer sent a malformed frame, or began one and did not finish it. A broken connection is no error:
/// honest processes are killed, too.
async fn serve_calls<H: CallHandler>(
    stream: Stream,
    peer: PeerIdentity,
    handler: Arc<H>,
    traffic: &Arc<TrafficCounters>,
) -> Result<(), (CloseReason, String)> {
    let (from, into) = tokio::io::split(stream);
    let (out, answers) = mpsc::channel::<OutgoingFrame>(MAX_CALLS);
    let writer = machine::spawn(write_answers(into, answers));
    let calls = Arc::new(Semaphore::new(MAX_CALLS));
    let mut requests = RequestReader::new(from);
    let mut chains = OpenChains::default();
    let ended = loop {
        let (frame, room) = match requests.next(&traffic.admission).await {
            Ok(Some(IncomingRequest::Admitted(frame, room))) => (frame, room),
            Ok(Some(IncomingRequest::ChainPart(frame))) => {
                chains.take(frame);
                continue;
            }
            Ok(Some(IncomingRequest::Refused(frame, busy))) => {
                traffic.record_refusal(frame.method, &busy);
                let frame = reply_frame(&frame, Err(busy));
                if out.send(OutgoingFrame { frame, room: None }).await.is_err() {
                    break Ok(());
                }
                continue;
            }
            Ok(None) => break Ok(()),
            Err(RequestError::Broken(reason)) => {
                tracing::debug!(reason, "connection broke");
                break Ok(());
            }
            Err(RequestError::TimedOut) => {
                let reason = "it did not finish a frame in time".to_owned();
                break Err((CloseReason::Silent, reason));
            }
            Err(RequestError::Malformed(reason)) => break Err((CloseReason::Garbage, reason)),
        };
        let chain = match frame.method == Method::PutChain as u16 {
            false => None,
            true => match chains.begin(frame.id) {
                Some(parts) => {
                    let (id, out) = (frame.id, out.clone());
                    Some((parts, ChainAcks { id, out }))
                }
                None => {
                    let reason = "it opened too many chains, or one twice".to_owned();
                    break Err((CloseReason::Garbage, reason));
                }
            },
        };
        // Reading stops until a call slot is free. Chains take at most half of the slots.
        let Ok(turn) = Arc::clone(&calls).acquire_owned().await else {
            break Ok(());
        };
        let end = deadline_of(&frame);
        let peer = PeerIdentity { permit: frame.permit.clone(), ..peer.clone() };
        let call = AdmittedCall { frame, room, end, chain };
        let (out, handler) = (out.clone(), Arc::clone(&handler));
        let traffic = Arc::clone(traffic);
        machine::spawn(async move {
            answer_one(&handler, peer, call, &traffic, &out).await;
            drop(turn);
        });
    };
    drop(out);
    // Answers of calls in progress are still written.
    let _ = writer.await;
    ended
}
