//! The accept thread: takes connections, turns away the oldest that has not said who it is where one more
//! comes, and ends the server.
//!
//! Not here: how many there may be (`places`).

use super::{
    Shared, peer,
    places::{GRACE, Standing, oldest_in_the_way},
};
use crate::channel::Channel;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::{
    io::ErrorKind,
    net::{IpAddr, TcpListener, TcpStream},
    sync::{Arc, atomic::Ordering},
    thread::JoinHandle,
    time::Instant,
};
use tracing::{debug, warn};

/// How often the stop flag is looked at.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// How often one looks for a place that becomes free.
const LOOK_FOR_A_PLACE: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
/// A reader opens frames and hands messages on: nothing deep.
const READER_STACK_BYTES: usize = 256 << 10;

/// A connection, known or not yet: what ends it, and its reader.
struct Reader {
    stream: Arc<TcpStream>,
    address: IpAddr,
    since: Instant,
    standing: Arc<Standing>,
    thread: JoinHandle<()>,
}

impl Reader {
    fn is_unknown(&self) -> bool {
        self.standing.is_unknown() && !self.thread.is_finished()
    }
}

pub(super) fn run(shared: &Arc<Shared>, listener: &TcpListener) {
    let mut readers: Vec<Reader> = Vec::new();
    if let Err(error) = listener.set_nonblocking(true) {
        warn!(%error, "cannot listen");
        shared.stop.store(true, Ordering::Release);
    }
    while !shared.stop.load(Ordering::Acquire) {
        let mut wanted = [PollFd::new(listener, PollFlags::IN)];
        let _ = poll(&mut wanted, Some(&LOOK));
        reap(&mut readers);
        let (stream, address) = match listener.accept() {
            Ok(accepted) => accepted,
            Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
            Err(error) => {
                // No file descriptors, say: that lasts.
                shared.crowd.tell("the system gives no descriptor for one more connection", &error);
                let _ = poll(&mut [], Some(&LOOK));
                continue;
            }
        };
        make_place(shared, &mut readers, address.ip().to_canonical());
        match start(shared, stream, address.ip().to_canonical()) {
            Ok(reader) => readers.push(reader),
            Err(error) => warn!(%address, %error, "a connection could not be taken"),
        }
    }
    shared.due.wake();
    // Ends the sending, too, and whoever waits for room.
    shared.outbox.end();
    for reader in readers {
        let _ = reader.stream.shutdown(std::net::Shutdown::Both);
        let _ = reader.thread.join();
    }
    shared.commands.join();
}

fn reap(readers: &mut Vec<Reader>) {
    for done in readers.extract_if(.., |reader| reader.thread.is_finished()) {
        let _ = done.thread.join();
    }
}

/// Waits a moment for the oldest peer that is in the way to say who it is, then turns it away. Returns soon
/// in any case, so that no other address waits for long.
fn make_place(shared: &Shared, readers: &mut Vec<Reader>, address: IpAddr) {
    while !shared.stop.load(Ordering::Acquire) {
        reap(readers);
        // In the order in which they came.
        let unknown: Vec<usize> = (0..readers.len()).filter(|&at| readers[at].is_unknown()).collect();
        let addresses: Vec<IpAddr> = unknown.iter().map(|&at| readers[at].address).collect();
        let bounds = shared.places.most_unknown();
        let Some(oldest) = oldest_in_the_way(&addresses, address, bounds) else {
            return;
        };
        let oldest = &readers[unknown[oldest]];
        if oldest.since.elapsed() < GRACE {
            let _ = poll(&mut [], Some(&LOOK_FOR_A_PLACE));
        } else if oldest.standing.turn_away() {
            debug!(address = %oldest.address, "turned away: it has not said who it is");
            Channel::turn_away(&oldest.stream);
            shared.counts.crowded.fetch_add(1, Ordering::Relaxed);
            shared.crowd.tell("too many connections whose peers do not say who they are", &oldest.address);
            return;
        }
    }
}

fn start(shared: &Arc<Shared>, stream: TcpStream, address: IpAddr) -> std::io::Result<Reader> {
    let (stream, standing) = (Arc::new(stream), Arc::<Standing>::default());
    let (theirs, known) = (Arc::clone(&stream), Arc::clone(&standing));
    let shared = Arc::clone(shared);
    let thread = std::thread::Builder::new()
        .name("agent-receive".to_owned())
        .stack_size(READER_STACK_BYTES)
        .spawn(move || peer::run(&shared, theirs, &known))?;
    Ok(Reader { stream, address, since: Instant::now(), standing, thread })
}
