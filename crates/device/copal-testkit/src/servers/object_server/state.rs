//! State shared by the threads of a server: buckets, faults, log, open connections, its end.

use super::{
    faults::{FaultRule, NetworkFault, RequestFacts},
    http::HttpAnswer,
    objects::ServerTime,
    operations::SharedStore,
    requests::S3Request,
};
use parking_lot::{Condvar, Mutex};
use std::{
    collections::HashMap,
    io,
    net::{Shutdown, TcpStream},
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// Longest wait, so that no sum of times overflows.
pub(super) const LONGEST_WAIT: Duration = Duration::from_secs(1 << 30);
/// Time that a stopping server gives the threads of its connections.
const PATIENCE: Duration = Duration::from_secs(2);

/// A request that the server has read, and its outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedRequest {
    /// Such as `PUT`.
    pub method: String,
    /// Name of the bucket.
    pub bucket: String,
    /// Decoded key; empty for operations on a bucket.
    pub key: String,
    /// Query as it was sent, without the question mark.
    pub query: String,
    /// Status of the answer, also if a fault loses the answer after the effect. It is 0 if the request was
    /// lost or takes effect late.
    pub status: u16,
    /// Length of the request's body, without any framing.
    pub bytes_in: usize,
    /// Bytes of the answer's body that the server meant to send, after faults.
    pub bytes_out: usize,
}

/// Open connections by number, and whether the server has stopped.
#[derive(Debug, Default)]
struct ConnectionTable {
    has_stopped: bool,
    next: u64,
    open: HashMap<u64, TcpStream>,
}

/// State shared by all threads of a server. No two of its locks are held at once.
#[derive(Default)]
pub(super) struct ServerState {
    pub(super) store: Mutex<SharedStore>,
    pub(super) faults: Mutex<Option<FaultRule>>,
    pub(super) log: Mutex<Vec<LoggedRequest>>,
    requests: AtomicU64,
    connections: Mutex<ConnectionTable>,
    /// A connection ended, or the server stopped.
    changed: Condvar,
}

impl ServerState {
    /// Runs one request, alone.
    pub(super) fn execute(&self, request: &S3Request) -> HttpAnswer {
        let mut store = self.store.lock();
        let now = server_time(store.clock_offset);
        store.answer(request, now)
    }

    /// The time on the server's clock.
    pub(super) fn now(&self) -> ServerTime {
        server_time(self.store.lock().clock_offset)
    }

    /// Numbers requests from 1.
    pub(super) fn next_request(&self) -> u64 {
        self.requests.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The fault of a request. The test's rule runs without any lock of the server.
    pub(super) fn fault(&self, facts: &RequestFacts) -> NetworkFault {
        let rule = self.faults.lock().clone();
        rule.map_or(NetworkFault::None, |rule| rule(facts))
    }

    /// Waits, but not beyond the end of the server; returns whether it has stopped.
    pub(super) fn wait(&self, time: Duration) -> bool {
        let end = Instant::now() + time.min(LONGEST_WAIT);
        let mut connections = self.connections.lock();
        while !connections.has_stopped {
            if self.changed.wait_until(&mut connections, end).timed_out() {
                break;
            }
        }
        connections.has_stopped
    }

    pub(super) fn has_stopped(&self) -> bool {
        self.connections.lock().has_stopped
    }

    /// Registers a connection; nothing if the server has stopped.
    pub(super) fn open(&self, stream: &TcpStream) -> io::Result<Option<OpenConnection<'_>>> {
        let other = stream.try_clone()?;
        let mut connections = self.connections.lock();
        if connections.has_stopped {
            return Ok(None);
        }
        connections.next += 1;
        let number = connections.next;
        connections.open.insert(number, other);
        Ok(Some(OpenConnection { state: self, number }))
    }

    /// Ends all waits; returns before connections have ended.
    pub(super) fn stop(&self) {
        self.connections.lock().has_stopped = true;
        self.changed.notify_all();
    }

    /// Ends all connections of a stopped server and waits for their threads, within bounds.
    pub(super) fn close_connections(&self) {
        let end = Instant::now() + PATIENCE;
        let mut connections = self.connections.lock();
        for stream in connections.open.values() {
            // The client may have closed it.
            let _ = stream.shutdown(Shutdown::Both);
        }
        while !connections.open.is_empty() {
            if self.changed.wait_until(&mut connections, end).timed_out() {
                break;
            }
        }
    }
}

/// A registered connection; the drop closes it.
pub(super) struct OpenConnection<'a> {
    state: &'a ServerState,
    number: u64,
}

impl Drop for OpenConnection<'_> {
    fn drop(&mut self) {
        let stream = self.state.connections.lock().open.remove(&self.number);
        if let Some(stream) = stream {
            // The client may have closed it.
            let _ = stream.shutdown(Shutdown::Both);
        }
        self.state.changed.notify_all();
    }
}

fn server_time(offset: i64) -> ServerTime {
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    ServerTime { instant: Instant::now(), unix: unix.cast_signed().saturating_add(offset) }
}
