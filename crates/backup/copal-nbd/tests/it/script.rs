//! A scripted server: the bytes of a conversation, sent piece by piece.

use copal_nbd::{BASE_ALLOCATION, Client, ConnectOptions, NbdError, ServerAddress, Uri};
use std::{
    io::{Read, Write},
    os::unix::net::{UnixListener, UnixStream},
    time::Duration,
};

/// Bytes that a server sends, built field by field.
#[derive(Clone, Default)]
pub(crate) struct Script {
    pub(crate) bytes: Vec<u8>,
    /// Positions at which the server waits for one more request.
    pub(crate) waits: Vec<usize>,
}

impl Script {
    pub(crate) fn wait(mut self) -> Script {
        self.waits.push(self.bytes.len());
        self
    }
    pub(crate) fn u16(mut self, value: u16) -> Script {
        self.bytes.extend(value.to_be_bytes());
        self
    }
    pub(crate) fn u32(mut self, value: u32) -> Script {
        self.bytes.extend(value.to_be_bytes());
        self
    }
    pub(crate) fn u64(mut self, value: u64) -> Script {
        self.bytes.extend(value.to_be_bytes());
        self
    }
    pub(crate) fn raw(mut self, bytes: &[u8]) -> Script {
        self.bytes.extend(bytes);
        self
    }
    pub(crate) fn option_reply(self, option: u32, kind: u32, payload: &[u8]) -> Script {
        self.u64(0x0003_e889_0455_65a9).u32(option).u32(kind).u32(payload.len() as u32).raw(payload)
    }
    pub(crate) fn chunk(self, done: bool, kind: u16, cookie: u64, payload: &[u8]) -> Script {
        let header = self.u32(0x668e_33ef).u16(u16::from(done)).u16(kind).u64(cookie);
        header.u32(payload.len() as u32).raw(payload)
    }
    pub(crate) fn simple(self, errno: u32, cookie: u64, data: &[u8]) -> Script {
        self.u32(0x6744_6698).u32(errno).u64(cookie).raw(data)
    }
}

pub(crate) fn greeting() -> Script {
    Script::default().raw(b"NBDMAGICIHAVEOPT").u16(3)
}

/// A complete handshake for an export of `size` bytes with `base:allocation` as context 7.
pub(crate) fn handshake(size: u64) -> Script {
    handshake_in_blocks(size, 1)
}

/// The same for an export with block size `block`.
pub(crate) fn handshake_in_blocks(size: u64, block: u32) -> Script {
    let context = Script::default().u32(7).raw(BASE_ALLOCATION.as_bytes()).bytes;
    let info = Script::default().u16(0).u64(size).u16(3).bytes;
    let blocks = Script::default().u16(3).u32(block).u32(4096).u32(1 << 20).bytes;
    greeting()
        .option_reply(8, 1, &[])
        .option_reply(10, 4, &context)
        .option_reply(10, 1, &[])
        .option_reply(7, 3, &info)
        .option_reply(7, 3, &blocks)
        .option_reply(7, 1, &[])
        .wait()
}

/// Handshake of a server without structured replies and contexts.
pub(crate) fn plain_handshake(size: u64) -> Script {
    let info = Script::default().u16(0).u64(size).u16(3).bytes;
    greeting().option_reply(8, 0x8000_0001, b"no").option_reply(7, 3, &info).option_reply(7, 1, &[]).wait()
}

/// Runs `work` against a server that plays `script`, closes its sending half, and reads until the client
/// disconnects.
pub(crate) fn against<T>(script: &Script, work: impl FnOnce(Result<Client, NbdError>) -> T) -> T {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let listener = UnixListener::bind(&socket).unwrap();
    let script = script.clone();
    let server = std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        play(stream, &script);
    });
    let uri = Uri { address: ServerAddress::Unix(socket), export: "disk".to_owned() };
    let options = ConnectOptions { timeout: Duration::from_secs(60), ..ConnectOptions::default() };
    let result = work(Client::connect(&uri, &options));
    server.join().unwrap();
    result
}

/// Receives bytes until one more request of the transmission phase has arrived.
fn receive_request(stream: &mut UnixStream, received: &mut Vec<u8>) -> bool {
    let mut buf = [0; 512];
    loop {
        if let Some(at) = received.windows(4).position(|w: &[u8]| w == 0x2560_9513u32.to_be_bytes()) {
            received.drain(..at + 4);
            return true;
        }
        match stream.read(&mut buf) {
            Ok(n) if n > 0 => received.extend(&buf[..n]),
            _ => return false,
        }
    }
}

fn play(mut stream: UnixStream, script: &Script) {
    let mut received = Vec::new();
    let mut said = 0;
    for wait in &script.waits {
        // A client that has disconnected does not receive the rest.
        let _ = stream.write_all(&script.bytes[said..*wait]);
        said = *wait;
        if !receive_request(&mut stream, &mut received) {
            return;
        }
    }
    let _ = stream.write_all(&script.bytes[said..]);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut sink = [0; 512];
    while matches!(stream.read(&mut sink), Ok(n) if n > 0) {}
}
