//! Simulated network: bytes between processes arrive in order, with a delay, and not while the link is cut.
//!
//! As over TCP, a connection that stays open loses nothing: bytes sent over a cut link arrive when it is
//! mended. A killed process resets its connections. After a power cut they stay silent until the host is
//! back.

use super::{process::Process, world::World};
use copal_client::machine::{AcceptedConnection, Stream};
use copal_server::SimulatedSource;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use rustls_pki_types::ServerName;
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::mpsc,
    time::{Instant, Sleep},
};

/// One direction of a connection.
#[derive(Default)]
struct Lane {
    segments: VecDeque<(Instant, Vec<u8>)>,
    /// Arrival time of the last byte before the end.
    ends: Option<Instant>,
    is_reset: bool,
    /// Its host has no power: nothing arrives from there, not even an end.
    is_silent: bool,
    last: Option<Instant>,
    reader: Option<Waker>,
}

struct Way {
    from: u32,
    to: u32,
    lane: Mutex<Lane>,
}

struct Open {
    /// Processes at both ends.
    ends: [u64; 2],
    ways: [Weak<Way>; 2],
}

struct Listening {
    process: Weak<Process>,
    name: ServerName<'static>,
    accepted: mpsc::UnboundedSender<AcceptedConnection>,
}

#[derive(Default)]
struct State {
    listening: BTreeMap<String, Listening>,
    open: Vec<Open>,
    /// Links on which nothing arrives.
    cut: BTreeSet<(u32, u32)>,
}

/// Simulated network of all hosts.
pub(super) struct Network {
    pub(super) world: Arc<World>,
    processes: AtomicU64,
    /// Longest delay, ms.
    latency_ms: AtomicU64,
    state: Mutex<State>,
}

impl Network {
    pub(super) fn new(world: &Arc<World>) -> Arc<Network> {
        Arc::new(Network {
            world: Arc::clone(world),
            processes: AtomicU64::new(1),
            latency_ms: AtomicU64::new(3),
            state: Mutex::default(),
        })
    }

    pub(super) fn next_process(&self) -> u64 {
        self.processes.fetch_add(1, Ordering::Relaxed)
    }

    /// Sets the longest delay of messages.
    pub(super) fn set_latency(&self, longest_ms: u64) {
        self.latency_ms.store(longest_ms, Ordering::Relaxed);
    }

    fn latency(&self) -> Duration {
        let longest = self.latency_ms.load(Ordering::Relaxed).max(1);
        self.world.between(0, longest + 1)
    }

    /// Cuts the link from one host to another, or mends it.
    pub(super) fn cut(&self, from: u32, to: u32, is_cut: bool) {
        let mut state = self.state.lock();
        match is_cut {
            true => drop(state.cut.insert((from, to))),
            false => drop(state.cut.remove(&(from, to))),
        }
        let ways: Vec<Arc<Way>> = open_ways(&state).collect();
        drop(state);
        ways.iter().for_each(|way| way.wake());
    }

    /// Mends all links.
    pub(super) fn mend(&self) {
        let mut state = self.state.lock();
        state.cut.clear();
        let ways: Vec<Arc<Way>> = open_ways(&state).collect();
        drop(state);
        ways.iter().for_each(|way| way.wake());
    }

    fn is_cut(&self, from: u32, to: u32) -> bool {
        self.state.lock().cut.contains(&(from, to))
    }

    /// Handles a killed process: it no longer listens, and its connections are reset.
    pub(super) fn reset(&self, process: &Process) {
        let mut state = self.state.lock();
        let is_its = |listening: &Listening| {
            let of = listening.process.upgrade();
            of.is_none_or(|of| of.number == process.number)
        };
        state.listening.retain(|_, listening| !is_its(listening));
        let mut ways = Vec::new();
        state.open.retain(|open| {
            let is_its = open.ends.contains(&process.number);
            if is_its {
                ways.extend(open.ways.iter().filter_map(Weak::upgrade));
            }
            !is_its && open.ways.iter().any(|way| way.strong_count() > 0)
        });
        drop(state);
        for way in ways {
            way.lane.lock().is_reset = true;
            way.wake();
        }
    }

    /// Handles a power cut of a process' host: its connections are silent until they are reset.
    pub(super) fn silence(&self, process: &Process) {
        let state = self.state.lock();
        let its = state.open.iter().filter(|open| open.ends.contains(&process.number));
        for way in its.flat_map(|open| &open.ways).filter_map(Weak::upgrade) {
            way.lane.lock().is_silent = true;
        }
    }

    /// Listens at an address as the process of this name; replaces an earlier listener there.
    pub(super) fn listen(
        &self,
        process: &Arc<Process>,
        address: &str,
        name: ServerName<'static>,
    ) -> Box<dyn SimulatedSource> {
        let (accepted, taken) = mpsc::unbounded_channel();
        let listening = Listening { process: Arc::downgrade(process), name, accepted };
        self.state.lock().listening.insert(address.to_owned(), listening);
        Box::new(GateOf(taken))
    }

    pub(super) async fn connect(
        self: Arc<Self>,
        process: &Arc<Process>,
        address: &str,
        name: &ServerName<'static>,
    ) -> io::Result<Stream> {
        // One round trip, also for a failure.
        tokio::time::sleep(self.latency() + self.latency()).await;
        let host = host_of(address);
        while self.is_cut(process.host, host) || self.is_cut(host, process.host) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
        let mut state = self.state.lock();
        let listening = state.listening.get(address).ok_or_else(refused)?;
        let other = listening.process.upgrade().ok_or_else(refused)?;
        if listening.name != *name {
            return Err(io::Error::other("a process of another name listens there"));
        }
        let way = |from: u32, to: u32| Arc::new(Way { from, to, lane: Mutex::default() });
        let (there, back) = (way(process.host, host), way(host, process.host));
        let end = |out: &Arc<Way>, inward: &Arc<Way>| End {
            network: Arc::clone(&self),
            out: Arc::clone(out),
            inward: Arc::clone(inward),
            wait: None,
        };
        let taken = AcceptedConnection {
            stream: Box::new(end(&back, &there)),
            address: SocketAddr::from(([10, 0, 0, process.host as u8], 1)),
            certificate: process.certificate.clone(),
        };
        listening.accepted.send(taken).map_err(|_| refused())?;
        let own = end(&there, &back);
        state.open.push(Open {
            ends: [process.number, other.number],
            ways: [Arc::downgrade(&there), Arc::downgrade(&back)],
        });
        drop(state);
        Ok(Box::new(own))
    }
}

fn open_ways(state: &State) -> impl Iterator<Item = Arc<Way>> + '_ {
    let ways = state.open.iter().flat_map(|open| &open.ways);
    ways.filter_map(Weak::upgrade)
}

/// Addresses are 10.0.0.HOST:PORT.
fn host_of(address: &str) -> u32 {
    let host = address.split(':').next().unwrap_or_default();
    let last = host.rsplit('.').next().unwrap_or_default();
    last.parse().unwrap_or_default()
}

struct GateOf(mpsc::UnboundedReceiver<AcceptedConnection>);

impl SimulatedSource for GateOf {
    fn next(&mut self) -> BoxFuture<'_, io::Result<AcceptedConnection>> {
        Box::pin(async move {
            match self.0.recv().await {
                Some(taken) => Ok(taken),
                // The listener was replaced.
                None => std::future::pending().await,
            }
        })
    }
}

impl Way {
    fn wake(&self) {
        let waker = self.lane.lock().reader.take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// One end of a connection.
struct End {
    network: Arc<Network>,
    out: Arc<Way>,
    inward: Arc<Way>,
    wait: Option<Pin<Box<Sleep>>>,
}

impl End {
    fn arrives(&self, lane: &mut Lane) -> Instant {
        let arrives = Instant::now() + self.network.latency();
        let arrives = lane.last.map_or(arrives, |last| last.max(arrives));
        lane.last = Some(arrives);
        arrives
    }
}

impl AsyncRead for End {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let inward = Arc::clone(&self.inward);
        loop {
            let mut lane = inward.lane.lock();
            if lane.is_reset {
                return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
            }
            lane.reader = Some(context.waker().clone());
            if lane.is_silent || self.network.is_cut(inward.from, inward.to) {
                return Poll::Pending;
            }
            let arrives = match (lane.segments.front(), lane.ends) {
                (Some((arrives, _)), _) => *arrives,
                (None, Some(ends)) => ends,
                (None, None) => return Poll::Pending,
            };
            if arrives <= Instant::now() {
                if let Some((_, bytes)) = lane.segments.front_mut() {
                    let part = bytes.len().min(into.remaining());
                    into.put_slice(&bytes[..part]);
                    bytes.drain(..part);
                    if bytes.is_empty() {
                        lane.segments.pop_front();
                    }
                }
                return Poll::Ready(Ok(()));
            }
            drop(lane);
            let wait = self.wait.insert(Box::pin(tokio::time::sleep_until(arrives)));
            if wait.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
        }
    }
}

impl AsyncWrite for End {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut lane = self.out.lane.lock();
        if lane.is_reset || lane.ends.is_some() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let arrives = self.arrives(&mut lane);
        lane.segments.push_back((arrives, bytes.to_vec()));
        drop(lane);
        self.out.wake();
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut lane = self.out.lane.lock();
        if lane.ends.is_none() {
            lane.ends = Some(self.arrives(&mut lane));
        }
        drop(lane);
        self.out.wake();
        Poll::Ready(Ok(()))
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let mut lane = self.out.lane.lock();
        if lane.ends.is_none() && !lane.is_silent {
            lane.ends = Some(self.arrives(&mut lane));
        }
        drop(lane);
        self.out.wake();
    }
}
