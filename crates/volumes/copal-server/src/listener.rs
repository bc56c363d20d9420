//! A listening socket: handshakes, frames in, answers out.
//!
//! Each connection is accepted at once, and has some seconds to show who it is (`unauthenticated`). It has a
//! task that reads and one that writes; each call a task of its own, a bounded number at a time per
//! connection, so that who sends more than it reads waits for itself.

use crate::{
    admission::{Budgets, Held},
    requests::{Request, Requests, Unreadable},
    status::{Status, expired},
    traffic::{Called, Traffic, TurnedAway},
    unauthenticated::{Place, Unauthenticated},
    validity::Validity,
};
use bytes::Bytes;
use copal_client::{
    MAX_CALL_TIME, codec, machine,
    machine::{AcceptedConnection, Stream},
    trace_text, with_deadline, with_trace,
};
use copal_proto::{
    CHAIN_BYTES, CHAIN_PART_BYTES, Method, WireFrame,
    messages::{Failure, failure::Code},
};
use futures_util::{SinkExt, StreamExt, future::BoxFuture};
use prost::Message;
use std::{
    collections::HashMap,
    future::Future,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::{
    io::WriteHalf,
    net::{TcpListener, TcpStream},
    sync::{Semaphore, mpsc},
    time::{timeout, timeout_at},
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        client::verify_server_name,
        pki_types::{CertificateDer, ServerName},
        server::ParsedCertificate,
    },
};
use tokio_util::codec::{Framed, FramedWrite};
use tracing::Instrument;
use webpki::EndEntityCert;

/// How long a connection may take to show who it is.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Calls of one connection that are under way at a time.
const CALLS: usize = 128;
/// Longest frame of who has shown no certificate.
const STRANGERS_BYTES: usize = 64 << 10;
/// How long who does not read its answers may keep their room.
const TO_READ: Duration = Duration::from_secs(30);

/// Who calls.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Where from.
    pub address: SocketAddr,
    /// Its certificate, which the authority has signed; none: it may only ask to join.
    pub certificate: Option<Arc<[u8]>>,
    /// The name in its certificate; empty: there is none.
    pub name: Arc<str>,
    /// What it showed with the call; empty: nothing.
    pub permit: Bytes,
    /// When its certificate is good; none: it has none that can be read.
    pub validity: Option<Validity>,
}

/// Name in the certificate of a client that may do everything.
pub const CLIENT_NAME: &str = "client.copal";

impl Peer {
    fn new(address: SocketAddr, certificate: Option<Arc<[u8]>>) -> Peer {
        let name = certificate.as_ref().and_then(|certificate| {
            let certificate = CertificateDer::from(certificate.as_ref());
            let parsed = EndEntityCert::try_from(&certificate).ok()?;
            parsed.valid_dns_names().next().map(Arc::from)
        });
        let validity = certificate.as_ref().and_then(|certificate| Validity::of_der(certificate));
        Peer {
            address,
            validity,
            certificate,
            name: name.unwrap_or_else(|| Arc::from("")),
            permit: Bytes::new(),
        }
    }

    /// Whether it is a client: no master and no data server.
    pub fn is_client(&self) -> bool {
        *self.name == *CLIENT_NAME || self.client_name().is_some()
    }

    /// The name of a client that may do only what it was granted.
    pub fn client_name(&self) -> Option<&str> {
        self.name.strip_suffix(CLIENT_NAME)?.strip_suffix('.')
    }

    /// Refuses a peer whose certificate has ended by the cluster's clock. A server may still ask for another:
    /// it has the key, and nobody is there who would do it in its place.
    fn check_certificate(&self, now_ms: Option<u64>, method: Method) -> Result<(), Status> {
        let (Some(validity), Some(now_ms)) = (self.validity, now_ms) else {
            return Ok(());
        };
        if !validity.has_ended(now_ms) || (method == Method::Renew && !self.is_client()) {
            return Ok(());
        }
        let day = validity.last_day();
        let text = match self.client_name() {
            Some(name) => format!(
                "the certificate of client {name} ended on {day}; `copal client renew {name}` writes a new profile, with one that \
                 may do everything"
            ),
            None if self.is_client() => format!(
                "the certificate of this profile ended on {day}; take client.json from the directory of a master that was started \
                 since then"
            ),
            None => format!(
                "the certificate of {} ended on {day}; it gets another as soon as a master answers",
                self.name
            ),
        };
        Err(Status::new(Code::CertificateEnded, text))
    }

    /// Whether the peer's certificate is for this name.
    pub fn is(&self, name: &ServerName<'_>) -> bool {
        let Some(certificate) = &self.certificate else {
            return false;
        };
        let certificate = CertificateDer::from(certificate.as_ref());
        let parsed = ParsedCertificate::try_from(&certificate);
        parsed.is_ok_and(|parsed| verify_server_name(&parsed, name).is_ok())
    }
}

/// Who answers.
pub trait Handler: Send + Sync + 'static {
    /// Calls that a peer without a certificate may make, one to a connection.
    const OF_STRANGERS: &'static [Method] = &[];

    /// The cluster's clock, by which certificates end, ms since 1970; `None`: it is not known.
    fn clock_ms(&self) -> Option<u64> {
        None
    }

    /// Answers one call with an encoded message.
    fn call(
        self: Arc<Self>,
        peer: Peer,
        method: Method,
        message: Bytes,
    ) -> impl Future<Output = Result<Bytes, Status>> + Send;

    /// Answers a chain, whose bytes come while it runs and whose hops answer one after the other; the last of
    /// them with what is returned.
    fn chain(
        self: Arc<Self>,
        _peer: Peer,
        _message: Bytes,
        _parts: Parts,
        _acks: Acks,
    ) -> impl Future<Output = Result<Bytes, Status>> + Send {
        async { Err(Status::new(Code::Invalid, "no chains end here")) }
    }
}

/// A frame of a chain behind its first.
#[derive(Debug)]
pub enum Part {
    /// `ChainData`.
    Data(Bytes),
    /// `ChainCommit`.
    Commit(Bytes),
}

/// Frames of a chain as they come; they end when the connection does, or when there are more than its bytes
/// can be.
pub type Parts = mpsc::Receiver<Part>;

/// Where answers of a chain go before its last.
pub struct Acks {
    id: u64,
    out: mpsc::Sender<Outgoing>,
}

impl Acks {
    /// Sends an answer after which more follow.
    pub async fn tell(&self, message: Bytes) {
        let frame = WireFrame {
            id: self.id,
            method: Method::PutChain as u16,
            is_reply: true,
            is_failure: false,
            is_more: true,
            trace: 0,
            left_ms: None,
            permit: Bytes::new(),
            message,
        };
        // Fails when the connection is gone by now.
        let _ = self.out.send(Outgoing { frame, room: None }).await;
    }
}

/// Takes connections in for a [`Listener`].
pub trait Gate: Send + 'static {
    /// Waits for the next one.
    fn next(&mut self) -> BoxFuture<'_, std::io::Result<AcceptedConnection>>;
}

/// Where connections come from.
enum Door {
    /// A socket; each shows who it is over TLS.
    Socket(TcpListener, TlsAcceptor),
    /// Whatever brings them with what they have shown.
    Gate(Box<dyn Gate>, SocketAddr),
}

/// One that came, and has not shown who it is yet.
enum Came {
    Socket(TcpStream, SocketAddr, TlsAcceptor),
    Taken(AcceptedConnection),
}

/// See the module.
pub struct Listener {
    door: Door,
    traffic: Arc<Traffic>,
}

impl Listener {
    /// Listens at `address`.
    /// # Errors
    /// The address is taken, or none of this machine.
    pub async fn bind(address: &str, tls: Arc<ServerConfig>) -> std::io::Result<Listener> {
        let socket = TcpListener::bind(address).await?;
        Ok(Listener::at(Door::Socket(socket, TlsAcceptor::from(tls))))
    }

    /// Takes in what `gate` brings, at `address`: for a machine that is not the real one.
    pub fn of_gate(gate: Box<dyn Gate>, address: SocketAddr) -> Listener {
        Listener::at(Door::Gate(gate, address))
    }

    fn at(door: Door) -> Listener {
        Listener { door, traffic: Arc::default() }
    }

    /// The same with other budgets for calls.
    pub fn with_budgets(mut self, budgets: &Budgets) -> Listener {
        self.traffic = Arc::new(Traffic::new(budgets));
        self
    }

    /// Where it listens.
    /// # Errors
    /// The socket is broken.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        match &self.door {
            Door::Socket(socket, _) => socket.local_addr(),
            Door::Gate(_, address) => Ok(*address),
        }
    }

    /// What is counted of its calls and connections.
    pub fn traffic(&self) -> Arc<Traffic> {
        Arc::clone(&self.traffic)
    }

    /// Serves until the task is dropped. Calls that are under way then end with it.
    pub async fn serve<H: Handler>(mut self, handler: Arc<H>) {
        let unauthenticated = Unauthenticated::new();
        loop {
            let came = match self.door.next().await {
                Ok(came) => came,
                Err(error) => {
                    // No descriptors left, mostly: some come back when connections end.
                    tracing::warn!(%error, "a connection could not be accepted");
                    unauthenticated.make_room();
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            };
            let (handler, traffic) = (Arc::clone(&handler), Arc::clone(&self.traffic));
            let place = unauthenticated.enter(came.address().ip());
            machine::spawn(async move {
                traffic.accept();
                let address = came.address();
                let ended = attend(came, place, handler, &traffic).await;
                traffic.end();
                if let Err((why, reason)) = ended {
                    traffic.turn_away(why);
                    tracing::debug!(%address, reason, "a connection was closed");
                }
            });
        }
    }
}

/// Serves one connection to its end; why this side ended it.
async fn attend<H: Handler>(
    came: Came,
    mut place: Place,
    handler: Arc<H>,
    traffic: &Arc<Traffic>,
) -> Result<(), (TurnedAway, String)> {
    let address = came.address();
    let crowded = || (TurnedAway::Crowded, "too many peers have not shown who they are".to_owned());
    let greeting = greet(came, Arc::clone(&place.has_spoken));
    let greeted = tokio::select! {
        biased;
        greeted = timeout(HANDSHAKE, greeting) => greeted,
        () = place.lost() => return Err(crowded()),
    };
    match greeted {
        Ok(Ok((stream, certificate @ Some(_)))) => {
            drop(place);
            let peer = Peer::new(address, certificate);
            converse(stream, peer, handler, traffic).await
        }
        Ok(Ok((stream, None))) => {
            let peer = Peer::new(address, None);
            let heard = tokio::select! {
                biased;
                heard = timeout(HANDSHAKE, hear_stranger(stream, peer, handler)) => heard,
                () = place.lost() => return Err(crowded()),
            };
            match heard {
                Ok(heard) => heard.map_err(|reason| (TurnedAway::NoCertificate, reason)),
                Err(_) => Err((TurnedAway::Silent, "it did not say what it wants".to_owned())),
            }
        }
        Ok(Err(error)) => Err((TurnedAway::Handshake, error.to_string())),
        Err(_) => Err((TurnedAway::Silent, "it did not say who it is".to_owned())),
    }
}

impl Door {
    async fn next(&mut self) -> std::io::Result<Came> {
        match self {
            Door::Socket(socket, tls) => {
                let (socket, address) = socket.accept().await?;
                Ok(Came::Socket(socket, address, tls.clone()))
            }
            Door::Gate(gate, _) => gate.next().await.map(Came::Taken),
        }
    }
}

impl Came {
    fn address(&self) -> SocketAddr {
        match self {
            Came::Socket(_, address, _) => *address,
            Came::Taken(taken) => taken.address,
        }
    }
}

async fn greet(came: Came, has_spoken: Arc<AtomicBool>) -> std::io::Result<(Stream, Option<Arc<[u8]>>)> {
    let (socket, tls) = match came {
        Came::Socket(socket, _, tls) => (socket, tls),
        Came::Taken(taken) => return Ok((taken.stream, taken.certificate)),
    };
    socket.set_nodelay(true)?;
    socket.readable().await?;
    has_spoken.store(true, Ordering::Relaxed);
    let stream = tls.accept(socket).await?;
    let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    let certificate = shown.map(|certificate| Arc::from(certificate.as_ref()));
    Ok((Box::new(stream), certificate))
}

/// Answers the one call of who has shown no certificate.
async fn hear_stranger<H: Handler>(stream: Stream, peer: Peer, handler: Arc<H>) -> Result<(), String> {
    let mut codec = codec();
    codec.set_max_frame_length(STRANGERS_BYTES);
    let mut framed = Framed::new(stream, codec);
    let bytes = match framed.next().await {
        Some(Ok(bytes)) => bytes,
        Some(Err(error)) => return Err(error.to_string()),
        None => return Err("it showed no certificate and asked for nothing".to_owned()),
    };
    let frame = WireFrame::decode(bytes.freeze()).map_err(|error| error.to_string())?;
    let method = Method::of_number(frame.method).filter(|method| H::OF_STRANGERS.contains(method));
    let answer = match method {
        Some(method) if !frame.is_reply => {
            let called = handler.call(peer, method, frame.message.clone());
            with_deadline(end_of(&frame), called).await
        }
        _ => Err(Status::new(Code::Denied, "this takes a certificate of the cluster's authority")),
    };
    let is_refused = answer.is_err();
    let sent = framed.send(reply(&frame, answer).encode()).await;
    sent.map_err(|error| error.to_string())?;
    match is_refused {
        true => Err("it was refused".to_owned()),
        false => Ok(()),
    }
}

/// Answers a call. What is logged on the way, here and where more calls are made for it, has the operation's
/// number.
async fn answered<H: Handler>(
    handler: &Arc<H>,
    peer: Peer,
    method: Method,
    frame: &WireFrame,
    (end, chain): (Instant, Option<(Parts, Acks)>),
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
    // At the level of what is always logged: otherwise a warning would not say what it is about.
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

/// The frame that answers another.
fn reply(to: &WireFrame, answer: Result<Bytes, Status>) -> WireFrame {
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

/// When the caller of a request gives up, as far as it says so.
fn end_of(frame: &WireFrame) -> Instant {
    let left = frame.left_ms.map_or(MAX_CALL_TIME, |left| Duration::from_millis(left.into()));
    machine::now() + left.min(MAX_CALL_TIME)
}

/// Chains of a connection whose bytes are coming.
#[derive(Default)]
struct Chains {
    open: HashMap<u64, mpsc::Sender<Part>>,
}

impl Chains {
    /// Chains of a connection at a time: calls beside them find a turn still.
    const MOST: usize = CALLS / 2;
    /// Frames of a chain behind its first.
    const PARTS: usize = CHAIN_BYTES / CHAIN_PART_BYTES + 2;

    /// A chain begins; `None`: it may not.
    fn begin(&mut self, id: u64) -> Option<Parts> {
        self.open.retain(|_, to| !to.is_closed());
        if self.open.len() >= Chains::MOST || self.open.contains_key(&id) {
            return None;
        }
        let (to, parts) = mpsc::channel(Chains::PARTS);
        self.open.insert(id, to);
        Some(parts)
    }

    /// A part goes to its chain; of a chain that has ended it is for nobody.
    fn take(&mut self, frame: WireFrame) {
        let is_last = frame.method == Method::ChainCommit as u16;
        let part = match is_last {
            true => Part::Commit(frame.message),
            false => Part::Data(frame.message),
        };
        let Some(to) = self.open.get(&frame.id) else {
            return;
        };
        // More frames than its bytes can be: who waits for them sees that they ended.
        if to.try_send(part).is_err() || is_last {
            self.open.remove(&frame.id);
        }
    }
}

/// A frame that is to be written, and the room that its call holds until then.
pub(crate) struct Outgoing {
    frame: WireFrame,
    room: Option<Held>,
}

/// A call that was admitted.
struct Call {
    frame: WireFrame,
    room: Held,
    end: Instant,
    /// What comes behind it.
    chain: Option<(Parts, Acks)>,
}

/// Answers a call once. Whoever waits for longer than its end is told so in time; what was begun goes on to
/// its next look at the time, and keeps its room for as long.
async fn answer_one<H: Handler>(
    handler: &Arc<H>,
    peer: Peer,
    call: Call,
    traffic: &Traffic,
    out: &mpsc::Sender<Outgoing>,
) {
    let Call { frame, room, end, chain } = call;
    // Fails when the connection is gone by now.
    let send = async |answer, room| {
        let frame = reply(&frame, answer);
        drop(out.send(Outgoing { frame, room }).await);
    };
    let Some(method) = Method::of_number(frame.method) else {
        let unknown = Status::new(Code::Invalid, "this release knows no such call");
        return send(Err(unknown), Some(room)).await;
    };
    let began = machine::now();
    let note = |answer: &Result<Bytes, Status>| {
        traffic.note(&Called {
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
    let mut work = std::pin::pin!(answered(handler, peer, method, &frame, (end, chain)));
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

/// Writes answers until no more come, or the other side does not read them.
async fn write_answers(into: WriteHalf<Stream>, mut answers: mpsc::Receiver<Outgoing>) {
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
        if !matches!(timeout(TO_READ, written).await, Ok(Ok(()))) {
            return;
        }
    }
    // The other side learns that nothing more comes.
    let _ = timeout(TO_READ, SinkExt::<Bytes>::close(&mut sink)).await;
}

/// Answers calls until the other side has no more. An error: it sent what is no frame, or began one and did
/// not end it. A connection that breaks is neither: honest processes are killed, too.
async fn converse<H: Handler>(
    stream: Stream,
    peer: Peer,
    handler: Arc<H>,
    traffic: &Arc<Traffic>,
) -> Result<(), (TurnedAway, String)> {
    let (from, into) = tokio::io::split(stream);
    let (out, answers) = mpsc::channel::<Outgoing>(CALLS);
    let writer = machine::spawn(write_answers(into, answers));
    let calls = Arc::new(Semaphore::new(CALLS));
    let mut requests = Requests::new(from);
    let mut chains = Chains::default();
    let ended = loop {
        let (frame, room) = match requests.next(&traffic.admission).await {
            Ok(Some(Request::Admitted(frame, room))) => (frame, room),
            Ok(Some(Request::Part(frame))) => {
                chains.take(frame);
                continue;
            }
            Ok(Some(Request::NoRoom(frame, busy))) => {
                traffic.refuse(frame.method, &busy);
                let frame = reply(&frame, Err(busy));
                if out.send(Outgoing { frame, room: None }).await.is_err() {
                    break Ok(());
                }
                continue;
            }
            Ok(None) => break Ok(()),
            Err(Unreadable::Broken(reason)) => {
                tracing::debug!(reason, "a connection broke");
                break Ok(());
            }
            Err(Unreadable::Late) => {
                let reason = "it began a frame and did not end it".to_owned();
                break Err((TurnedAway::Silent, reason));
            }
            Err(Unreadable::Garbage(reason)) => break Err((TurnedAway::Garbage, reason)),
        };
        let chain = match frame.method == Method::PutChain as u16 {
            false => None,
            true => match chains.begin(frame.id) {
                Some(parts) => {
                    let (id, out) = (frame.id, out.clone());
                    Some((parts, Acks { id, out }))
                }
                None => {
                    let reason = "it began more chains than it may, or one twice".to_owned();
                    break Err((TurnedAway::Garbage, reason));
                }
            },
        };
        // Nothing more is read from here before there is a turn for it. Chains take fewer turns than there
        // are.
        let Ok(turn) = Arc::clone(&calls).acquire_owned().await else {
            break Ok(());
        };
        let end = end_of(&frame);
        let peer = Peer { permit: frame.permit.clone(), ..peer.clone() };
        let call = Call { frame, room, end, chain };
        let (out, handler) = (out.clone(), Arc::clone(&handler));
        let traffic = Arc::clone(traffic);
        machine::spawn(async move {
            answer_one(&handler, peer, call, &traffic, &out).await;
            drop(turn);
        });
    };
    drop(out);
    // Answers of calls that are under way still go out.
    let _ = writer.await;
    ended
}

#[cfg(test)]
mod tests;
