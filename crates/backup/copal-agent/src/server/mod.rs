//! The server of an agent: receives batches of ids from hosts, has them compared, and keeps the answers until
//! the hosts fetch them.
//!
//! Paper: low-profile-dedup §2 (receive, compare, update and send).
//!
//! ```text
//!   connections --Ask, Mark--> Detect <--compares-- compare thread
//!        |                                              | answers
//!        +--Command--> Control                          v
//!        +--Take--------------------------------- outbox of each asker
//! ```
//!
//! Invariants
//! - A peer delays no other: its calls have their own share of memory. A peer that does not fetch its answers
//!   loses them once its share of the outbox stays full.
//! - Memory is bounded: unauthenticated peers, calls, commands in progress and waiting answers have limits.
//! - Every thread has ended when [`Server::stop`] returns, or the server is dropped.
//!
//! Not here: the comparison (`BatchDetector`), execution of commands (`CommandService`), connections
//! (`copal_server::CallListener`).

mod calls;
mod compare;
mod options;
mod outbox;
#[cfg(test)]
mod tests;

use crate::fleet::control::CommandService;
use crate::fleet::network;
use compare::CompareSignal;
use copal_server::{CallListener, ClassBudgets, TrafficCounters};
pub use options::{BatchDetector, ServerCounts, ServerOptions};
use outbox::AnswerOutbox;
use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};
use tokio::runtime::Runtime;

/// Memory for calls. A call that waits for answers counts 1 KiB, so 64 MiB are 65,536 askers.
const BUDGETS: ClassBudgets = ClassBudgets { control: 4 << 20, small: 64 << 20, bulk: 4 << 20, recovery: 0 };
/// Poll interval of the stop flag.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Longest time for calls in progress once the server stops.
const TO_STOP: Duration = Duration::from_secs(10);

/// State of all threads.
struct Shared {
    options: ServerOptions,
    detect: Arc<dyn BatchDetector>,
    control: Arc<dyn CommandService>,
    commands: AtomicUsize,
    outbox: AnswerOutbox,
    due: CompareSignal,
    stop: Arc<AtomicBool>,
}

/// A listening server.
pub struct Server {
    shared: Arc<Shared>,
    address: SocketAddr,
    traffic: Arc<TrafficCounters>,
    compare: Option<JoinHandle<()>>,
    runtime: Option<Runtime>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Server {
    /// Starts to listen. The server stops within a fraction of a second after `stop` is set, when it is
    /// dropped, or by [`Server::stop`].
    /// # Errors
    /// The address is not available, or the system provides no threads.
    pub fn start(
        options: ServerOptions,
        detect: Arc<dyn BatchDetector>,
        control: Arc<dyn CommandService>,
        stop: Arc<AtomicBool>,
    ) -> io::Result<Server> {
        let tls = options.network.credentials().server_tls().map_err(io::Error::other)?;
        let runtime = network::runtime("agent-server")?;
        let listener = runtime
            .block_on(CallListener::bind(&options.listen, tls))
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", options.listen)))?
            .with_budgets(&BUDGETS);
        let (address, traffic) = (listener.address()?, listener.traffic());
        let shared = Arc::new(Shared {
            outbox: AnswerOutbox::new(outbox::OutboxBounds::of(&options)),
            commands: AtomicUsize::new(0),
            due: CompareSignal::default(),
            options,
            detect,
            control,
            stop,
        });
        runtime.spawn(listener.serve(Arc::clone(&shared)));
        let mut server = Server { shared, address, traffic, compare: None, runtime: Some(runtime) };
        let shared = Arc::clone(&server.shared);
        let compare = std::thread::Builder::new().name("agent-compare".to_owned());
        server.compare = Some(compare.spawn(move || compare::run(&shared))?);
        Ok(server)
    }

    /// Its listening address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Counts of lost answers.
    #[must_use]
    pub fn counts(&self) -> ServerCounts {
        let (slow, undeliverable) = self.shared.outbox.losses();
        ServerCounts { slow, undeliverable }
    }

    /// Its connections and calls.
    #[must_use]
    pub fn traffic(&self) -> &TrafficCounters {
        &self.traffic
    }

    /// Waits until the stop flag is set and all work has ended.
    pub fn wait(self) {
        while !self.shared.stop.load(Ordering::Acquire) {
            std::thread::park_timeout(POLL_INTERVAL);
        }
    }

    /// Ends all connections and waits for the threads and for commands in progress: a long command polls the
    /// stop flag.
    pub fn stop(self) {
        drop(self);
    }

    fn join(&mut self) {
        if let Some(compare) = self.compare.take() {
            let _ = compare.join();
        }
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(TO_STOP);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.due.wake();
        self.shared.outbox.end();
        self.join();
    }
}
