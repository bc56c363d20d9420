//! The server, against Copal's own client and against clients that send arbitrary bytes.

use copal_nbd::{
    BASE_ALLOCATION, Client, ConnectOptions, ConnectionPool, NbdError, ServerAddress, Uri,
    server::{DiskError, DiskExports, ExportDisk, Server, StatusRun},
};
use copal_testkit::Random;
use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

const SIZE: usize = 1 << 20;
/// Unreadable range.
const DAMAGED: std::ops::Range<u64> = 500_000..500_100;

/// A disk in memory, whose first quarter is a hole until it is written.
struct MemoryDisk {
    bytes: Mutex<Vec<u8>>,
    is_writable: bool,
    flushes: AtomicUsize,
    trims: Mutex<Vec<(u64, u64)>>,
}

impl ExportDisk for MemoryDisk {
    fn size_bytes(&self) -> u64 {
        SIZE as u64
    }
    fn is_writable(&self) -> bool {
        self.is_writable
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DiskError> {
        let end = offset + buf.len() as u64;
        if !self.is_writable && offset < DAMAGED.end && end > DAMAGED.start {
            return Err(DiskError::Damaged);
        }
        buf.copy_from_slice(&self.bytes.lock().unwrap()[offset as usize..end as usize]);
        Ok(())
    }
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), DiskError> {
        self.bytes.lock().unwrap()[offset as usize..][..data.len()].copy_from_slice(data);
        Ok(())
    }
    fn zero(&self, offset: u64, len: u64) -> Result<(), DiskError> {
        self.bytes.lock().unwrap()[offset as usize..][..len as usize].fill(0);
        Ok(())
    }
    fn trim(&self, offset: u64, len: u64) -> Result<(), DiskError> {
        self.trims.lock().unwrap().push((offset, len));
        Ok(())
    }
    fn flush(&self) -> Result<(), DiskError> {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
    fn contexts(&self) -> Vec<String> {
        vec!["copal:diff:1".to_owned()]
    }
    fn has_context(&self, name: &str) -> bool {
        name == "copal:diff:1"
    }
    fn run_at(&self, context: &str, offset: u64, len: u64) -> Result<StatusRun, DiskError> {
        let half = SIZE as u64 / 4;
        let is_first = offset < half;
        Ok(StatusRun {
            len: if is_first { (half - offset).min(len) } else { len },
            flags: match (context, is_first && !self.is_writable) {
                (BASE_ALLOCATION, true) => 3,
                (BASE_ALLOCATION, false) => 0,
                (_, is_first) => u32::from(is_first),
            },
        })
    }
}

struct OneExport(Arc<MemoryDisk>);

impl DiskExports for OneExport {
    fn names(&self) -> Vec<String> {
        vec!["disk".to_owned()]
    }
    fn find(&self, name: &str) -> Option<Arc<dyn ExportDisk>> {
        matches!(name, "" | "disk").then(|| Arc::clone(&self.0) as Arc<dyn ExportDisk>)
    }
}

fn with_server<T>(is_writable: bool, work: impl FnOnce(&Uri, &MemoryDisk) -> T) -> T {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let mut bytes = Random::new(1).bytes(SIZE);
    bytes[..SIZE / 4].fill(0);
    let disk = Arc::new(MemoryDisk {
        bytes: Mutex::new(bytes),
        is_writable,
        flushes: AtomicUsize::new(0),
        trims: Mutex::default(),
    });
    let server = Server::bind(&ServerAddress::Unix(socket.clone())).unwrap();
    let ended = AtomicBool::new(false);
    let shelf = OneExport(Arc::clone(&disk));
    std::thread::scope(|scope| {
        let running = scope.spawn(|| server.run(&shelf, || ended.load(Ordering::Relaxed)));
        let uri = server.uri("disk").unwrap();
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(&uri, &disk)));
        ended.store(true, Ordering::Relaxed);
        running.join().unwrap().unwrap();
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn socket_of(uri: &Uri) -> PathBuf {
    match &uri.address {
        ServerAddress::Unix(path) => path.clone(),
        ServerAddress::Tcp(..) => panic!("a unix socket was asked for"),
    }
}

#[test]
fn the_client_and_the_server_understand_each_other() {
    with_server(false, |uri, disk| {
        let options = ConnectOptions {
            contexts: vec![BASE_ALLOCATION.to_owned(), "copal:diff:1".to_owned()],
            ..ConnectOptions::default()
        };
        let client = Client::connect(uri, &options).unwrap();
        assert_eq!(client.contexts().len(), 2);
        let read = client.start_read(0, SIZE as u32 / 2 - 65_536).unwrap().wait().unwrap();
        assert_eq!(read.holes, vec![0..SIZE as u32 / 4]);
        assert!(read.data == disk.bytes.lock().unwrap()[..SIZE / 2 - 65_536]);
        let map = |name| client.map(name, 0..SIZE as u64).unwrap().map(|e| e.unwrap());
        assert_eq!(map(BASE_ALLOCATION).map(|e| e.flags).collect::<Vec<_>>(), [3, 0]);
        assert_eq!(map("copal:diff:1").next().unwrap().len, SIZE as u64 / 4);
        // Damage fails a request, and the connection stays open.
        for _ in 0..2 {
            let failed = client.start_read(499_000, 4096).unwrap().wait();
            assert!(matches!(failed, Err(NbdError::Request { errno: 5, .. })), "{failed:?}");
        }
        assert!(matches!(client.start_write(0, &[1]), Err(NbdError::ReadOnly)));
        let names = Client::list_contexts(uri, &["copal:"], options.timeout).unwrap();
        assert_eq!(names, ["copal:diff:1"]);
        let missing = Uri { export: "other".to_owned(), ..uri.clone() };
        let refused = Client::connect(&missing, &options);
        assert!(matches!(refused, Err(NbdError::Refused { .. })), "{refused:?}");
    });
}

#[test]
fn writes_over_several_connections_are_one_disk() {
    with_server(true, |uri, disk| {
        let connections = ConnectionPool::open(uri, &ConnectOptions::default(), 4).unwrap();
        assert_eq!(connections.count(), 4);
        let mut truth = disk.bytes.lock().unwrap().clone();
        let mut random = Random::new(2);
        for _ in 0..100 {
            let at = random.index(SIZE - 70_000);
            let len = 1 + random.index(70_000);
            let data = random.bytes(len);
            truth[at..at + data.len()].copy_from_slice(&data);
            connections.next().start_write(at as u64, &data).unwrap().wait().unwrap();
        }
        connections.next().start_zero(1000, 30_000).unwrap().wait().unwrap();
        truth[1000..31_000].fill(0);
        connections.first().flush().unwrap();
        assert!(truth == *disk.bytes.lock().unwrap());
        assert_eq!(disk.flushes.load(Ordering::Relaxed), 1);
        let outside = connections.first().start_write(SIZE as u64 - 1, &[1, 2]);
        assert!(matches!(outside, Err(NbdError::OutOfRange { .. })));
    });
}

/// Sends these bytes, closes the sending half, and returns the bytes received.
fn say(socket: &Path, words: &[u8]) -> Vec<u8> {
    let mut stream = UnixStream::connect(socket).unwrap();
    // The server may disconnect first.
    let _ = stream.write_all(words);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut received = Vec::new();
    let _ = stream.read_to_end(&mut received);
    received
}

fn option(kind: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = b"IHAVEOPT".to_vec();
    bytes.extend(kind.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
    bytes
}

fn request(flags: u16, kind: u16, offset: u64, len: u32) -> Vec<u8> {
    let mut bytes = 0x2560_9513u32.to_be_bytes().to_vec();
    bytes.extend(flags.to_be_bytes());
    bytes.extend(kind.to_be_bytes());
    bytes.extend(7u64.to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    bytes.extend(len.to_be_bytes());
    bytes
}

const FLAGS: [u8; 4] = [0, 0, 0, 3];

/// Kinds of the option replies in the bytes of a server.
fn option_replies(received: &[u8]) -> Vec<u32> {
    let magic = 0x0003_e889_0455_65a9u64.to_be_bytes();
    let places = received.windows(8).enumerate().filter(|(_, bytes)| *bytes == magic);
    places.map(|(at, _)| u32::from_be_bytes(received[at + 12..at + 16].try_into().unwrap())).collect()
}

#[test]
fn options_are_answered_or_refused_one_by_one() {
    with_server(false, |uri, _| {
        let socket = socket_of(uri);
        for (kind, data, want) in [
            (3, &b""[..], &[2, 1][..]),
            (3, b"x", &[0x8000_0003]),
            (5, b"", &[0x8000_0001]),
            (8, b"", &[1]),
            (8, b"x", &[0x8000_0003]),
            (11, b"", &[0x8000_0001]),
            (6, b"\0\0\0\x04disk\0\0", &[3, 3, 1]),
            (6, b"\0\0\0\x04none\0\0", &[0x8000_0006]),
            (6, b"\0\0\0\xffdisk\0\0", &[0x8000_0003]),
            (6, b"", &[0x8000_0003]),
            (9, b"\0\0\0\x04disk\0\0\0\0", &[4, 4, 1]),
            (9, b"\0\0\0\x04disk\xff\xff\xff\xff", &[0x8000_0003]),
            // Contexts without structured replies.
            (10, b"\0\0\0\x04disk\0\0\0\0", &[0x8000_0003]),
        ] {
            let words = [&FLAGS[..], &option(kind, data), &option(2, b"")].concat();
            let mut want = want.to_vec();
            want.push(1);
            assert_eq!(option_replies(&say(&socket, &words)), want, "option {kind} {data:?}");
        }
        // A huge length is refused before anything is read or allocated.
        let mut giant = [&FLAGS[..], &option(3, b"")].concat();
        let at = giant.len() - 4;
        giant[at..].copy_from_slice(&u32::MAX.to_be_bytes());
        assert_eq!(option_replies(&say(&socket, &giant)), [0x8000_0009]);
        // Selection by EXPORT_NAME, with and without the zeroes.
        for (flags, zeroes) in [(3, 0), (1, 124)] {
            let words = [&[0, 0, 0, flags][..], &option(1, b"disk"), &request(0, 2, 0, 0)].concat();
            assert_eq!(say(&socket, &words).len(), 18 + 10 + zeroes);
        }
    });
}

/// A disk with a translation layer must tell a trim from a write of zeroes. A durable one flushes.
#[test]
fn a_trim_reaches_the_disk_as_such() {
    with_server(true, |uri, disk| {
        let trims = [request(0, 4, 4096, 8192), request(1, 4, 65_536, 1), request(0, 4, 0, 0)].concat();
        let words = [&FLAGS[..], &option(1, b"disk"), &trims, &request(0, 2, 0, 0)].concat();
        assert_eq!(say(&socket_of(uri), &words).len(), 28 + 3 * 16);
        let mut trims = disk.trims.lock().unwrap();
        trims.sort_unstable();
        assert_eq!((&trims[..], disk.flushes.load(Ordering::Relaxed)), (&[(4096, 8192), (65_536, 1)][..], 1));
    });
}

#[test]
fn forbidden_requests_get_an_error_and_the_next_one_succeeds() {
    with_server(false, |uri, _| {
        let socket = socket_of(uri);
        for (bad, errno) in [
            (request(0, 0, SIZE as u64, 1), 22),
            (request(0, 0, u64::MAX, u32::MAX), 22),
            (request(0x8000, 0, 0, 1), 22),
            (request(0, 99, 0, 1), 22),
            (request(0, 7, 0, 1), 22),
            (request(0, 4, 0, 4096), 1),
            ([request(0, 1, 0, 3), b"abc".to_vec()].concat(), 1),
        ] {
            let good = request(0, 0, SIZE as u64 - 4, 4);
            let words = [&FLAGS[..], &option(1, b"disk"), &bad, &good, &request(0, 2, 0, 0)].concat();
            let received = say(&socket, &words);
            let replies = &received[28..];
            assert_eq!(replies.len(), 16 + 16 + 4, "{bad:?}");
            // In any order.
            let mut errors = [4, if replies[4..8] == [0; 4] { 24 } else { 20 }]
                .map(|at| u32::from_be_bytes(replies[at..at + 4].try_into().unwrap()));
            errors.sort_unstable();
            assert_eq!(errors, [0, errno], "{bad:?}");
        }
        // A write beyond the longest length, whose bytes are not read.
        let words = [&FLAGS[..], &option(1, b"disk"), &request(0, 1, 0, u32::MAX)].concat();
        assert_eq!(say(&socket, &words).len(), 28);
    });
}

#[test]
fn after_arbitrary_bytes_of_clients_the_server_serves_the_next() {
    with_server(true, |uri, _| {
        let socket = socket_of(uri);
        let whole = [
            &FLAGS[..],
            &option(8, b""),
            &option(10, b"\0\0\0\x04disk\0\0\0\x01\0\0\0\x0fbase:allocation"),
            &option(7, b"\0\0\0\x04disk\0\0"),
            &request(0, 0, 0, 4096),
            &request(1, 1, 0, 3),
            b"abc",
            &request(0, 7, 0, 65_536),
            &request(0, 6, 0, 65_536),
            &request(0, 3, 0, 0),
            &request(0, 2, 0, 0),
        ]
        .concat();
        let mut random = Random::new(3);
        for round in 0..600 {
            let mut words = whole.clone();
            if round > 0 {
                for _ in 0..=random.index(3) {
                    let at = random.index(words.len());
                    match random.index(3) {
                        0 => words[at] ^= 1 << random.index(8),
                        1 => words.truncate(at.max(1)),
                        _ => words[at] = [0, 0x7f, 0xff][random.index(3)],
                    }
                }
            }
            say(&socket, &words);
        }
        let client = Client::connect(uri, &ConnectOptions::default()).unwrap();
        assert_eq!(client.start_read(SIZE as u64 - 4096, 4096).unwrap().wait().unwrap().data.len(), 4096);
    });
}
