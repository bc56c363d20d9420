//! One connection with many concurrent calls, whose answers arrive in any order.
//!
//! A connection has one task that writes and one that reads. Frames that wait to be sent go out in one write.
//! When the connection breaks, all calls in progress fail with `Broken`, and it accepts no further calls.

use crate::net::{
    deadline::{in_ms, time_left},
    machine::{self, Stream},
    network_estimate::NetworkEstimate,
    tls::AGENT_NAME,
    trace::current_trace,
};
use bytes::Bytes;
use copal_proto::{
    MAX_FRAME_BYTES, Method, WireFrame,
    messages::{Failure, failure::Code},
};
use futures_util::{SinkExt, StreamExt};
use parking_lot::Mutex;
use prost::Message;
use rustls_pki_types::ServerName;
use std::{
    collections::BTreeMap,
    io::ErrorKind,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};
use tokio_rustls::rustls::{self, AlertDescription, CertificateError, ClientConfig};
use tokio_util::codec::{Framed, LengthDelimitedCodec};

/// How long a connection may take to open.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest pause before a busy server is called again; up to half as much is added at random.
const MAX_PAUSE_MS: u64 = 1000;
/// How long one write may take.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// Frames that may wait to be sent.
const SEND_QUEUE: usize = 1024;

/// Why a call failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CallError {
    /// No process listens there, or it is another one.
    #[error("cannot reach {address}: {reason}")]
    Unreachable {
        /// host:port.
        address: String,
        /// The cause.
        reason: String,
    },
    /// The connection broke before the answer: the call may have been carried out.
    #[error("the connection to {address} broke")]
    Broken {
        /// host:port.
        address: String,
    },
    /// No answer before the deadline: the call may have been carried out.
    #[error("no answer in time")]
    Deadline,
    /// The other side refused.
    #[error("refused: {}", .0.text)]
    Failed(Box<Failure>),
    /// The answer is not the message that belongs to the call.
    #[error("an answer cannot be read: {0}")]
    Malformed(String),
    /// The master has another release: it does not know the call, or answers it in another form.
    #[error("{0}")]
    OtherRelease(String),
}

type Answer = Result<Bytes, CallError>;
/// Calls in progress, by number; `None`: the connection broke.
type PendingCalls = Arc<Mutex<Option<BTreeMap<u64, AnswerSender>>>>;

/// Passes answers to the caller that waits for them.
enum AnswerSender {
    /// Of a call with one answer.
    One(oneshot::Sender<Answer>),
    /// Of a call with several answers.
    Many(mpsc::Sender<Answer>),
}

impl AnswerSender {
    /// Passes an answer on. The receiver may have given up.
    fn send(self, answer: Answer) {
        match self {
            AnswerSender::One(sender) => drop(sender.send(answer)),
            AnswerSender::Many(sender) => drop(sender.try_send(answer)),
        }
    }
}

/// Answers of one call that may wait to be received. Further ones are dropped.
const ANSWER_QUEUE: usize = 32;

/// A request in the form in which it is sent: encoded message and permit; an empty permit: none.
#[derive(Clone, Debug, Default)]
pub struct EncodedRequest {
    /// The message.
    pub message: Bytes,
    /// A `SignedPermit`.
    pub permit: Bytes,
}

impl From<Bytes> for EncodedRequest {
    fn from(message: Bytes) -> EncodedRequest {
        EncodedRequest { message, permit: Bytes::new() }
    }
}

/// A connection to one process. Cheap to clone.
#[derive(Clone)]
pub struct Connection {
    address: Arc<str>,
    next: Arc<AtomicU64>,
    out: mpsc::Sender<WireFrame>,
    pending: PendingCalls,
}

/// The codec of a connection: a length of four bytes, then a frame.
pub fn codec() -> LengthDelimitedCodec {
    LengthDelimitedCodec::builder().length_field_length(4).max_frame_length(MAX_FRAME_BYTES).new_codec()
}

/// Describes why a connection could not be opened, and names the certificate or clock at fault.
fn handshake_fault(error: &std::io::Error, name: &ServerName<'_>) -> String {
    let name = name.to_str();
    if name == AGENT_NAME {
        return agent_fault(error);
    }
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let fault = match tls {
        Some(rustls::Error::InvalidCertificate(certificate)) => match certificate {
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                format!("another process answers there: its certificate is not that of {name}")
            }
            CertificateError::UnknownIssuer => {
                format!("the certificate of {name} is not signed by the authority of this cluster")
            }
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. } => {
                format!("the certificate of {name} and its authority's were never valid at the same time")
            }
            CertificateError::Other(reason) => return reason.to_string(),
            _ => format!("the certificate of {name} cannot be used"),
        },
        Some(rustls::Error::AlertReceived(AlertDescription::CertificateExpired)) => {
            format!(
                "{name} considers the certificate of this process expired: it is, or the clock there is wrong"
            )
        }
        _ => return error.to_string(),
    };
    format!("{fault} ({error})")
}

/// As [`handshake_fault`], for an agent: its certificate proves only its domain.
fn agent_fault(error: &std::io::Error) -> String {
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match tls {
        Some(rustls::Error::InvalidCertificate(_)) => {
            "it belongs to another domain: its certificate does not belong to the key of this repository"
                .to_owned()
        }
        // An agent from before 2026-12 closes the connection, since it does not know the handshake.
        _ if tls.is_some()
            || matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset) =>
        {
            format!("it is not an agent of this release ({error}); run one release on all hosts of a fleet")
        }
        _ => error.to_string(),
    }
}

impl Connection {
    /// Connects to the process `name` at `address`.
    /// # Errors
    /// `Unreachable`.
    pub async fn open(
        address: &str,
        name: ServerName<'static>,
        tls: Arc<ClientConfig>,
    ) -> Result<Connection, CallError> {
        Connection::open_measured(address, name, tls, NetworkEstimate::default()).await
    }

    /// As [`Connection::open`]; its bytes are part of the measurement `network`.
    /// # Errors
    /// `Unreachable`.
    pub(crate) async fn open_measured(
        address: &str,
        name: ServerName<'static>,
        tls: Arc<ClientConfig>,
        network: NetworkEstimate,
    ) -> Result<Connection, CallError> {
        let unreachable = |reason: String| CallError::Unreachable { address: address.to_owned(), reason };
        let stream = match timeout(CONNECT_TIMEOUT, machine::connect(address, name.clone(), tls)).await {
            Ok(Ok((stream, took))) => {
                network.note_round_trip(took);
                stream
            }
            Ok(Err(error)) => return Err(unreachable(handshake_fault(&error, &name))),
            Err(_) => return Err(unreachable("it does not answer".to_owned())),
        };
        Ok(Connection::start(address, stream, network))
    }

    fn start(address: &str, stream: Stream, network: NetworkEstimate) -> Connection {
        let (mut sink, mut source) = Framed::new(stream, codec()).split();
        let (out, mut queue) = mpsc::channel::<WireFrame>(SEND_QUEUE);
        let pending: PendingCalls = Arc::new(Mutex::new(Some(BTreeMap::new())));
        let connection = Connection {
            address: address.into(),
            next: Arc::new(AtomicU64::new(1)),
            out,
            pending: Arc::clone(&pending),
        };
        machine::spawn(async move {
            while let Some(frame) = queue.recv().await {
                let timer = network.start_send();
                let mut sent = 0;
                let written = async {
                    let mut next = Some(frame);
                    while let Some(frame) = next {
                        let bytes = frame.encode();
                        sent += bytes.len();
                        sink.feed(bytes).await?;
                        next = queue.try_recv().ok();
                    }
                    sink.flush().await
                };
                // A process that accepts nothing for so long counts as dead, even if its machine is up.
                let is_written = matches!(timeout(WRITE_TIMEOUT, written).await, Ok(Ok(())));
                timer.end(sent);
                if !is_written {
                    break;
                }
            }
            // The other side learns that no more frames follow.
            let _ = timeout(CONNECT_TIMEOUT, sink.close()).await;
        });
        let address = connection.address.clone();
        machine::spawn(async move {
            while let Some(Ok(bytes)) = source.next().await {
                let Ok(frame) = WireFrame::decode(bytes.freeze()) else {
                    break;
                };
                let sender = match pending.lock().as_mut() {
                    None => None,
                    Some(calls) => match calls.get(&frame.id) {
                        // More answers follow, so the call stays pending.
                        Some(AnswerSender::Many(sender)) if frame.is_more => {
                            let sender = sender.clone();
                            Some(AnswerSender::Many(sender))
                        }
                        _ => calls.remove(&frame.id),
                    },
                };
                let answer = match frame.is_failure {
                    false => Ok(frame.message),
                    true => Err(match Failure::decode(frame.message) {
                        Ok(failure) => CallError::Failed(Box::new(failure)),
                        Err(error) => CallError::Malformed(error.to_string()),
                    }),
                };
                if let Some(sender) = sender {
                    sender.send(answer);
                }
            }
            let left = pending.lock().take().unwrap_or_default();
            for sender in left.into_values() {
                let address = address.to_string();
                sender.send(Err(CallError::Broken { address }));
            }
        });
        connection
    }

    /// Whether calls can still be made.
    pub fn is_open(&self) -> bool {
        self.calls_under_way().is_some()
    }

    /// Number of calls that wait for an answer; `None`: the connection is not open.
    pub(crate) fn calls_under_way(&self) -> Option<usize> {
        match self.out.is_closed() {
            true => None,
            false => self.pending.lock().as_ref().map(BTreeMap::len),
        }
    }

    /// Number of calls so far.
    pub(crate) fn calls_begun(&self) -> u64 {
        self.next.load(Ordering::Relaxed) - 1
    }

    /// Calls the other side, and waits for the answer until `deadline` or the deadline of the current task. A busy
    /// server is called again after a pause.
    /// # Errors
    /// All of them.
    pub async fn call<T: Message + Default>(
        &self,
        method: Method,
        request: &impl Message,
        deadline: Duration,
    ) -> Result<T, CallError> {
        self.call_encoded(method, EncodedRequest::from(Bytes::from(request.encode_to_vec())), deadline).await
    }

    /// As [`Connection::call`], for an encoded message.
    /// # Errors
    /// All of them.
    pub async fn call_encoded<T: Message + Default>(
        &self,
        method: Method,
        request: impl Into<EncodedRequest>,
        deadline: Duration,
    ) -> Result<T, CallError> {
        let request = request.into();
        let end = machine::now() + time_left(deadline);
        let mut tries = 0;
        loop {
            let left = end.saturating_duration_since(machine::now());
            let outcome = self.call_once(method, request.clone(), left).await;
            let Some(pause) = outcome.as_ref().err().and_then(|error| pause_after(error, tries)) else {
                return outcome;
            };
            if machine::now() + pause >= end {
                return outcome;
            }
            tokio::time::sleep(pause).await;
            tries += 1;
        }
    }

    /// As [`Connection::call_encoded`], without a repetition when the server is busy.
    /// # Errors
    /// All of them.
    pub async fn call_once<T: Message + Default>(
        &self,
        method: Method,
        request: impl Into<EncodedRequest>,
        deadline: Duration,
    ) -> Result<T, CallError> {
        let request = request.into();
        let deadline = time_left(deadline);
        if deadline.is_zero() {
            return Err(CallError::Deadline);
        }
        let (sender, receiver) = oneshot::channel();
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let broken = || CallError::Broken { address: self.address.to_string() };
        match self.pending.lock().as_mut() {
            Some(calls) => drop(calls.insert(id, AnswerSender::One(sender))),
            None => return Err(broken()),
        }
        let _guard = CallGuard { connection: self, id };
        let frame = frame_of(id, method, Some(deadline), request);
        let called = async {
            self.out.send(frame).await.map_err(|_| broken())?;
            receiver.await.map_err(|_| broken())?
        };
        let answer = timeout(deadline, called).await.map_err(|_| CallError::Deadline)??;
        T::decode(answer).map_err(|error| CallError::Malformed(error.to_string()))
    }
}

/// Removes a pending call when it ends or its caller gives up.
struct CallGuard<'a> {
    connection: &'a Connection,
    id: u64,
}

impl Drop for CallGuard<'_> {
    fn drop(&mut self) {
        if let Some(calls) = self.connection.pending.lock().as_mut() {
            calls.remove(&self.id);
        }
    }
}

fn frame_of(id: u64, method: Method, deadline: Option<Duration>, request: EncodedRequest) -> WireFrame {
    WireFrame {
        id,
        method: method as u16,
        is_reply: false,
        is_failure: false,
        is_more: false,
        trace: current_trace(),
        left_ms: deadline.map(in_ms),
        permit: request.permit,
        message: request.message,
    }
}

/// A call of several frames with several answers, for bytes that the server passes on while they arrive. A drop
/// before the last frame sends the abort message.
pub struct StreamedCall {
    connection: Connection,
    id: u64,
    answers: mpsc::Receiver<Answer>,
    /// Sent when the call is dropped before its last frame.
    abort: Option<(Method, Bytes)>,
}

impl Connection {
    /// Begins a call of several frames, with answers until `deadline`. `abort` is sent when it is dropped before
    /// its last frame.
    /// # Errors
    /// `Broken`, `Deadline`.
    pub async fn begin(
        &self,
        method: Method,
        request: EncodedRequest,
        abort: (Method, Bytes),
        deadline: Duration,
    ) -> Result<StreamedCall, CallError> {
        let deadline = time_left(deadline);
        if deadline.is_zero() {
            return Err(CallError::Deadline);
        }
        let (sender, answers) = mpsc::channel(ANSWER_QUEUE);
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        match self.pending.lock().as_mut() {
            Some(calls) => drop(calls.insert(id, AnswerSender::Many(sender))),
            None => return Err(self.broken()),
        }
        let streamed = StreamedCall { connection: self.clone(), id, answers, abort: Some(abort) };
        let frame = frame_of(id, method, Some(deadline), request);
        streamed.put(frame, deadline).await?;
        Ok(streamed)
    }

    fn broken(&self) -> CallError {
        CallError::Broken { address: self.address.to_string() }
    }
}

impl StreamedCall {
    async fn put(&self, frame: WireFrame, wait: Duration) -> Result<(), CallError> {
        match timeout(wait, self.connection.out.send(frame)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(self.connection.broken()),
            Err(_) => Err(CallError::Deadline),
        }
    }

    /// Sends another frame; waits up to `wait` for space in the queue.
    /// # Errors
    /// `Broken`, `Deadline`.
    pub async fn send(&self, method: Method, message: Bytes, wait: Duration) -> Result<(), CallError> {
        self.put(frame_of(self.id, method, None, message.into()), wait).await
    }

    /// Sends the last frame.
    /// # Errors
    /// `Broken`, `Deadline`.
    pub async fn finish(&mut self, method: Method, message: Bytes, wait: Duration) -> Result<(), CallError> {
        self.send(method, message, wait).await?;
        self.abort = None;
        Ok(())
    }

    /// The next answer; waits up to `wait`. `None`: there are no more.
    /// # Errors
    /// `Deadline`: none arrived in time. Otherwise as the other side refused, or `Broken`.
    pub async fn next<T: Message + Default>(&mut self, wait: Duration) -> Option<Result<T, CallError>> {
        let answer = match timeout(wait, self.answers.recv()).await {
            Ok(answer) => answer?,
            Err(_) => return Some(Err(CallError::Deadline)),
        };
        Some(
            answer.and_then(|answer| {
                T::decode(answer).map_err(|error| CallError::Malformed(error.to_string()))
            }),
        )
    }
}

impl Drop for StreamedCall {
    fn drop(&mut self) {
        if let Some(calls) = self.connection.pending.lock().as_mut() {
            calls.remove(&self.id);
        }
        if let Some((method, message)) = self.abort.take() {
            // If the queue is full, the other side gives up after its own timeout.
            let _ = self.connection.out.try_send(frame_of(self.id, method, None, message.into()));
        }
    }
}

/// Pause before a busy server, which has not begun the call, is called again; `None`: another error. It grows with
/// each try, and has a random part, so that callers that were refused together return at different times.
fn pause_after(error: &CallError, tries: u32) -> Option<Duration> {
    let CallError::Failed(failure) = error else {
        return None;
    };
    let asked = failure.numbers.first().copied().filter(|ms| *ms > 0)?;
    if failure.code() != Code::Busy {
        return None;
    }
    let longest = asked.saturating_mul(1 << tries.min(5)).min(MAX_PAUSE_MS);
    let drawn = machine::draw().unwrap_or(0);
    Some(Duration::from_millis(longest / 2 + drawn % longest.max(1)))
}

#[cfg(test)]
mod tests;
