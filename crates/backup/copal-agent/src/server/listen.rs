//! The accept thread: takes connections, up to their number, and ends the server.

use super::{Shared, peer};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::{
    io::ErrorKind,
    net::{TcpListener, TcpStream},
    sync::{Arc, atomic::Ordering},
    thread::JoinHandle,
};
use tracing::{debug, warn};

/// How often the stop flag is looked at.
const LOOK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};
/// A reader opens frames and hands messages on: nothing deep.
const READER_STACK_BYTES: usize = 256 << 10;

/// A connection, known or not yet: what ends it, and its reader.
struct Reader {
    stream: TcpStream,
    thread: JoinHandle<()>,
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
        for done in readers.extract_if(.., |reader| reader.thread.is_finished()) {
            let _ = done.thread.join();
        }
        let (stream, address) = match listener.accept() {
            Ok(accepted) => accepted,
            Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
            Err(error) => {
                debug!(%error, "no connection could be taken");
                // No file descriptors, say: that lasts.
                let _ = poll(&mut [], Some(&LOOK));
                continue;
            }
        };
        if readers.len() >= shared.options.connections {
            debug!(%address, "one connection too many");
            shared.counts.crowded.fetch_add(1, Ordering::Relaxed);
            continue;
        }
        match start(shared, stream) {
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

fn start(shared: &Arc<Shared>, stream: TcpStream) -> std::io::Result<Reader> {
    let kept = stream.try_clone()?;
    let shared = Arc::clone(shared);
    let thread = std::thread::Builder::new()
        .name("agent-receive".to_owned())
        .stack_size(READER_STACK_BYTES)
        .spawn(move || peer::run(&shared, stream))?;
    Ok(Reader { stream: kept, thread })
}
