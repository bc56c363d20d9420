//! Guests that write, zero and trim continuously, each in its own region, and log the content after each
//! request.
//!
//! Their log is the truth about a moment. A region has its state after some number of requests: at least
//! those answered before the backup began, at most those sent when it had ended. Reads through QEMU do not
//! count.

use super::daemon::Daemon;
use copal_testkit::Random;
use std::{
    io::{self, Read, Write},
    ops::Range,
    os::unix::net::UnixStream,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
};

/// Longest request, as a guest makes them.
const LONGEST: u64 = 196 << 10;
const SECTOR: usize = 512;
const READ: u8 = 0;
const WRITE: u8 = 1;
const TRIM: u8 = 4;
const ZERO: u8 = 6;
/// A zeroing that may leave no hole.
const NO_HOLE: u8 = 2;

/// The connection of a guest to its disk: one request on the wire, simple replies.
pub(super) struct GuestDisk(UnixStream);

impl GuestDisk {
    pub(super) fn connect(daemon: &Daemon, disk: usize) -> GuestDisk {
        let mut stream = UnixStream::connect(daemon.path("nbd.sock")).unwrap();
        stream.read_exact(&mut [0; 18]).unwrap();
        let name = format!("guest{disk}");
        let mut option = vec![0, 0, 0, 3];
        option.extend(b"IHAVEOPT\0\0\0\x01");
        option.extend((name.len() as u32).to_be_bytes());
        option.extend(name.as_bytes());
        stream.write_all(&option).unwrap();
        stream.read_exact(&mut [0; 10]).unwrap();
        GuestDisk(stream)
    }

    fn ask(&mut self, command: (u8, u8), range: &Range<u64>, data: &[u8]) -> io::Result<()> {
        let (kind, flag) = command;
        let mut request = vec![0x25, 0x60, 0x95, 0x13, 0, flag, 0, kind, 0, 0, 0, 0, 0, 0, 0, 7];
        request.extend(range.start.to_be_bytes());
        request.extend(((range.end - range.start) as u32).to_be_bytes());
        request.extend(data);
        self.0.write_all(&request)?;
        let mut reply = [0; 16];
        self.0.read_exact(&mut reply)?;
        assert_eq!(reply, *b"\x67\x44\x66\x98\0\0\0\0\0\0\0\0\0\0\0\x07", "{command:?} {range:?}");
        Ok(())
    }

    pub(super) fn trim(&mut self, range: Range<u64>) {
        self.ask((TRIM, 0), &range, &[]).unwrap();
    }

    pub(super) fn read(&mut self, range: &Range<u64>) -> Vec<u8> {
        let mut bytes = vec![0; (range.end - range.start) as usize];
        self.ask((READ, 0), range, &[]).unwrap();
        self.0.read_exact(&mut bytes).unwrap();
        bytes
    }
}

/// The content of a range after a request.
#[derive(Clone, Debug)]
enum Content {
    /// Unknown or unchanged.
    Same,
    Zeros,
    /// The data of the write with this number.
    Written(u64),
    /// A trim removed part of it.
    Bytes(Vec<u8>),
}

impl Content {
    fn put(&self, bytes: &mut [u8]) {
        match self {
            Content::Same => {}
            Content::Zeros => bytes.fill(0),
            Content::Written(number) => {
                bytes.fill((number % 250) as u8 + 1);
                for sector in bytes.chunks_mut(SECTOR) {
                    sector[..8].copy_from_slice(&(number + 1).to_be_bytes());
                }
            }
            Content::Bytes(left) => bytes.copy_from_slice(left),
        }
    }
}

/// Sent requests with their places in the region, and the number of answered ones.
#[derive(Default)]
struct Log {
    requests: Vec<(Range<usize>, Content)>,
    answered: usize,
}

struct Region {
    disk: usize,
    place: Range<u64>,
    log: Arc<Mutex<Log>>,
    thread: JoinHandle<()>,
    /// The region after this number of requests.
    known: (usize, Vec<u8>),
}

/// Guests of both disks of a daemon.
pub(super) struct Writers {
    stop: Arc<AtomicBool>,
    regions: Vec<Region>,
}

impl Writers {
    /// Four on each disk, each in `length` bytes; their first content is that of `daemon.bytes`.
    pub(super) fn start(daemon: &Daemon, length: u64) -> Writers {
        let stop = Arc::new(AtomicBool::new(false));
        let start = |number: u64| {
            let (disk, at) = ((number / 4) as usize, number % 4 * length);
            let place = at..at + length;
            let first = daemon.bytes[disk][place.start as usize..place.end as usize].to_vec();
            let log = Arc::new(Mutex::new(Log::default()));
            let guest = Guest {
                disk: GuestDisk::connect(daemon, disk),
                random: Random::new(number),
                place: place.clone(),
                now: first.clone(),
                log: Arc::clone(&log),
            };
            let told = Arc::clone(&stop);
            let thread = std::thread::spawn(move || guest.run(&told));
            Region { disk, place, log, thread, known: (0, first) }
        };
        Writers { regions: (0..8).map(start).collect(), stop }
    }

    /// Number of answered requests of each region.
    pub(super) fn answered(&self) -> Vec<usize> {
        let regions = self.regions.iter();
        regions.map(|region| region.log.lock().unwrap().answered).collect()
    }

    /// Number of sent requests of each region.
    pub(super) fn sent(&self) -> Vec<usize> {
        let regions = self.regions.iter();
        regions.map(|region| region.log.lock().unwrap().requests.len()).collect()
    }

    /// Ends them; all contents are known then.
    pub(super) fn stop(self) -> Ended {
        self.stop.store(true, Ordering::Release);
        let end = |region: Region| {
            region.thread.join().unwrap();
            let log = std::mem::take(&mut *region.log.lock().unwrap());
            EndedRegion {
                disk: region.disk,
                place: region.place.start as usize..region.place.end as usize,
                requests: log.requests,
                known: region.known,
            }
        };
        Ended(self.regions.into_iter().map(end).collect())
    }
}

struct Guest {
    disk: GuestDisk,
    random: Random,
    place: Range<u64>,
    now: Vec<u8>,
    log: Arc<Mutex<Log>>,
}

impl Guest {
    fn run(mut self, stop: &AtomicBool) {
        let mut number = 0;
        while !stop.load(Ordering::Acquire) {
            number += 1;
            let unit = [512, 4096, 65536][self.random.index(3)];
            let length = self.place.end - self.place.start;
            let start = self.random.below(length / unit) * unit;
            let most = (length - start).min(LONGEST) / unit;
            let within = start as usize..(start + (self.random.below(most) + 1) * unit) as usize;
            let (command, content) = match self.random.below(4) {
                0 => ((TRIM, 0), Content::Same),
                1 => ((ZERO, NO_HOLE), Content::Zeros),
                2 => ((ZERO, 0), Content::Zeros),
                _ => ((WRITE, 0), Content::Written(number)),
            };
            let mut data = Vec::new();
            if command.0 == WRITE {
                data.resize(within.len(), 0);
                content.put(&mut data);
            }
            let range = self.place.start + within.start as u64..self.place.start + within.end as u64;
            self.log.lock().unwrap().requests.push((within.clone(), content.clone()));
            self.disk.ask(command, &range, &data).unwrap();
            let content = match command.0 {
                TRIM => self.trimmed(&range, &within),
                _ => content,
            };
            content.put(&mut self.now[within]);
            let mut log = self.log.lock().unwrap();
            log.requests.last_mut().unwrap().1 = content;
            log.answered += 1;
        }
    }

    fn trimmed(&mut self, range: &Range<u64>, within: &Range<usize>) -> Content {
        let left = self.disk.read(range);
        if left == self.now[within.clone()] {
            Content::Same
        } else if left.iter().all(|byte| *byte == 0) {
            Content::Zeros
        } else {
            Content::Bytes(left)
        }
    }
}

/// The logs of all regions.
pub(super) struct Ended(Vec<EndedRegion>);

struct EndedRegion {
    disk: usize,
    place: Range<usize>,
    requests: Vec<(Range<usize>, Content)>,
    known: (usize, Vec<u8>),
}

impl Ended {
    /// Whether both disks are of a moment with at least the requests answered at its beginning, and at most
    /// those sent at its end; otherwise the place of the difference. Moments come in order.
    pub(super) fn judge(
        &mut self,
        disks: &[Vec<u8>; 2],
        answered: &[usize],
        sent: &[usize],
    ) -> Result<(), String> {
        for (at, region) in self.0.iter_mut().enumerate() {
            let found = &disks[region.disk][region.place.clone()];
            let (known, bytes) = &mut region.known;
            for (within, content) in &region.requests[*known..answered[at]] {
                content.put(&mut bytes[within.clone()]);
            }
            *known = answered[at];
            let mut state = bytes.clone();
            let mut is_moment = found == &state[..];
            for (within, content) in &region.requests[answered[at]..sent[at]] {
                if is_moment {
                    break;
                }
                content.put(&mut state[within.clone()]);
                is_moment = found == &state[..];
            }
            if !is_moment {
                return Err(format!(
                    "disk {}, {:?} is not as it was after any of {} to {} requests",
                    region.disk, region.place, answered[at], sent[at]
                ));
            }
        }
        Ok(())
    }
}
