//! Clients that are silent, stop in the middle of a request, or receive no replies.

use super::*;
use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// Only ends a test that hangs.
const HANG: Duration = Duration::from_secs(60);

/// A disk of zeroes that discards writes.
struct ZeroDisk;

impl ExportDisk for ZeroDisk {
    fn size_bytes(&self) -> u64 {
        POOL_BYTES
    }
    fn is_writable(&self) -> bool {
        true
    }
    fn read_at(&self, _: u64, buf: &mut [u8]) -> Result<(), DiskError> {
        buf.fill(0);
        Ok(())
    }
    fn write_at(&self, _: u64, _: &[u8]) -> Result<(), DiskError> {
        Ok(())
    }
    fn run_at(&self, _: &str, _: u64, len: u64) -> Result<StatusRun, DiskError> {
        Ok(StatusRun { len, flags: 0 })
    }
}

struct ZeroExports;

impl DiskExports for ZeroExports {
    fn names(&self) -> Vec<String> {
        vec!["disk".to_owned()]
    }
    fn find(&self, _: &str) -> Option<Arc<dyn ExportDisk>> {
        Some(Arc::new(ZeroDisk))
    }
}

/// A client that has selected the disk.
fn client(socket: &Path) -> UnixStream {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(HANG)).unwrap();
    stream.read_exact(&mut [0; 18]).unwrap();
    stream.write_all(&3_u32.to_be_bytes()).unwrap();
    stream.write_all(b"IHAVEOPT\0\0\0\x01\0\0\0\0").unwrap();
    stream.read_exact(&mut [0; 10]).unwrap();
    stream
}

fn request(kind: u16, len: u32) -> [u8; 28] {
    let mut header = [0; 28];
    header[..4].copy_from_slice(&crate::wire::REQUEST_MAGIC.to_be_bytes());
    header[6..8].copy_from_slice(&kind.to_be_bytes());
    header[24..].copy_from_slice(&len.to_be_bytes());
    header
}

/// Runs a server on a socket during `test`.
fn with_server(pause: Duration, test: impl FnOnce(&Path) + std::panic::UnwindSafe) {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let mut server = Server::bind(&ServerAddress::Unix(socket.clone())).unwrap();
    server.pause = pause;
    let ended = AtomicBool::new(false);
    let outcome = std::thread::scope(|scope| {
        let running = scope.spawn(|| server.run(&ZeroExports, || ended.load(Ordering::Relaxed)));
        let outcome = std::panic::catch_unwind(|| test(&socket));
        ended.store(true, Ordering::Relaxed);
        running.join().unwrap().unwrap();
        outcome
    });
    outcome.unwrap();
}

/// Reads bytes from the export.
fn read(stream: &mut UnixStream, len: u32) {
    stream.write_all(&request(0, len)).unwrap();
    stream.read_exact(&mut vec![1; 16 + len as usize]).unwrap();
}

/// Whether the server has closed the connection.
fn is_closed(stream: &mut UnixStream) -> bool {
    let mut rest = Vec::new();
    // Replies sent before the end are read first.
    stream.read_to_end(&mut rest).is_ok()
}

/// Symptom: two clients that paused in the middle of the longest writes made all other clients wait for ever.
/// Cause: their part of the server's shared memory was returned only after the last byte of the write. Fix: a
/// long write is written piece by piece and uses memory of its own connection. It must arrive at the least
/// rate, or its connection ends.
/// connection ends.
#[test]
fn clients_that_pause_in_a_write_block_no_others() {
    with_server(Duration::from_secs(1), |socket| {
        let mut paused = [(); 8].map(|()| {
            let mut stream = client(socket);
            stream.write_all(&request(1, limits::REQUEST_BYTES)).unwrap();
            stream.write_all(&[1; 100]).unwrap();
            stream
        });
        let mut reader = client(socket);
        read(&mut reader, 4096);
        assert!(paused.iter_mut().all(is_closed));
        // A pause between requests is allowed, even a longer one.
        read(&mut reader, limits::REQUEST_BYTES);
        // Complete writes succeed, short and long.
        for len in [4096, 1 << 20, limits::REQUEST_BYTES] {
            reader.write_all(&request(1, len)).unwrap();
            reader.write_all(&vec![1; len as usize]).unwrap();
            let mut reply = [1; 16];
            reader.read_exact(&mut reply).unwrap();
            assert_eq!(reply[4..8], [0; 4]);
        }
    });
}

/// Symptom: a client that received no replies kept all others waiting for a minute, again and again.
/// Cause: the bytes of its replies came from a budget shared by all clients. Fix: a reply uses memory of its
/// own connection, and no request waits for the pool of long replies.
#[test]
fn clients_that_receive_no_replies_starve_no_others() {
    with_server(TRANSFER_TIMEOUT, |socket| {
        let greedy = [(); 6].map(|()| {
            let mut stream = client(socket);
            for _ in 0..8 {
                stream.write_all(&request(0, limits::REQUEST_BYTES)).unwrap();
            }
            // The reply has begun, so its memory is taken.
            stream.read_exact(&mut [1; 64]).unwrap();
            stream
        });
        let mut honest = client(socket);
        for len in [512, 1 << 20, limits::REQUEST_BYTES] {
            read(&mut honest, len);
        }
        drop(greedy);
    });
}

/// Symptom: 64 silent connections kept all others out of an export until they left.
/// Cause: every connection beyond the limit was closed. Fix: the oldest silent connection is closed for a new
/// one.
#[test]
fn silent_connections_keep_no_others_out() {
    with_server(TRANSFER_TIMEOUT, |socket| {
        let mut kept = client(socket);
        read(&mut kept, 512);
        // Some of these send nothing, some half a handshake.
        let mut silent = Vec::new();
        for number in 0..150 {
            let mut stream = UnixStream::connect(socket).unwrap();
            if number % 2 == 0 {
                let _ = stream.write_all(&3_u32.to_be_bytes());
            }
            silent.push(stream);
            if number % 50 == 49 {
                read(&mut client(socket), 512);
            }
        }
        // These select a disk and send no request.
        let mut idle: Vec<UnixStream> = (0..100).map(|_| client(socket)).collect();
        read(&mut client(socket), 512);
        assert!(is_closed(&mut idle[0]), "the first without a request is closed");
        // A connection with a request stays open.
        read(&mut kept, 512);
    });
}
