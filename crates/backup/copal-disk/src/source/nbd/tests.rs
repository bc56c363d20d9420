//! NBD sources against a server with scripted replies.

use super::*;
use std::{
    io::{Read, Write},
    os::unix::net::{UnixListener, UnixStream},
};

/// Status of a range: (length, flags) pairs.
type Status = fn(offset: u64, len: u32) -> Vec<(u32, u32)>;

/// Serves one connection after another, each with the next size, until all sizes are used.
fn serve(sizes: &[u64], status: Status) -> (String, tempfile::TempDir, std::thread::JoinHandle<()>) {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let listener = UnixListener::bind(&socket).unwrap();
    let sizes = sizes.to_vec();
    let server = std::thread::spawn(move || {
        for size in sizes {
            let (mut stream, _) = listener.accept().unwrap();
            // An error ends the conversation: the client has left.
            let _ = converse(&mut stream, size, status);
        }
    });
    (format!("nbd+unix:///?socket={}", socket.display()), dir, server)
}

fn option_reply(option: u32, kind: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = 0x0003_e889_0455_65a9u64.to_be_bytes().to_vec();
    out.extend(option.to_be_bytes());
    out.extend(kind.to_be_bytes());
    out.extend((payload.len() as u32).to_be_bytes());
    out.extend(payload);
    out
}

/// Handshake of the server; returns the negotiated contexts.
fn greet(stream: &mut UnixStream, size: u64) -> std::io::Result<Vec<u32>> {
    stream.write_all(b"NBDMAGICIHAVEOPT\0\x03")?;
    stream.read_exact(&mut [0; 4])?;
    let mut contexts = Vec::new();
    loop {
        let mut header = [0; 16];
        stream.read_exact(&mut header)?;
        let word = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().unwrap());
        let option = word(8);
        let mut asked = vec![0; word(12) as usize];
        stream.read_exact(&mut asked)?;
        let mut reply = Vec::new();
        for (id, name) in [(7u32, &b"base:allocation"[..]), (8, b"qemu:dirty-bitmap:b")] {
            if option == 10 && asked.windows(name.len()).any(|words| words == name) {
                contexts.push(id);
                reply.extend(option_reply(option, 4, &[&id.to_be_bytes()[..], name].concat()));
            }
        }
        if option == 7 {
            let info = [&[0; 2][..], &size.to_be_bytes(), &3u16.to_be_bytes()].concat();
            reply.extend(option_reply(option, 3, &info));
        }
        reply.extend(option_reply(option, 1, &[]));
        stream.write_all(&reply)?;
        if option == 7 {
            return Ok(contexts);
        }
    }
}

fn converse(stream: &mut UnixStream, size: u64, status: Status) -> std::io::Result<()> {
    let contexts = greet(stream, size)?;
    loop {
        let mut request = [0; 28];
        stream.read_exact(&mut request)?;
        let cookie = &request[8..16];
        let offset = u64::from_be_bytes(request[16..24].try_into().unwrap());
        let len = u32::from_be_bytes(request[24..28].try_into().unwrap());
        let chunk = |done: u16, kind: u16, payload: &[u8]| {
            let mut chunk = 0x668e_33efu32.to_be_bytes().to_vec();
            chunk.extend(done.to_be_bytes());
            chunk.extend(kind.to_be_bytes());
            chunk.extend(cookie);
            chunk.extend((payload.len() as u32).to_be_bytes());
            chunk.extend(payload);
            chunk
        };
        let reply = match request[7] {
            0 => chunk(1, 1, &[&offset.to_be_bytes()[..], &vec![0; len as usize]].concat()),
            7 => {
                let extents = status(offset, len);
                let pairs = extents
                    .iter()
                    .flat_map(|(len, flags)| [len.to_be_bytes(), flags.to_be_bytes()])
                    .collect::<Vec<_>>()
                    .concat();
                let mut reply = Vec::new();
                for (at, context) in contexts.iter().enumerate() {
                    let done = u16::from(at + 1 == contexts.len());
                    reply.extend(chunk(done, 5, &[&context.to_be_bytes()[..], &pairs].concat()));
                }
                reply
            }
            _ => return Ok(()),
        };
        stream.write_all(&reply)?;
    }
}

/// Symptom: an export that was truncated during the read was backed up with zeros in place of its end, with
/// exit code 0.
/// Cause: a server reports the size from the start of a connection, and its missing end as a hole.
/// Fix: the size is requested again on a new connection.
#[test]
fn an_export_that_shrinks_or_grows_is_an_error_and_one_that_is_gone_is_not() {
    let all_hole: Status = |_, len| vec![(len, 3)];
    let look = |sizes: &[u64]| {
        let (uri, _dir, server) = serve(sizes, all_hole);
        let source = NbdSource::connect(&uri, &[], ReadMode::Still).unwrap();
        assert_eq!(source.extent_at(0).unwrap().kind, ExtentKind::Zero);
        let looked = source.confirm();
        drop(source);
        server.join().unwrap();
        looked
    };
    assert!(matches!(look(&[64 << 20, 64 << 20]), Ok(None)));
    assert!(matches!(look(&[64 << 20]), Ok(None)));
    for size in [32 << 20, 65 << 20, 0] {
        let error = look(&[64 << 20, size]).unwrap_err();
        assert!(matches!(error, SourceError::Changed { .. }), "{error}");
        assert!(error.to_string().contains(&format!("from 67108864 to {size} bytes")), "{error}");
    }
}

/// Symptom: a server that split its map into single bytes made one map request take 338 MiB.
/// Cause: all extents of a GiB were kept as the server had split them.
/// Fix: short holes are data, adjacent extents are merged on arrival, and a reply has a bounded number of
/// extents.
#[test]
fn a_map_of_single_bytes_is_remembered_within_bounds() {
    // Holes of one byte, and holes of the smallest length that counts, each followed by as much data.
    for hole in [1, 4096] {
        let (uri, _dir, server) = serve(
            &[16 << 30],
            if hole == 1 {
                |_, _| [(1, 0), (1, 3)].repeat(65_000)
            } else {
                |_, _| [(4096, 0), (4096, 3)].repeat(65_000)
            },
        );
        let source = NbdSource::connect(&uri, &[], ReadMode::Still).unwrap();
        let extent = source.extent_at(0).unwrap();
        assert_eq!((extent.offset, extent.kind), (0, ExtentKind::Data));
        {
            let known = source.known.lock();
            assert_eq!(known.len(), if hole == 1 { 1 } else { MAP_EXTENTS });
            assert!(known.capacity() <= 2 * MAP_EXTENTS);
        }
        // The map past the bound is requested where the last reply ended.
        let next = source.extent_at(extent.end()).unwrap();
        assert!(next.offset <= extent.end() && next.end() > extent.end());
        drop(source);
        server.join().unwrap();
    }
}

/// As above, for the map of a dirty bitmap, which is read in full.
#[test]
fn a_bitmap_of_many_runs_is_merged_and_counts_its_dirty_bytes() {
    let status: Status = |offset, len| {
        let pairs = [(512, 1), (512, 0)].repeat(60_000);
        let whole = u64::from(len) / 1024;
        let pairs = if whole < 60_000 { pairs[..2 * whole as usize].to_vec() } else { pairs };
        assert!(offset.is_multiple_of(1024));
        pairs
    };
    let size = 1 << 30;
    let (uri, _dir, server) = serve(&[size], status);
    let source = NbdSource::connect(&uri, &["b", "none"], ReadMode::Clusters).unwrap();
    assert!(source.has_bitmap("b") && !source.has_bitmap("none"));
    let changed = source.changed("b").unwrap();
    let bitmap = changed.bitmap.unwrap();
    assert_eq!((bitmap.name.as_str(), bitmap.dirty_bytes), ("b", size / 2));
    assert_eq!(changed.size_bytes, size);
    assert_eq!(changed.extents.first().map(|extent| extent.offset), Some(0));
    let end = changed.extents.last().map(|extent| extent.offset + extent.length);
    assert_eq!(end, Some(size - 512));
    assert!(changed.extents.len() < 1 << 18, "{}", changed.extents.len());
    drop(source);
    server.join().unwrap();
}

/// Requests that a server has received: kind, offset, length, and the number of unanswered requests that
/// overlap it.
type SeenRequests = Vec<(u8, u64, u32, usize)>;

/// An export that answers only once several requests wait, the last one first. It refuses reads after
/// `refuses_after` replies.
fn late_server(
    size: u64,
    refuses_after: usize,
) -> (String, tempfile::TempDir, std::thread::JoinHandle<SeenRequests>) {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let listener = UnixListener::bind(&socket).unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        greet(&mut stream, size).unwrap();
        let (mut seen, mut waiting, mut answered) = (SeenRequests::new(), Vec::new(), 0);
        loop {
            let mut request = [0; 28];
            let wait = match waiting.is_empty() {
                true => None,
                // No further request comes before a reply.
                false => Some(Duration::from_millis(20)),
            };
            stream.set_read_timeout(wait).unwrap();
            match stream.read_exact(&mut request) {
                Ok(()) if request[7] == 2 => return seen,
                Ok(()) => {
                    let offset = u64::from_be_bytes(request[16..24].try_into().unwrap());
                    let len = u32::from_be_bytes(request[24..28].try_into().unwrap());
                    let overlaps = |(_, other, length): &&([u8; 8], u64, u32)| {
                        *other < offset + u64::from(len) && offset < other + u64::from(*length)
                    };
                    let overlapping = waiting.iter().filter(overlaps).count();
                    seen.push((request[7], offset, len, overlapping));
                    waiting.push((request[8..16].try_into().unwrap(), offset, len));
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    while let Some((cookie, offset, len)) = waiting.pop() {
                        answered += 1;
                        let (kind, payload) = match answered > refuses_after {
                            false => (1u16, [&offset.to_be_bytes()[..], &vec![7; len as usize]].concat()),
                            true => (0x8001, [&22u32.to_be_bytes()[..], &0u16.to_be_bytes()].concat()),
                        };
                        let mut reply = 0x668e_33efu32.to_be_bytes().to_vec();
                        reply.extend([0, 1]);
                        reply.extend(kind.to_be_bytes());
                        reply.extend(cookie);
                        reply.extend((payload.len() as u32).to_be_bytes());
                        stream.write_all(&[reply, payload].concat()).unwrap();
                    }
                }
                Err(_) => return seen,
            }
        }
    });
    (format!("nbd+unix:///?socket={}", socket.display()), dir, server)
}

/// Symptom: a live backup stored zeros for blocks that the guest zeroed or trimmed meanwhile, with exit code
/// 0, and `verify` found no damage.
/// Cause: QEMU before 8.0 reports the holes of the present disk, and reads the present disk if a request ends
/// past a copied cluster.
/// Fix: no map is requested there, and each read stays within one cluster. No two reads overlap, since QEMU
/// aborts on that.
#[test]
fn a_point_in_time_is_read_cluster_by_cluster_and_never_twice_at_once() {
    const CLUSTER: u64 = CLUSTER_BYTES as u64;
    let (uri, _dir, server) = late_server(40 * CLUSTER, usize::MAX);
    let source = NbdSource::connect(&uri, &["b"], ReadMode::Clusters).unwrap();
    let extent = source.extent_at(0).unwrap();
    assert_eq!((extent.kind, extent.length), (ExtentKind::Data, 40 * CLUSTER));
    // Several readers with overlapping, unaligned ranges.
    std::thread::scope(|scope| {
        for start in [0, 100, 3 * CLUSTER + 4096, 512] {
            let source = &source;
            scope.spawn(move || {
                let mut bytes = vec![0; 9 * CLUSTER as usize];
                assert_eq!(source.read_at(start, &mut bytes).unwrap(), bytes.len());
                assert!(bytes.iter().all(|byte| *byte == 7));
            });
        }
    });
    drop(source);
    let seen = server.join().unwrap();
    let in_one = |(_, offset, len, _): &&(u8, u64, u32, usize)| {
        offset / CLUSTER == (offset + u64::from(*len) - 1) / CLUSTER
    };
    assert_eq!(seen.iter().filter(in_one).count(), seen.len(), "{seen:?}");
    assert!(seen.iter().all(|(kind, _, _, overlapping)| (*kind, *overlapping) == (0, 0)), "{seen:?}");
    assert_eq!(seen.len(), 9 + 3 * 10);
}

/// Symptom: a point in time that QEMU gave up after the last read was published.
/// Cause: a read may succeed although the point in time breaks during it.
/// Fix: after the last read of all disks one more read must succeed.
#[test]
fn a_point_in_time_that_breaks_behind_the_last_read_is_no_snapshot() {
    let (uri, _dir, server) = late_server(8 << 20, 16);
    let source = NbdSource::connect(&uri, &[], ReadMode::Clusters).unwrap();
    let is_refused = source.refusals();
    assert_eq!(source.read_at(0, &mut vec![0; 16 << 16]).unwrap(), 16 << 16);
    assert!(!is_refused.load(Ordering::Acquire));
    assert!(source.confirm().is_err() && is_refused.load(Ordering::Acquire));
    drop(source);
    assert_eq!(server.join().unwrap().len(), 17);
}
