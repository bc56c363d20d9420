//! One connection: calls go out as they come, answers come back in any order.
//!
//! Two tasks of its own, one that writes and one that reads; what waits to be written goes out in one write.
//! A connection that breaks answers every call that is under way with `Broken`, and takes no more.

use crate::net::deadline::{given, in_ms};
use crate::net::machine;
use crate::net::machine::Stream;
use crate::net::network_estimate::Link;
use crate::net::tls::AGENT_NAME;
use crate::net::trace::current_trace;
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

/// How long a connection may take to come about.
const CONNECT: Duration = Duration::from_secs(5);
/// The longest pause before a server that has no room is asked again, half as much added at most.
const LONGEST_PAUSE_MS: u64 = 1000;
/// How long what is sent may take to be taken.
const TO_WRITE: Duration = Duration::from_secs(30);
/// Calls that wait to be written.
const WAITING: usize = 1024;

/// Why a call has no answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CallError {
    /// Nobody listens there, or not the one who was meant.
    #[error("cannot reach {address}: {reason}")]
    Unreachable {
        /// host:port.
        address: String,
        /// Why.
        reason: String,
    },
    /// The connection broke before the answer: the call may have been carried out.
    #[error("the connection to {address} broke")]
    Broken {
        /// host:port.
        address: String,
    },
    /// No answer in time: the call may have been carried out.
    #[error("no answer in time")]
    Deadline,
    /// The other side refused.
    #[error("refused: {}", .0.text)]
    Failed(Box<Failure>),
    /// The answer is not what was asked for.
    #[error("an answer cannot be read: {0}")]
    Malformed(String),
    /// The master is of another release: it does not know the call, or answers it in another form.
    #[error("{0}")]
    OtherRelease(String),
}

type Answer = Result<Bytes, CallError>;
type Waiting = Arc<Mutex<Option<BTreeMap<u64, Waiter>>>>;

/// Who waits for answers.
enum Waiter {
    /// For one.
    One(oneshot::Sender<Answer>),
    /// For several, one after the other.
    Many(mpsc::Sender<Answer>),
}

impl Waiter {
    /// Tells an answer; whoever gave up does not listen any more.
    fn tell(self, answer: Answer) {
        match self {
            Waiter::One(told) => drop(told.send(answer)),
            Waiter::Many(told) => drop(told.try_send(answer)),
        }
    }
}

/// Answers of one call that are kept until they are asked for; with more of them the call is given up.
const ANSWERS: usize = 32;

/// A request as it is sent: the encoded message, and the permit that is shown with it; empty: none.
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

/// See the module. Cheap to clone.
#[derive(Clone)]
pub struct Connection {
    address: Arc<str>,
    next: Arc<AtomicU64>,
    out: mpsc::Sender<WireFrame>,
    waiting: Waiting,
}

/// The codec of the wire: a length of four bytes, then a frame.
pub fn codec() -> LengthDelimitedCodec {
    LengthDelimitedCodec::builder().length_field_length(4).max_frame_length(MAX_FRAME_BYTES).new_codec()
}

/// Why a connection did not come about, with the certificate or clock whose fault it is.
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
                format!("the certificate of {name} and its authority's were never good at the same time")
            }
            CertificateError::Other(reason) => return reason.to_string(),
            _ => format!("the certificate of {name} cannot be used"),
        },
        Some(rustls::Error::AlertReceived(AlertDescription::CertificateExpired)) => {
            format!(
                "{name} takes the certificate of this process for ended: it is, or the clock there is wrong"
            )
        }
        _ => return error.to_string(),
    };
    format!("{fault} ({error})")
}

/// As [`handshake_fault`], of an agent: its certificate says nothing but the domain it belongs to.
fn agent_fault(error: &std::io::Error) -> String {
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match tls {
        Some(rustls::Error::InvalidCertificate(_)) => {
            "it belongs to another domain: its certificate is not of the key of this repository".to_owned()
        }
        // An agent of before 2026-12 ends a handshake that it does not know, without a word.
        _ if tls.is_some()
            || matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset) =>
        {
            format!("it is no agent of this release ({error}); run one release on all hosts of a fleet")
        }
        _ => error.to_string(),
    }
}

impl Connection {
    /// Connects to `address`, where `name` is to be found.
    /// # Errors
    /// `Unreachable`.
    pub async fn open(
        address: &str,
        name: ServerName<'static>,
        tls: Arc<ClientConfig>,
    ) -> Result<Connection, CallError> {
        Connection::open_on(address, name, tls, Link::default()).await
    }

    /// As [`Connection::open`]; what goes over it is measured together with what else goes over the link.
    /// # Errors
    /// `Unreachable`.
    pub(crate) async fn open_on(
        address: &str,
        name: ServerName<'static>,
        tls: Arc<ClientConfig>,
        link: Link,
    ) -> Result<Connection, CallError> {
        let unreachable = |reason: String| CallError::Unreachable { address: address.to_owned(), reason };
        let stream = match timeout(CONNECT, machine::connect(address, name.clone(), tls)).await {
            Ok(Ok((stream, took))) => {
                link.note_round_trip(took);
                stream
            }
            Ok(Err(error)) => return Err(unreachable(handshake_fault(&error, &name))),
            Err(_) => return Err(unreachable("it does not answer".to_owned())),
        };
        Ok(Connection::over(address, stream, link))
    }

    fn over(address: &str, stream: Stream, link: Link) -> Connection {
        let (mut sink, mut source) = Framed::new(stream, codec()).split();
        let (out, mut queue) = mpsc::channel::<WireFrame>(WAITING);
        let waiting: Waiting = Arc::new(Mutex::new(Some(BTreeMap::new())));
        let connection = Connection {
            address: address.into(),
            next: Arc::new(AtomicU64::new(1)),
            out,
            waiting: Arc::clone(&waiting),
        };
        machine::spawn(async move {
            while let Some(frame) = queue.recv().await {
                let sending = link.begin();
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
                // Who takes nothing for so long is not there, whatever its machine says.
                let is_written = matches!(timeout(TO_WRITE, written).await, Ok(Ok(())));
                sending.end(sent);
                if !is_written {
                    break;
                }
            }
            // The other side learns that nothing more comes.
            let _ = timeout(CONNECT, sink.close()).await;
        });
        let address = connection.address.clone();
        machine::spawn(async move {
            while let Some(Ok(bytes)) = source.next().await {
                let Ok(frame) = WireFrame::decode(bytes.freeze()) else {
                    break;
                };
                let told = match waiting.lock().as_mut() {
                    None => None,
                    Some(waiting) => match waiting.get(&frame.id) {
                        // The last comes later.
                        Some(Waiter::Many(told)) if frame.is_more => {
                            let told = told.clone();
                            Some(Waiter::Many(told))
                        }
                        _ => waiting.remove(&frame.id),
                    },
                };
                let answer = match frame.is_failure {
                    false => Ok(frame.message),
                    true => Err(match Failure::decode(frame.message) {
                        Ok(failure) => CallError::Failed(Box::new(failure)),
                        Err(error) => CallError::Malformed(error.to_string()),
                    }),
                };
                if let Some(told) = told {
                    told.tell(answer);
                }
            }
            let left = waiting.lock().take().unwrap_or_default();
            for told in left.into_values() {
                let address = address.to_string();
                told.tell(Err(CallError::Broken { address }));
            }
        });
        connection
    }

    /// Whether calls can still be made.
    pub fn is_open(&self) -> bool {
        self.waiting.lock().is_some() && !self.out.is_closed()
    }

    /// Calls the other side, and waits for its answer up to `deadline`, or until the work that it is part of
    /// is to end. A server that has no room is asked again after a while.
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

    /// As [`Connection::call`], of a message that is encoded.
    /// # Errors
    /// All of them.
    pub async fn call_encoded<T: Message + Default>(
        &self,
        method: Method,
        request: impl Into<EncodedRequest>,
        deadline: Duration,
    ) -> Result<T, CallError> {
        let request = request.into();
        let end = machine::now() + given(deadline);
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

    /// Calls the other side once, whatever it says.
    /// # Errors
    /// All of them.
    pub async fn call_once<T: Message + Default>(
        &self,
        method: Method,
        request: impl Into<EncodedRequest>,
        deadline: Duration,
    ) -> Result<T, CallError> {
        let request = request.into();
        let deadline = given(deadline);
        if deadline.is_zero() {
            return Err(CallError::Deadline);
        }
        let (tell, told) = oneshot::channel();
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let broken = || CallError::Broken { address: self.address.to_string() };
        match self.waiting.lock().as_mut() {
            Some(waiting) => drop(waiting.insert(id, Waiter::One(tell))),
            None => return Err(broken()),
        }
        let _forgotten = Forgotten { connection: self, id };
        let frame = frame_of(id, method, Some(deadline), request);
        let called = async {
            self.out.send(frame).await.map_err(|_| broken())?;
            told.await.map_err(|_| broken())?
        };
        let answer = timeout(deadline, called).await.map_err(|_| CallError::Deadline)??;
        T::decode(answer).map_err(|error| CallError::Malformed(error.to_string()))
    }
}

/// Forgets a call when it ends, or when whoever made it goes on without an answer.
struct Forgotten<'a> {
    connection: &'a Connection,
    id: u64,
}

impl Drop for Forgotten<'_> {
    fn drop(&mut self) {
        if let Some(waiting) = self.connection.waiting.lock().as_mut() {
            waiting.remove(&self.id);
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

/// A call of several frames, answered by several: what goes on to other members while it comes. One that is
/// dropped before its last frame is told to be over.
pub struct StreamedCall {
    connection: Connection,
    id: u64,
    answers: mpsc::Receiver<Answer>,
    /// Told to who is called when the call is dropped before its end.
    farewell: Option<(Method, Bytes)>,
}

impl Connection {
    /// Begins a call of several frames, to be answered up to `deadline`; `farewell` is sent when it is
    /// dropped before its end.
    /// # Errors
    /// `Broken`, `Deadline`.
    pub async fn begin(
        &self,
        method: Method,
        request: EncodedRequest,
        farewell: (Method, Bytes),
        deadline: Duration,
    ) -> Result<StreamedCall, CallError> {
        let deadline = given(deadline);
        if deadline.is_zero() {
            return Err(CallError::Deadline);
        }
        let (tell, answers) = mpsc::channel(ANSWERS);
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        match self.waiting.lock().as_mut() {
            Some(waiting) => drop(waiting.insert(id, Waiter::Many(tell))),
            None => return Err(self.broken()),
        }
        let streamed = StreamedCall { connection: self.clone(), id, answers, farewell: Some(farewell) };
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

    /// Sends another frame; waits as long as `wait` for room on its way.
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
        self.farewell = None;
        Ok(())
    }

    /// The next answer, if it comes within `wait`; `None`: there are no more.
    /// # Errors
    /// `Deadline`: none came; as the other side refused, or the connection broke.
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
        if let Some(waiting) = self.connection.waiting.lock().as_mut() {
            waiting.remove(&self.id);
        }
        if let Some((method, message)) = self.farewell.take() {
            // Without room for it the other side gives up by itself.
            let _ = self.connection.out.try_send(frame_of(self.id, method, None, message.into()));
        }
    }
}

/// How long to wait before a server that had no room, and so has not begun, is asked again; `None`: it said
/// something else. Longer each time, and not as long as others wait who were refused together.
fn pause_after(error: &CallError, tries: u32) -> Option<Duration> {
    let CallError::Failed(failure) = error else {
        return None;
    };
    let asked = failure.numbers.first().copied().filter(|ms| *ms > 0)?;
    if failure.code() != Code::Busy {
        return None;
    }
    let longest = asked.saturating_mul(1 << tries.min(5)).min(LONGEST_PAUSE_MS);
    let drawn = machine::draw().unwrap_or(0);
    Some(Duration::from_millis(longest / 2 + drawn % longest.max(1)))
}

#[cfg(test)]
mod tests;
