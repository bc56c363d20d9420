//! What a process takes from the machine that it runs on: time, tasks, threads that may block, connections,
//! randomness.
//!
//! All of a client and of a server asks here. Where nothing else was said, it is the real machine: the clocks
//! of the operating system, tokio's tasks and threads, TCP and TLS. A simulator runs a process within a
//! [`Machine`] of its own ([`within`]), and everything that the process begins runs there, too: so the code
//! that ships is the code that is tried, in one thread and from one seed.
//!
//! Not here: what lies on disks, which is given to a server when it is made.

use futures_util::future::BoxFuture;
use rustls_pki_types::ServerName;
use std::{
    future::Future,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    task::JoinHandle,
};
use tokio_rustls::{TlsConnector, rustls::ClientConfig};

/// Bytes in both directions, between two processes that know each other.
pub trait ByteStream: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send + 'static> ByteStream for T {}

/// A connection's bytes, whatever carries them.
pub type Stream = Box<dyn ByteStream>;

/// What was taken in: the bytes, where from, and the certificate of who called, if it has shown one.
pub struct AcceptedConnection {
    /// The bytes.
    pub stream: Stream,
    /// Where from.
    pub address: SocketAddr,
    /// Its certificate, which the authority has signed.
    pub certificate: Option<Arc<[u8]>>,
}

/// A machine that is not the real one.
pub trait Machine: Send + Sync + 'static {
    /// The wall clock: ms since 1970. It may jump.
    fn wall_ms(&self) -> u64;

    /// A task as this machine runs it: as long as the process is there, and not while it stands still.
    fn task(&self, task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()>;

    /// Returns when work that may block on a device is to begin; then the caller runs it.
    fn blocking_turn(&self) -> BoxFuture<'static, ()>;

    /// Takes work that may block on a device, to be run soon, and before any other such work of the process
    /// that comes later.
    fn hand_over(&self, work: Box<dyn FnOnce() + Send>);

    /// Connects to whom `name` is at `address`.
    fn connect(
        &self,
        address: &str,
        name: ServerName<'static>,
    ) -> BoxFuture<'static, std::io::Result<Stream>>;

    /// A number that nobody can guess from others, as far as this machine goes.
    fn draw(&self) -> u64;
}

tokio::task_local! {
    static CURRENT: Arc<dyn Machine>;
}

/// Runs what belongs to a process of `machine`; what it begins belongs there, too.
pub async fn within<T>(machine: Arc<dyn Machine>, work: impl Future<Output = T>) -> T {
    CURRENT.scope(machine, work).await
}

/// The machine of whoever asks; `None`: the real one.
fn current() -> Option<Arc<dyn Machine>> {
    CURRENT.try_with(Arc::clone).ok()
}

/// Now, by the clock that the runtime's timers go by.
#[must_use]
pub fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// How long ago it was.
#[must_use]
pub fn since(then: Instant) -> Duration {
    now().saturating_duration_since(then)
}

/// The wall clock: ms since 1970, 0 when it stands before that.
#[must_use]
pub fn wall_ms() -> u64 {
    match current() {
        Some(machine) => machine.wall_ms(),
        None => {
            let since = SystemTime::now().duration_since(UNIX_EPOCH);
            since.map_or(0, |since| since.as_millis() as u64)
        }
    }
}

/// A number that nobody can guess.
/// # Errors
/// The operating system gives no randomness.
pub fn draw() -> Result<u64, getrandom::Error> {
    match current() {
        Some(machine) => Ok(machine.draw()),
        None => getrandom::u64(),
    }
}

/// Starts a task of the process that asks.
pub fn spawn(task: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
    match current() {
        Some(machine) => tokio::spawn(machine.task(Box::pin(task))),
        None => tokio::spawn(task),
    }
}

/// Runs what may block where it keeps no task waiting.
/// # Errors
/// It panicked; what it said.
pub async fn run_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, String> {
    match current() {
        Some(machine) => {
            machine.blocking_turn().await;
            Ok(work())
        }
        None => {
            let done = tokio::task::spawn_blocking(work).await;
            done.map_err(|error| error.to_string())
        }
    }
}

/// As [`run_blocking`], for work that nobody waits for.
pub fn spawn_blocking(work: impl FnOnce() + Send + 'static) {
    match current() {
        Some(machine) => machine.hand_over(Box::new(work)),
        None => drop(tokio::task::spawn_blocking(work)),
    }
}

/// Connects to `address`, where `name` is to be found, over TLS; tells how long a round trip there took.
/// # Errors
/// Nobody listens there, or not the one who was meant.
pub(crate) async fn connect(
    address: &str,
    name: ServerName<'static>,
    tls: Arc<ClientConfig>,
) -> std::io::Result<(Stream, Duration)> {
    let began = now();
    if let Some(machine) = current() {
        let stream = machine.connect(address, name).await?;
        return Ok((stream, since(began)));
    }
    let socket = TcpStream::connect(address).await?;
    let took = since(began);
    socket.set_nodelay(true)?;
    let stream = TlsConnector::from(tls).connect(name, socket).await?;
    Ok((Box::new(stream), took))
}
