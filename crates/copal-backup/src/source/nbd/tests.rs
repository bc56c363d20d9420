//! Exports of a server that says what a test wants it to.

use super::*;
use std::{
    io::{Read, Write},
    os::unix::net::{UnixListener, UnixStream},
};

/// Status of a range: (length, flags) pairs.
type Status = fn(offset: u64, len: u32) -> Vec<(u32, u32)>;

/// Serves one connection after the other, each an export of the next size, until all sizes were told.
fn serve(sizes: &[u64], status: Status) -> (String, tempfile::TempDir, std::thread::JoinHandle<()>) {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let listener = UnixListener::bind(&socket).unwrap();
    let sizes = sizes.to_vec();
    let server = std::thread::spawn(move || {
        for size in sizes {
            let (mut stream, _) = listener.accept().unwrap();
            // A client that left is what ends a conversation.
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

fn converse(stream: &mut UnixStream, size: u64, status: Status) -> std::io::Result<()> {
    stream.write_all(b"NBDMAGICIHAVEOPT\0\x03")?;
    stream.read_exact(&mut [0; 4])?;
    loop {
        let mut header = [0; 16];
        stream.read_exact(&mut header)?;
        let word = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().unwrap());
        let option = word(8);
        stream.read_exact(&mut vec![0; word(12) as usize])?;
        let mut reply = Vec::new();
        if option == 10 {
            let context = [&7u32.to_be_bytes()[..], b"base:allocation"].concat();
            reply.extend(option_reply(option, 4, &context));
            let bitmap = [&8u32.to_be_bytes()[..], b"qemu:dirty-bitmap:b"].concat();
            reply.extend(option_reply(option, 4, &bitmap));
        }
        if option == 7 {
            let info = [&[0; 2][..], &size.to_be_bytes(), &3u16.to_be_bytes()].concat();
            reply.extend(option_reply(option, 3, &info));
        }
        reply.extend(option_reply(option, 1, &[]));
        stream.write_all(&reply)?;
        if option == 7 {
            break;
        }
    }
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
            0 => chunk(
                1,
                1,
                &[&offset.to_be_bytes()[..], &vec![0; len as usize]].concat(),
            ),
            7 => {
                let extents = status(offset, len);
                let pairs = extents
                    .iter()
                    .flat_map(|(len, flags)| [len.to_be_bytes(), flags.to_be_bytes()]);
                let pairs = pairs.collect::<Vec<_>>().concat();
                let of = |context: u32| [&context.to_be_bytes()[..], &pairs].concat();
                [chunk(0, 5, &of(7)), chunk(1, 5, &of(8))].concat()
            }
            _ => return Ok(()),
        };
        stream.write_all(&reply)?;
    }
}

/// Symptom: an export that lost its end while it was read was backed up with zeros for the rest, exit code 0.
/// Cause: a server answers about the size it had when we came, and what it no longer has is a hole to it.
/// Fix: the size is asked for once more, on a new connection.
#[test]
fn an_export_that_shrinks_or_grows_is_an_error_and_one_that_is_gone_is_not() {
    let all_hole: Status = |_, len| vec![(len, 3)];
    let look = |sizes: &[u64]| {
        let (uri, _dir, server) = serve(sizes, all_hole);
        let source = NbdSource::connect(&uri, None).unwrap();
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
        assert!(
            error
                .to_string()
                .contains(&format!("from 67108864 to {size} bytes")),
            "{error}"
        );
    }
}
