//! Clients that stop in the middle of what they say.

use super::*;
use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    sync::{Arc, atomic::AtomicBool},
    time::Instant,
};

/// Only ends a test that hangs.
const HANG: Duration = Duration::from_secs(60);

/// A disk that remembers nothing.
struct Zeroes;

impl Disk for Zeroes {
    fn size_bytes(&self) -> u64 {
        HELD_BYTES
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
    fn run_at(&self, _: &str, _: u64, len: u64) -> Result<Run, DiskError> {
        Ok(Run { len, flags: 0 })
    }
}

struct OnlyZeroes;

impl Exports for OnlyZeroes {
    fn names(&self) -> Vec<String> {
        vec!["disk".to_owned()]
    }
    fn find(&self, _: &str) -> Option<Arc<dyn Disk>> {
        Some(Arc::new(Zeroes))
    }
}

/// A client that has chosen the disk.
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

/// Symptom: two clients that paused in the middle of the longest writes made all others of a door wait for ever.
/// Cause: what they held of the server's memory came back with the last byte of the write. Fix: a write has to come at some rate,
/// or its connection ends.
#[test]
#[expect(clippy::disallowed_methods, reason = "there is nothing to wait on but time")]
fn clients_that_pause_in_a_write_are_not_waited_for_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let mut server = Server::bind(&Address::Unix(socket.clone())).unwrap();
    server.pause = Duration::from_secs(1);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let running = scope.spawn(|| server.run(&OnlyZeroes, || ended.load(Ordering::Relaxed)));
        let paused = [(); 2].map(|()| {
            let mut stream = client(&socket);
            stream.write_all(&request(1, limits::REQUEST_BYTES)).unwrap();
            stream.write_all(&[1; 100]).unwrap();
            stream
        });
        let mut reader = client(&socket);
        // All of the memory is held now, unless this machine stood still for a second.
        let began = Instant::now();
        while server.budget.left() > 0 && began.elapsed() < HANG {
            std::thread::yield_now();
        }
        reader.write_all(&request(0, 4096)).unwrap();
        let answered = reader.read_exact(&mut [0; 16 + 4096]);
        // One that pauses between requests is let be.
        std::thread::sleep(server.pause + Duration::from_millis(200));
        reader.write_all(&request(0, 4096)).unwrap();
        let answered_again = reader.read_exact(&mut [0; 16 + 4096]);
        ended.store(true, Ordering::Relaxed);
        drop(paused);
        running.join().unwrap().unwrap();
        answered.unwrap();
        answered_again.unwrap();
    });
}
