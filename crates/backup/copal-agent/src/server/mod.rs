//! The duplicate detection agent's threads: what asks is received, compared and answered.
//!
//! Paper: low-profile-dedup §2 (receive, compare, update and send).
//!
//! ```text
//!   accept -> one reader per connection --Ask, Marker--> Detect <--compares-- compare thread
//!                        |                                                        | Answers
//!                        +--Control--> one thread per command --reply--> outbox <-+
//!                                                                          | send thread
//!                                                                          v connections
//! ```
//!
//! Invariants
//! - A peer holds up nobody else: each connection has a reader of its own, and one that does not take its
//!   answers is ended once its share of the outbox stays full.
//! - Memory is bounded: connections, commands under way and bytes in the outbox have limits. Peers that have
//!   not said who they are take a quarter of the places, so nobody without the secret keeps a member out.
//! - Every thread is joined by [`Server::stop`] or by dropping the server.
//!
//! Not here: what is compared and when (`Detect`), what commands do (`Control`).

mod commands;
mod compare;
mod crowd;
mod listen;
mod options;
mod outbox;
mod peer;
mod places;
#[cfg(test)]
mod tests;

use crate::{channel::Traffic, control::Control};
use commands::Commands;
use compare::Due;
use crowd::Crowd;
pub use options::{Detect, ServerCounts, ServerOptions};
use outbox::Outbox;
use places::Places;
use std::{
    io,
    net::{SocketAddr, TcpListener},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
};

#[derive(Default)]
struct Counts {
    strangers: AtomicU64,
    crowded: AtomicU64,
    violations: AtomicU64,
}

/// What the threads share.
struct Shared {
    options: ServerOptions,
    instance: [u8; 16],
    detect: Arc<dyn Detect>,
    commands: Commands,
    outbox: Outbox,
    due: Due,
    counts: Counts,
    places: Places,
    crowd: Crowd,
    traffic: Arc<Traffic>,
    stop: Arc<AtomicBool>,
}

/// A detection agent that listens.
pub struct Server {
    shared: Arc<Shared>,
    address: SocketAddr,
    threads: Vec<JoinHandle<()>>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Server {
    /// Listens. The server stops when `stop` is set, within a fraction of a second, when it is dropped, or by
    /// [`Server::stop`].
    /// # Errors
    /// When the address cannot be listened at, or the system gives no threads.
    pub fn start(
        options: ServerOptions,
        detect: Arc<dyn Detect>,
        control: Arc<dyn Control>,
        stop: Arc<AtomicBool>,
    ) -> io::Result<Server> {
        let listener = TcpListener::bind(&options.listen)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", options.listen)))?;
        let address = listener.local_addr()?;
        let mut instance = [0; 16];
        getrandom::fill(&mut instance).map_err(io::Error::other)?;
        let shared = Arc::new(Shared {
            commands: Commands::new(control, options.commands),
            outbox: Outbox::new(outbox::Bounds::of(&options)),
            due: Due::default(),
            counts: Counts::default(),
            places: Places::new(Arc::clone(&options.members), options.connections),
            crowd: Crowd::default(),
            traffic: Arc::default(),
            options,
            instance,
            detect,
            stop,
        });
        let mut server = Server { shared: Arc::clone(&shared), address, threads: Vec::new() };
        server.spawn("agent-accept", move |shared| listen::run(shared, &listener))?;
        server.spawn("agent-compare", compare::run)?;
        server.spawn("agent-send", |shared| shared.outbox.send_all())?;
        Ok(server)
    }

    fn spawn(&mut self, name: &str, run: impl FnOnce(&Arc<Shared>) + Send + 'static) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let builder = std::thread::Builder::new().name(name.to_owned());
        self.threads.push(builder.spawn(move || run(&shared))?);
        Ok(())
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it has seen.
    #[must_use]
    pub fn counts(&self) -> ServerCounts {
        let Counts { strangers, crowded, violations } = &self.shared.counts;
        let (slow, undeliverable) = self.shared.outbox.losses();
        ServerCounts {
            strangers: strangers.load(Ordering::Relaxed),
            crowded: crowded.load(Ordering::Relaxed),
            violations: violations.load(Ordering::Relaxed),
            slow,
            undeliverable,
        }
    }

    /// Members that are connected now.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.places.taken()
    }

    /// Bytes that went over its connections.
    #[must_use]
    pub fn traffic(&self) -> &Traffic {
        &self.shared.traffic
    }

    /// Waits until the stop flag is set and everything has ended.
    pub fn wait(mut self) {
        self.join();
    }

    /// Ends all connections and waits for the threads. Commands under way are waited for: whoever carries out
    /// a long one looks at the stop flag.
    pub fn stop(self) {
        drop(self);
    }

    fn join(&mut self) {
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.join();
    }
}
