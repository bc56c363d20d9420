//! A link between a client and a server: with a delay, a bandwidth for each direction, and a count of requests.
//!
//! Bytes leave half of the round trip after they came, and no faster than the bandwidth, which all connections share. A
//! connection has up to [`WINDOW`] pieces on the way, so one connection does not fill a long link, as with TCP.

use super::counts::{Counts, RequestReader};
use anyhow::{Context, Result};
use std::{
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{Receiver, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

const PIECE: usize = 32 << 10;
/// Pieces on the way of one connection: 2 MiB.
const WINDOW: usize = 64;

/// Shape of a link.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) round_trip: Duration,
    /// Bytes a second, each way; `None`: as fast as it goes.
    pub(super) bandwidth: Option<u64>,
}

impl Shape {
    /// Without a delay or a limit.
    pub(super) const NEAR: Shape = Shape { round_trip: Duration::ZERO, bandwidth: None };
}

/// A running link. It ends with the process.
pub(super) struct Link {
    address: String,
    state: Arc<LinkState>,
}

struct LinkState {
    server: String,
    round_trip_us: AtomicU64,
    /// 0: without a limit.
    bandwidth: AtomicU64,
    counts: Mutex<Counts>,
    is_understood: AtomicBool,
    /// When each direction has sent its bytes: to the server, to the client.
    busy_until: [Mutex<Instant>; 2],
}

impl LinkState {
    fn count(&self, change: impl FnOnce(&mut Counts)) {
        change(&mut self.counts.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Waits until the link has sent these bytes.
    fn send(&self, direction: usize, bytes: usize) {
        let bandwidth = self.bandwidth.load(Ordering::Relaxed);
        if bandwidth == 0 {
            return;
        }
        let done = {
            let mut until = self.busy_until[direction].lock().unwrap_or_else(PoisonError::into_inner);
            *until = (*until).max(Instant::now()) + Duration::from_secs_f64(bytes as f64 / bandwidth as f64);
            *until
        };
        thread::sleep(done.saturating_duration_since(Instant::now()));
    }
}

impl Link {
    /// A link on a free port to the server, without delay and limit.
    pub(super) fn start(server: &str) -> Result<Link> {
        let listener = TcpListener::bind("127.0.0.1:0").context("a port for the link")?;
        let address = listener.local_addr()?.to_string();
        let now = Instant::now();
        let state = Arc::new(LinkState {
            server: server.to_owned(),
            round_trip_us: AtomicU64::new(0),
            bandwidth: AtomicU64::new(0),
            counts: Mutex::default(),
            is_understood: AtomicBool::new(true),
            busy_until: [Mutex::new(now), Mutex::new(now)],
        });
        let accepting = state.clone();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                // A client sees a refused connection as a closed one.
                let _ = connect(&accepting, client);
            }
        });
        Ok(Link { address, state })
    }

    /// Address for clients: `HOST:PORT`.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    pub(super) fn set(&self, shape: Shape) {
        self.state.round_trip_us.store(shape.round_trip.as_micros() as u64, Ordering::Relaxed);
        self.state.bandwidth.store(shape.bandwidth.unwrap_or(0), Ordering::Relaxed);
    }

    /// Requests since the last call; `None` if a connection sent something that is not understood.
    pub(super) fn take_counts(&self) -> Option<Counts> {
        let mut counts = Counts::default();
        self.state.count(|counted| std::mem::swap(counted, &mut counts));
        self.state.is_understood.load(Ordering::Relaxed).then_some(counts)
    }
}

fn connect(state: &Arc<LinkState>, client: TcpStream) -> Result<()> {
    let server = TcpStream::connect(&state.server)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    for (direction, from, to) in [(0, client.try_clone()?, server.try_clone()?), (1, server, client)] {
        let (pieces, queue) = sync_channel(WINDOW);
        let (reading, writing) = (state.clone(), state.clone());
        thread::spawn(move || forward(&writing, direction, &queue, to));
        thread::spawn(move || {
            let (mut from, mut requests) = (from, RequestReader::default());
            loop {
                let mut piece = vec![0; PIECE];
                let Ok(bytes @ 1..) = from.read(&mut piece) else { return };
                piece.truncate(bytes);
                reading.count(|counts| match direction {
                    0 if !requests.observe(&piece, counts) => {
                        reading.is_understood.store(false, Ordering::Relaxed);
                    }
                    0 => {}
                    _ => counts.received += bytes as u64,
                });
                let half = Duration::from_micros(reading.round_trip_us.load(Ordering::Relaxed) / 2);
                if pieces.send((Instant::now() + half, piece)).is_err() {
                    return;
                }
            }
        });
    }
    Ok(())
}

/// Sends the pieces of one direction; ends the direction when no more come.
fn forward(state: &LinkState, direction: usize, queue: &Receiver<(Instant, Vec<u8>)>, mut to: TcpStream) {
    for (due, piece) in queue {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        state.send(direction, piece.len());
        if to.write_all(&piece).is_err() {
            break;
        }
    }
    // The other side may have closed already.
    let _ = to.shutdown(Shutdown::Write);
}
