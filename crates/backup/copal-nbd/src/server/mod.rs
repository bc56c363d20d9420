//! A server: listens, and serves its disks to whoever connects, until it is told to end.
//!
//! Each connection has a thread that reads requests and a few that answer them. Every byte of a client is hostile: lengths are
//! bounded before anything is allocated, and what all connections hold is bounded together.
//!
//! Specified by the NBD project's `doc/proto.md`: fixed newstyle, simple and structured replies, block status.
//! Not here: what is served ([`Exports`]), TLS, passwords (the protocol has none), extended headers.

mod budget;
mod export;
pub(crate) mod handshake;
mod listener;
mod reply;
#[cfg(test)]
mod tests;
mod transmit;

pub use export::{Disk, DiskError, Exports, Run};
pub(crate) use transmit::Receive;

use crate::{Address, NbdError, Uri, stream::Stream, wire::limits};
use budget::Budget;
use listener::Listener;
use parking_lot::Mutex;
#[cfg(any(test, fuzzing))]
use std::io::Write;
use std::{
    collections::HashMap,
    io::BufReader,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// Most connections at once; one more is closed at once.
const CONNECTIONS: usize = 64;
/// Bytes of requests that all connections hold at most: two of the longest.
const HELD_BYTES: u64 = 2 * limits::REQUEST_BYTES as u64;
/// How long each message of a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(60);
/// How long a client may leave an answer untaken or a write unfinished, whose bytes are held meanwhile.
const TAKING: Duration = Duration::from_secs(60);
/// Between two looks whether the server is to end.
const LOOK: Duration = Duration::from_millis(100);

/// A server that listens.
pub struct Server {
    listener: Listener,
    connections: Mutex<HashMap<u64, Stream>>,
    next: AtomicU64,
    budget: Budget,
    /// How long a client may pause in the middle of a write, whose bytes are held meanwhile.
    pause: Duration,
}

impl Server {
    /// Listens at `address`: a unix socket, whose file only its owner may use and which goes with the server, or TCP, where
    /// everybody who reaches it is let in.
    /// # Errors
    /// `Listen`: somebody listens there, or something else is there.
    pub fn bind(address: &Address) -> Result<Server, NbdError> {
        Ok(Server {
            listener: Listener::bind(address)?,
            connections: Mutex::default(),
            next: AtomicU64::new(0),
            budget: Budget::new(HELD_BYTES),
            pause: TAKING,
        })
    }

    /// The address of an export of this server.
    /// # Errors
    /// The system does not know where it listens.
    pub fn uri(&self, export: &str) -> Result<Uri, NbdError> {
        Ok(Uri {
            address: self.listener.address()?,
            export: export.to_owned(),
        })
    }

    /// Serves until `is_ended` says so, which is asked about ten times a second; then all connections are closed. Blocks.
    /// # Errors
    /// The listening socket failed.
    pub fn run(&self, exports: &dyn Exports, is_ended: impl Fn() -> bool) -> Result<(), NbdError> {
        std::thread::scope(|scope| {
            let outcome = loop {
                if is_ended() {
                    break Ok(());
                }
                let stream = match self.listener.accept(LOOK) {
                    Ok(Some(stream)) => stream,
                    Ok(None) => continue,
                    Err(error) => break Err(error),
                };
                let Some(number) = self.enter(&stream) else {
                    continue;
                };
                let serving = std::thread::Builder::new().name("nbd-connection".to_owned());
                let spawned = serving.spawn_scoped(scope, move || {
                    if let Err(error) = self.serve(stream, exports) {
                        tracing::debug!(%error, "a connection ended");
                    }
                    self.connections.lock().remove(&number);
                });
                if let Err(error) = spawned {
                    tracing::debug!(%error, "a connection found no thread");
                    self.connections.lock().remove(&number);
                }
            };
            for stream in self.connections.lock().values() {
                stream.shutdown();
            }
            outcome
        })
    }

    /// Enters a connection among those that are closed at the end; `None`: there are too many.
    fn enter(&self, stream: &Stream) -> Option<u64> {
        let mut connections = self.connections.lock();
        if connections.len() >= CONNECTIONS {
            tracing::debug!("a connection too many was closed");
            return None;
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        connections.insert(number, stream.try_clone().ok()?);
        Some(number)
    }

    fn serve(&self, mut stream: Stream, exports: &dyn Exports) -> Result<(), NbdError> {
        stream.set_timeout(Some(HANDSHAKE))?;
        let Some(choice) = handshake::receive_client(&mut stream, exports)? else {
            return Ok(());
        };
        // A client may be silent for as long as it likes, and has to take its answers.
        stream.set_timeout(None)?;
        stream.set_write_timeout(Some(TAKING))?;
        let reader = BufReader::with_capacity(16 << 10, stream.try_clone()?);
        let outcome = transmit::run(reader, stream.try_clone()?, &choice, &self.budget, self.pause);
        stream.shutdown();
        outcome
    }
}

impl Receive for BufReader<Stream> {
    fn set_pause(&mut self, most: Option<Duration>) -> std::io::Result<()> {
        self.get_ref().set_read_timeout(most)
    }
}

/// Serves one client over any two halves of a connection, for tests and the fuzzer.
#[cfg(any(test, fuzzing))]
pub(crate) fn serve_halves<S: Receive + Write, W: Write + Send>(
    mut stream: S,
    writer: W,
    exports: &dyn Exports,
) -> Result<(), NbdError> {
    match handshake::receive_client(&mut stream, exports)? {
        Some(choice) => transmit::run(stream, writer, &choice, &Budget::new(HELD_BYTES), TAKING),
        None => Ok(()),
    }
}
