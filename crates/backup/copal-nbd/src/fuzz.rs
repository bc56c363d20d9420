//! Decoders of NBD messages of servers and clients, by name: for the fuzz targets, and a short run of each
//! here.
//!
//! Built for tests and fuzzing only.

use crate::{
    Uri,
    assembly::ReadAssembly,
    handshake,
    receiver::{self, RequestBody, RequestTable, WireRequest},
    server::{self, DiskError, DiskExports, ExportDisk, StatusRun},
    wire::{self, limits},
};
use std::{
    io::{self, Read, Write},
    sync::{Arc, mpsc::sync_channel},
    time::Duration,
};

/// Decodes any bytes, discards the result, and must not panic.
pub type Decoder = fn(&[u8]);

/// Names and decoders.
pub const DECODERS: &[(&str, Decoder)] = &[
    ("option reply", |bytes| {
        let _ = bytes.first_chunk().map(wire::decode_option_reply);
    }),
    ("chunk header", |bytes| {
        let _ = bytes.first_chunk().map(wire::decode_chunk_header);
    }),
    ("block status", |bytes| {
        let _ = wire::decode_block_status(bytes);
    }),
    ("error chunk", |bytes| {
        let _ = wire::decode_error_chunk(bytes);
    }),
    ("handshake", |bytes| {
        let _ = handshake::negotiate(&mut FuzzServer::new(bytes), "disk", &["base:allocation"], true);
    }),
    ("contexts", |bytes| {
        let _ = handshake::list_contexts(&mut FuzzServer::new(bytes), "disk", &[]);
    }),
    ("replies", |bytes| receive_all(bytes)),
    ("replies behind their magic", |bytes| receive_all(&chunks(bytes))),
    ("client's handshake", |bytes| serve(bytes)),
    ("client's requests", |bytes| {
        let mut words = vec![0, 0, 0, 3];
        words.extend(wire::encode_option(wire::OptionKind::StructuredReply, &[]));
        let contexts = wire::encode_meta_context_request("disk", &["base:allocation"]);
        words.extend(wire::encode_option(wire::OptionKind::SetMetaContext, &contexts));
        let go = wire::encode_info_request("disk");
        words.extend(wire::encode_option(wire::OptionKind::Go, &go));
        for request in bytes.chunks(16) {
            words.extend(wire::REQUEST_MAGIC.to_be_bytes());
            words.extend(request);
            words.resize(words.len() + 24 - request.len(), 0);
        }
        serve(&words);
    }),
    ("address", |bytes| {
        let text = String::from_utf8_lossy(bytes);
        let _ = Uri::parse(&text);
        let _ = Uri::parse(&format!("nbd://{text}"));
        let _ = Uri::parse(&format!("nbd+unix:///{text}?socket={text}"));
    }),
];

/// A server that greets and answers each option; kind and payload of the replies come from the input.
struct FuzzServer<'a> {
    input: &'a [u8],
    /// Bytes ready to be read.
    said: Vec<u8>,
    at: usize,
    option: [u8; 4],
}

impl FuzzServer<'_> {
    fn new(input: &[u8]) -> FuzzServer<'_> {
        let mut said = Vec::new();
        said.extend_from_slice(&wire::NBD_MAGIC.to_be_bytes());
        said.extend_from_slice(&wire::OPTION_MAGIC.to_be_bytes());
        said.extend_from_slice(&wire::FLAG_FIXED_NEWSTYLE.to_be_bytes());
        FuzzServer { input, said, at: 0, option: [0; 4] }
    }

    fn reply(&mut self) {
        const KINDS: [u32; 6] = [
            wire::REPLY_ACK,
            wire::REPLY_SERVER,
            wire::REPLY_INFO,
            wire::REPLY_META_CONTEXT,
            wire::REPLY_ERR_UNSUP,
            wire::REPLY_ERROR_BIT,
        ];
        let Some(([kind, len], rest)) = self.input.split_first_chunk() else {
            return;
        };
        let (payload, rest) = rest.split_at(usize::from(*len).min(rest.len()));
        self.input = rest;
        self.at = 0;
        self.said.clear();
        self.said.extend_from_slice(&wire::OPTION_REPLY_MAGIC.to_be_bytes());
        self.said.extend_from_slice(&self.option);
        let kind = KINDS[usize::from(*kind) % KINDS.len()];
        self.said.extend_from_slice(&kind.to_be_bytes());
        self.said.extend_from_slice(&(payload.len() as u32).to_be_bytes());
        self.said.extend_from_slice(payload);
    }
}

impl Read for FuzzServer<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.at == self.said.len() {
            self.reply();
        }
        let len = (&self.said[self.at..]).read(buf)?;
        self.at += len;
        Ok(len)
    }
}

impl Write for FuzzServer<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(option) = bytes.get(8..12) {
            self.option.copy_from_slice(option);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A disk of zeroes that accepts every request.
struct ZeroDisk;

impl ExportDisk for ZeroDisk {
    fn size_bytes(&self) -> u64 {
        1 << 16
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
    fn zero(&self, _: u64, _: u64) -> Result<(), DiskError> {
        Ok(())
    }
    fn run_at(&self, _: &str, offset: u64, len: u64) -> Result<StatusRun, DiskError> {
        let flags = (offset >> 12) as u32 & 1;
        Ok(StatusRun { len, flags })
    }
}

impl DiskExports for ZeroDisk {
    fn names(&self) -> Vec<String> {
        vec!["disk".to_owned()]
    }
    fn find(&self, name: &str) -> Option<Arc<dyn ExportDisk>> {
        (name == "disk").then(|| Arc::new(ZeroDisk) as Arc<dyn ExportDisk>)
    }
}

/// A client with fixed input that discards all replies.
struct FixedClient<'a>(&'a [u8]);

impl Read for FixedClient<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read(buf)
    }
}

impl server::ReceiveHalf for FixedClient<'_> {
    fn set_pause(&mut self, _: Option<Duration>) -> io::Result<()> {
        Ok(())
    }
}

impl Write for FixedClient<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn serve(bytes: &[u8]) {
    let _ = server::serve_halves(FixedClient(bytes), io::sink(), &ZeroDisk);
}

/// Structured reply chunks; flag, kind, cookie, length and payload come from the input.
fn chunks(mut bytes: &[u8]) -> Vec<u8> {
    const KINDS: [u16; 7] = [
        wire::CHUNK_NONE,
        wire::CHUNK_OFFSET_DATA,
        wire::CHUNK_OFFSET_HOLE,
        wire::CHUNK_BLOCK_STATUS,
        wire::CHUNK_ERROR,
        wire::CHUNK_ERROR_OFFSET,
        0x8007,
    ];
    let mut out = Vec::new();
    while let Some(([done, kind, cookie, len], rest)) = bytes.split_first_chunk() {
        let (payload, rest) = rest.split_at(usize::from(*len).min(rest.len()));
        bytes = rest;
        out.extend_from_slice(&wire::STRUCTURED_REPLY_MAGIC.to_be_bytes());
        out.extend_from_slice(&u16::from(done & 1).to_be_bytes());
        out.extend_from_slice(&KINDS[usize::from(*kind) % KINDS.len()].to_be_bytes());
        out.extend_from_slice(&u64::from(cookie % 4).to_be_bytes());
        out.extend_from_slice(&(payload.len() as u32).to_be_bytes());
        out.extend_from_slice(payload);
    }
    out
}

/// Receives the input with two reads and a block status in flight.
fn receive_all(bytes: &[u8]) {
    for structured in [false, true] {
        let table = RequestTable::default();
        let (reads, _read) = sync_channel(2);
        let (statuses, _status) = sync_channel(1);
        let read =
            |offset| RequestBody::Read { assembly: ReadAssembly::new(offset, 16), answer: reads.clone() };
        let status = RequestBody::Status {
            offset: 0,
            len: limits::READ_BYTES,
            contexts: [0, 1, 2].into(),
            found: Vec::new(),
            answer: statuses,
        };
        for (cookie, body) in [read(0), read(1 << 40), status].into_iter().enumerate() {
            let pending = WireRequest { body, failed: None };
            table.state.lock().pending.insert(cookie as u64, pending);
        }
        receiver::run(bytes, &table, structured);
        assert!(table.state.lock().pending.is_empty(), "every request was completed");
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn no_decoder_panics_on_any_bytes() {
        copal_testkit::decoders_survive(super::DECODERS, 4000);
    }
}
