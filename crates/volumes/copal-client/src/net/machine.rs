//! Services of the machine that a process runs on: time, tasks, blocking threads, connections, randomness.
//!
//! Clients and servers use only these functions. By default they are the real machine: clocks of the operating
//! system, tokio's tasks and threads, TCP and TLS. A simulator runs a process on its own [`Machine`]
//! ([`within`]). Everything that the process starts runs there, too. So the code that ships is the code under
//! test, in one thread and from one seed.
//!
//! Not here: disks, which a server receives when it is created.

use futures_util::future::BoxFuture;
use rustls_pki_types::ServerName;
use std::{
    future::Future,
    net::SocketAddr,
    sync::Arc,
    thread::available_parallelism,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    task::JoinHandle,
};
use tokio_rustls::{TlsConnector, rustls::ClientConfig};

/// Bytes in both directions between two processes.
pub trait ByteStream: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send + 'static> ByteStream for T {}

/// The bytes of a connection, independent of the transport.
pub type Stream = Box<dyn ByteStream>;

/// A connection that a server accepted.
pub struct AcceptedConnection {
    /// The bytes.
    pub stream: Stream,
    /// Address of the caller.
    pub address: SocketAddr,
    /// Certificate of the caller, signed by the authority; `None`: it showed none.
    pub certificate: Option<Arc<[u8]>>,
}

/// A simulated machine.
pub trait Machine: Send + Sync + 'static {
    /// The wall clock: ms since 1970. It may jump.
    fn wall_ms(&self) -> u64;

    /// Wraps a task so that it runs while the process exists, and not while the process is paused.
    fn task(&self, task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()>;

    /// Waits until blocking work may begin. The caller then runs it.
    fn blocking_turn(&self) -> BoxFuture<'static, ()>;

    /// Queues blocking work. It runs soon, before blocking work that the process queues later.
    fn queue_blocking(&self, work: Box<dyn FnOnce() + Send>);

    /// Connects to the process `name` at `address`.
    fn connect(
        &self,
        address: &str,
        name: ServerName<'static>,
    ) -> BoxFuture<'static, std::io::Result<Stream>>;

    /// A random number; on this machine it follows from the seed.
    fn draw(&self) -> u64;

    /// Number of processors: that of the machine which runs the simulation must have no effect on it.
    fn processors(&self) -> usize {
        4
    }
}

tokio::task_local! {
    static CURRENT: Arc<dyn Machine>;
}

/// Runs a process on `machine`, with all tasks that it starts.
pub async fn within<T>(machine: Arc<dyn Machine>, work: impl Future<Output = T>) -> T {
    CURRENT.scope(machine, work).await
}

/// The machine of the current task; `None`: the real one.
fn current() -> Option<Arc<dyn Machine>> {
    CURRENT.try_with(Arc::clone).ok()
}

/// Now, by the clock of the runtime's timers.
#[must_use]
pub fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// Time since `then`; zero if `then` lies in the future.
#[must_use]
pub fn since(then: Instant) -> Duration {
    now().saturating_duration_since(then)
}

/// The wall clock: ms since 1970; 0 if the clock shows an earlier time.
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

/// A random number that cannot be guessed.
/// # Errors
/// The operating system gives no randomness.
pub fn draw() -> Result<u64, getrandom::Error> {
    match current() {
        Some(machine) => Ok(machine.draw()),
        None => getrandom::u64(),
    }
}

/// Processors that this process may use.
#[must_use]
pub fn processors() -> usize {
    match current() {
        Some(machine) => machine.processors(),
        None => available_parallelism().map_or(1, usize::from),
    }
}

/// A random pause of at most `longest`. It separates clients that collided, so that they do not collide again.
pub(crate) fn jitter(longest: Duration) -> Duration {
    let drawn = draw().unwrap_or(0) as u32;
    longest.mul_f64(f64::from(drawn) / f64::from(u32::MAX))
}

/// Starts a task of the current process.
pub fn spawn(task: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
    match current() {
        Some(machine) => tokio::spawn(machine.task(Box::pin(task))),
        None => tokio::spawn(task),
    }
}

/// Runs work that may block on a thread for it, and waits for its result.
/// # Errors
/// The work panicked; the text is the message of the panic.
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

/// As [`run_blocking`], without waiting for the work.
pub fn spawn_blocking(work: impl FnOnce() + Send + 'static) {
    match current() {
        Some(machine) => machine.queue_blocking(Box::new(work)),
        None => drop(tokio::task::spawn_blocking(work)),
    }
}

/// Connects to the process `name` at `address` over TLS. Also returns the time of one round trip.
/// # Errors
/// No process listens there, or it is another one.
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
