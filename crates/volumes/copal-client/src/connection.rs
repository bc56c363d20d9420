//! One connection: calls go out as they come, answers come back in any order.
//!
//! Two tasks of its own, one that writes and one that reads; what waits to be written goes out in one write. A connection that
//! breaks answers every call that is under way with `Broken`, and takes no more.

use crate::{
    deadline::{given, in_ms},
    machine,
    machine::Stream,
    trace::current_trace,
};
use bytes::Bytes;
use copal_proto::{
    Frame, MAX_FRAME_BYTES, Method,
    messages::{Failure, failure::Code},
};
use futures_util::{SinkExt, StreamExt};
use parking_lot::Mutex;
use prost::Message;
use rustls_pki_types::ServerName;
use std::{
    collections::BTreeMap,
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
use tokio_rustls::rustls::ClientConfig;
use tokio_util::codec::{Framed, LengthDelimitedCodec};

/// How long a connection may take to come about.
const CONNECT: Duration = Duration::from_secs(5);
/// The longest pause before a server that has no room is asked again, half as much added at most.
const LONGEST_PAUSE_MS: u64 = 1000;
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
}

type Answer = Result<Bytes, CallError>;
type Waiting = Arc<Mutex<Option<BTreeMap<u64, oneshot::Sender<Answer>>>>>;

/// See the module. Cheap to clone.
#[derive(Clone)]
pub struct Connection {
    address: Arc<str>,
    next: Arc<AtomicU64>,
    out: mpsc::Sender<Frame>,
    waiting: Waiting,
}

/// The codec of the wire: a length of four bytes, then a frame.
pub fn codec() -> LengthDelimitedCodec {
    LengthDelimitedCodec::builder()
        .length_field_length(4)
        .max_frame_length(MAX_FRAME_BYTES)
        .new_codec()
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
        let unreachable = |reason: String| CallError::Unreachable {
            address: address.to_owned(),
            reason,
        };
        let stream = match timeout(CONNECT, machine::connect(address, name, tls)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return Err(unreachable(error.to_string())),
            Err(_) => return Err(unreachable("it does not answer".to_owned())),
        };
        Ok(Connection::over(address, stream))
    }

    fn over(address: &str, stream: Stream) -> Connection {
        let (mut sink, mut source) = Framed::new(stream, codec()).split();
        let (out, mut queue) = mpsc::channel::<Frame>(WAITING);
        let waiting: Waiting = Arc::new(Mutex::new(Some(BTreeMap::new())));
        let connection = Connection {
            address: address.into(),
            next: Arc::new(AtomicU64::new(1)),
            out,
            waiting: Arc::clone(&waiting),
        };
        machine::spawn(async move {
            while let Some(frame) = queue.recv().await {
                let mut written = sink.feed(frame.encode()).await;
                while let (Ok(()), Ok(more)) = (&written, queue.try_recv()) {
                    written = sink.feed(more.encode()).await;
                }
                if written.is_err() || sink.flush().await.is_err() {
                    break;
                }
            }
            // The other side learns that nothing more comes.
            let _ = sink.close().await;
        });
        let address = connection.address.clone();
        machine::spawn(async move {
            while let Some(Ok(bytes)) = source.next().await {
                let Ok(frame) = Frame::decode(bytes.freeze()) else {
                    break;
                };
                let told = waiting
                    .lock()
                    .as_mut()
                    .and_then(|waiting| waiting.remove(&frame.id));
                let answer = match frame.is_failure {
                    false => Ok(frame.message),
                    true => Err(match Failure::decode(frame.message) {
                        Ok(failure) => CallError::Failed(Box::new(failure)),
                        Err(error) => CallError::Malformed(error.to_string()),
                    }),
                };
                if let Some(told) = told {
                    // Whoever gave up does not listen any more.
                    let _ = told.send(answer);
                }
            }
            let left = waiting.lock().take().unwrap_or_default();
            for told in left.into_values() {
                let address = address.to_string();
                let _ = told.send(Err(CallError::Broken { address }));
            }
        });
        connection
    }

    /// Whether calls can still be made.
    pub fn is_open(&self) -> bool {
        self.waiting.lock().is_some() && !self.out.is_closed()
    }

    /// Calls the other side, and waits for its answer up to `deadline`, or until the work that it is part of is to end. A
    /// server that has no room is asked again after a while.
    /// # Errors
    /// All of them.
    pub async fn call<T: Message + Default>(
        &self,
        method: Method,
        request: &impl Message,
        deadline: Duration,
    ) -> Result<T, CallError> {
        self.call_encoded(method, request.encode_to_vec().into(), deadline)
            .await
    }

    /// As [`Connection::call`], of a message that is encoded.
    /// # Errors
    /// All of them.
    pub async fn call_encoded<T: Message + Default>(
        &self,
        method: Method,
        message: Bytes,
        deadline: Duration,
    ) -> Result<T, CallError> {
        let end = machine::now() + given(deadline);
        let mut tries = 0;
        loop {
            let left = end.saturating_duration_since(machine::now());
            let outcome = self.call_once(method, message.clone(), left).await;
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
        message: Bytes,
        deadline: Duration,
    ) -> Result<T, CallError> {
        let deadline = given(deadline);
        if deadline.is_zero() {
            return Err(CallError::Deadline);
        }
        let (tell, told) = oneshot::channel();
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let broken = || CallError::Broken {
            address: self.address.to_string(),
        };
        match self.waiting.lock().as_mut() {
            Some(waiting) => drop(waiting.insert(id, tell)),
            None => return Err(broken()),
        }
        let frame = Frame {
            id,
            method: method as u16,
            is_reply: false,
            is_failure: false,
            trace: current_trace(),
            left_ms: Some(in_ms(deadline)),
            message,
        };
        let called = async {
            self.out.send(frame).await.map_err(|_| broken())?;
            told.await.map_err(|_| broken())?
        };
        let answer = match timeout(deadline, called).await {
            Ok(answer) => answer?,
            Err(_) => {
                if let Some(waiting) = self.waiting.lock().as_mut() {
                    waiting.remove(&id);
                }
                return Err(CallError::Deadline);
            }
        };
        T::decode(answer).map_err(|error| CallError::Malformed(error.to_string()))
    }
}

/// How long to wait before a server that had no room, and so has not begun, is asked again; `None`: it said something else.
/// Longer each time, and not as long as others wait who were refused together.
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
