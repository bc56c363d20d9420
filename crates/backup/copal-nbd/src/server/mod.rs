//! NBD server: listens, and serves its disks to clients until it is stopped.
//!
//! Each connection has a thread that reads requests and a few that answer them. All bytes of a client are
//! untrusted: lengths are bounded before anything is allocated, and the memory of a connection is bounded
//! too. A pool shared by all connections serves long reads of clients without structured replies. If the pool
//! is empty, such a read is answered piece by piece.
//!
//! Specified by the NBD project's `doc/proto.md`: fixed newstyle, simple and structured replies, block
//! status.
//! Not here: the served disks ([`DiskExports`]), TLS, passwords (the protocol has none), extended headers.

mod admission;
mod budget;
mod export;
pub(crate) mod handshake;
mod listener;
mod reply;
#[cfg(test)]
mod tests;
mod transmission;

pub use export::{DiskError, DiskExports, ExportDisk, StatusRun};
pub(crate) use transmission::ReceiveHalf;

use crate::{
    NbdError, ServerAddress, Uri,
    stream::{LimitedStream, SocketStream},
    wire::limits,
};
use admission::AdmissionControl;
#[cfg(any(test, feature = "fuzz"))]
use admission::PeerActivity;
use budget::ByteBudget;
use listener::{AcceptResult, ServerListener};
#[cfg(any(test, feature = "fuzz"))]
use std::io::Write;
use std::{io::BufReader, time::Duration};

/// Size of the pool for long replies: two of the longest.
const POOL_BYTES: u64 = 2 * limits::REQUEST_BYTES as u64;
/// Time limit of a handshake.
const HANDSHAKE: Duration = Duration::from_secs(60);
/// Time limit for a client to receive a reply or to finish a write, whose bytes are in memory meanwhile.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(60);
/// Poll interval of the end of the server.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// A listening server.
pub struct Server {
    listener: ServerListener,
    admission: AdmissionControl,
    pool: ByteBudget,
    /// Longest pause of a client within a write, whose bytes are in memory meanwhile.
    pause: Duration,
}

impl Server {
    /// Listens at `address`: a unix socket that only its owner may use and that is removed with the server,
    /// or TCP, which is open to every client that reaches it.
    /// # Errors
    /// `Listen`: the address is in use, or the path exists.
    pub fn bind(address: &ServerAddress) -> Result<Server, NbdError> {
        Ok(Server {
            listener: ServerListener::bind(address)?,
            admission: AdmissionControl::default(),
            pool: ByteBudget::new(POOL_BYTES),
            pause: TRANSFER_TIMEOUT,
        })
    }

    /// The address of an export of this server.
    /// # Errors
    /// The system does not report the listening address.
    pub fn uri(&self, export: &str) -> Result<Uri, NbdError> {
        Ok(Uri { address: self.listener.address()?, export: export.to_owned() })
    }

    /// Serves until `is_ended` returns true, which is checked ten times a second. Then all connections are
    /// closed. Blocks.
    /// # Errors
    /// The listening socket failed.
    pub fn run(&self, exports: &dyn DiskExports, is_ended: impl Fn() -> bool) -> Result<(), NbdError> {
        std::thread::scope(|scope| {
            let outcome = loop {
                if is_ended() {
                    break Ok(());
                }
                let stream = match self.listener.accept(POLL_INTERVAL) {
                    Ok(AcceptResult::Stream(stream)) => stream,
                    Ok(AcceptResult::None) => continue,
                    Ok(AcceptResult::NoRoom) => {
                        self.admission.close_one();
                        continue;
                    }
                    Err(error) => break Err(error),
                };
                let Some(number) = self.admission.enter(&stream) else {
                    continue;
                };
                let serving = std::thread::Builder::new().name("nbd-connection".to_owned());
                let spawned = serving.spawn_scoped(scope, move || {
                    if let Err(error) = self.serve(stream, number, exports) {
                        tracing::debug!(%error, "connection ended with an error");
                    }
                    self.admission.leave(number);
                });
                if let Err(error) = spawned {
                    tracing::warn!(%error, "no thread for a connection; raise the limit of threads");
                    self.admission.leave(number);
                }
            };
            self.admission.close_all();
            outcome
        })
    }

    fn serve(
        &self,
        mut stream: SocketStream,
        number: u64,
        exports: &dyn DiskExports,
    ) -> Result<(), NbdError> {
        let mut limited = LimitedStream::new(&mut stream, HANDSHAKE);
        let Some(choice) = handshake::receive_client(&mut limited, exports)? else {
            return Ok(());
        };
        let Some(activity) = self.admission.serve(number) else {
            stream.shutdown();
            return Ok(());
        };
        // A client may be idle without limit, but must receive its replies in time.
        stream.set_read_timeout(None)?;
        stream.set_write_timeout(Some(TRANSFER_TIMEOUT))?;
        let reader = BufReader::with_capacity(16 << 10, stream.try_clone()?);
        let disconnect = stream.try_clone()?;
        let serving = transmission::ConnectionState {
            choice: &choice,
            activity: &activity,
            pool: &self.pool,
            pause: self.pause,
            disconnect: &|| disconnect.shutdown(),
        };
        let outcome = transmission::run(reader, stream.try_clone()?, &serving);
        stream.shutdown();
        outcome
    }
}

impl ReceiveHalf for BufReader<SocketStream> {
    fn set_pause(&mut self, most: Option<Duration>) -> std::io::Result<()> {
        self.get_ref().set_read_timeout(most)
    }
}

/// Serves one client over two halves of a connection, for tests and the fuzzer.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) fn serve_halves<S: ReceiveHalf + Write, W: Write + Send>(
    mut stream: S,
    writer: W,
    exports: &dyn DiskExports,
) -> Result<(), NbdError> {
    match handshake::receive_client(&mut stream, exports)? {
        Some(choice) => {
            let serving = transmission::ConnectionState {
                choice: &choice,
                activity: &PeerActivity::new(),
                pool: &ByteBudget::new(POOL_BYTES),
                pause: TRANSFER_TIMEOUT,
                disconnect: &|| (),
            };
            transmission::run(stream, writer, &serving)
        }
        None => Ok(()),
    }
}
