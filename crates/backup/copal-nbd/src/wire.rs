//! Bytes of the protocol: constants, encoders of what a client sends, decoders of what it reads.
//!
//! Format: the NBD project's `doc/proto.md`. All integers are big-endian.
//! Pure: no I/O here, slices in and values out. A decoder gets exactly the bytes of its message.
//! Not here: which message may follow which (`handshake`, `receive`).

use crate::NbdError;

/// Bounds that no peer can move.
pub mod limits {
    /// Longest read we ask for, in bytes; servers must take this much unless they say otherwise.
    pub const READ_BYTES: u32 = 32 << 20;
    /// Longest name of an export or a metadata context, in bytes.
    pub const STRING_BYTES: usize = 4096;
    /// Longest payload of one reply of the handshake, in bytes.
    pub const OPTION_REPLY_BYTES: u32 = 16 << 10;
    /// Most replies to one option.
    pub const OPTION_REPLIES: usize = 1024;
    /// Longest payload of one block status chunk, in bytes (131,071 extents).
    pub const STATUS_BYTES: u32 = 1 << 20;
    /// Longest payload of an error chunk, in bytes.
    pub const ERROR_BYTES: u32 = 4096 + 16;
    /// Most chunks that answer one request.
    pub const CHUNKS: u32 = 1 << 16;
    /// Most requests on the wire at once; another one waits.
    pub const IN_FLIGHT: usize = 64;
    /// Longest write that is sent, and longest request that is taken, in bytes.
    pub const REQUEST_BYTES: u32 = 32 << 20;
}

/// Metadata context that tells holes and zeroes from data.
pub const BASE_ALLOCATION: &str = "base:allocation";
/// Flag of `base:allocation`: nothing is allocated here.
pub const STATE_HOLE: u32 = 1;
/// Flag of `base:allocation`: reads as zeroes.
pub const STATE_ZERO: u32 = 2;
/// Flag of `qemu:dirty-bitmap:*` and `copal:diff:*`: changed since the bitmap, or that snapshot, was made.
pub const STATE_DIRTY: u32 = 1;

/// Bits of the transmission flags of an export.
pub mod export_flags {
    /// The other bits mean something.
    pub const HAS_FLAGS: u16 = 1;
    /// Writes are refused.
    pub const READ_ONLY: u16 = 2;
    /// FLUSH is understood.
    pub const SEND_FLUSH: u16 = 4;
    /// The flag FUA of a write is understood.
    pub const SEND_FUA: u16 = 8;
    /// TRIM is understood.
    pub const SEND_TRIM: u16 = 32;
    /// WRITE_ZEROES is understood.
    pub const SEND_WRITE_ZEROES: u16 = 64;
    /// Several connections see the same bytes, and a flush on one is a flush of all.
    pub const MULTI_CONN: u16 = 256;
}

pub(crate) const NBD_MAGIC: u64 = 0x4e42_444d_4147_4943;
pub(crate) const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
pub(crate) const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
pub(crate) const REQUEST_MAGIC: u32 = 0x2560_9513;
pub(crate) const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
pub(crate) const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

pub(crate) const FLAG_FIXED_NEWSTYLE: u16 = 1;
pub(crate) const FLAG_NO_ZEROES: u16 = 2;

/// Options of the handshake, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum OptionKind {
    /// Start, the old way.
    ExportName = 1,
    /// Leave.
    Abort = 2,
    /// Names of the exports.
    List = 3,
    /// Go on in secret.
    StartTls = 5,
    /// Describe an export.
    Info = 6,
    /// Describe an export and start.
    Go = 7,
    /// Replies in chunks.
    StructuredReply = 8,
    /// Which metadata contexts exist.
    ListMetaContext = 9,
    /// Which metadata contexts we will ask for.
    SetMetaContext = 10,
}

impl OptionKind {
    /// Name for messages.
    pub fn name(self) -> &'static str {
        match self {
            OptionKind::ExportName => "EXPORT_NAME",
            OptionKind::StartTls => "STARTTLS",
            OptionKind::Abort => "ABORT",
            OptionKind::List => "LIST",
            OptionKind::Info => "INFO",
            OptionKind::Go => "GO",
            OptionKind::StructuredReply => "STRUCTURED_REPLY",
            OptionKind::ListMetaContext => "LIST_META_CONTEXT",
            OptionKind::SetMetaContext => "SET_META_CONTEXT",
        }
    }
}

pub(crate) const REPLY_ACK: u32 = 1;
pub(crate) const REPLY_SERVER: u32 = 2;
pub(crate) const REPLY_INFO: u32 = 3;
pub(crate) const REPLY_META_CONTEXT: u32 = 4;
pub(crate) const REPLY_ERROR_BIT: u32 = 0x8000_0000;
pub(crate) const REPLY_ERR_UNSUP: u32 = 0x8000_0001;
pub(crate) const REPLY_ERR_INVALID: u32 = 0x8000_0003;
pub(crate) const REPLY_ERR_UNKNOWN: u32 = 0x8000_0006;
pub(crate) const REPLY_ERR_TOO_BIG: u32 = 0x8000_0009;

pub(crate) const INFO_EXPORT: u16 = 0;
pub(crate) const INFO_BLOCK_SIZE: u16 = 3;

/// Requests after the handshake, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Command {
    /// Bytes of the export.
    Read = 0,
    /// New bytes for it.
    Write = 1,
    /// Good-bye.
    Disconnect = 2,
    /// Makes durable what was written.
    Flush = 3,
    /// A range nobody needs any more.
    Trim = 4,
    /// Makes a range zero.
    WriteZeroes = 6,
    /// Extents of the metadata contexts chosen in the handshake.
    BlockStatus = 7,
}

/// Flag of a request: durable before it is answered.
pub(crate) const REQUEST_FUA: u16 = 1;
/// Flag of WRITE_ZEROES: no hole.
pub(crate) const REQUEST_NO_HOLE: u16 = 2;
/// Flag of BLOCK_STATUS: one extent is enough.
pub(crate) const REQUEST_ONE: u16 = 8;

pub(crate) const CHUNK_DONE: u16 = 1;
pub(crate) const CHUNK_NONE: u16 = 0;
pub(crate) const CHUNK_OFFSET_DATA: u16 = 1;
pub(crate) const CHUNK_OFFSET_HOLE: u16 = 2;
pub(crate) const CHUNK_BLOCK_STATUS: u16 = 5;
pub(crate) const CHUNK_ERROR: u16 = 0x8001;
pub(crate) const CHUNK_ERROR_OFFSET: u16 = 0x8002;

/// Takes big-endian integers off the front of a slice; a short slice is a protocol error.
pub(crate) struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Cursor<'a> {
        Cursor { rest: bytes }
    }
    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8], NbdError> {
        if len > self.rest.len() {
            return Err(NbdError::protocol("a message is shorter than its fields"));
        }
        let (head, tail) = self.rest.split_at(len);
        self.rest = tail;
        Ok(head)
    }
    fn array<const N: usize>(&mut self) -> Result<[u8; N], NbdError> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N)?);
        Ok(out)
    }
    pub(crate) fn u16(&mut self) -> Result<u16, NbdError> {
        Ok(u16::from_be_bytes(self.array()?))
    }
    pub(crate) fn u32(&mut self) -> Result<u32, NbdError> {
        Ok(u32::from_be_bytes(self.array()?))
    }
    pub(crate) fn u64(&mut self) -> Result<u64, NbdError> {
        Ok(u64::from_be_bytes(self.array()?))
    }
    pub(crate) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }
    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }
}

/// An option of the handshake, ready to send.
pub fn encode_option(option: OptionKind, data: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(16 + data.len());
    out.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
    out.extend_from_slice(&(option as u32).to_be_bytes());
    out.extend_from_slice(&(data.len() as u32).to_be_bytes());
    out.extend_from_slice(data);
    out
}

/// Data of `INFO` and `GO`: the export's name, and that we want to know its block sizes.
pub fn encode_info_request(export: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(8 + export.len());
    out.extend_from_slice(&(export.len() as u32).to_be_bytes());
    out.extend_from_slice(export.as_bytes());
    out.extend_from_slice(&1u16.to_be_bytes());
    out.extend_from_slice(&INFO_BLOCK_SIZE.to_be_bytes());
    out
}

/// Data of `LIST_META_CONTEXT` and `SET_META_CONTEXT`.
pub fn encode_meta_context_request(export: &str, queries: &[&str]) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend_from_slice(&(export.len() as u32).to_be_bytes());
    out.extend_from_slice(export.as_bytes());
    out.extend_from_slice(&(queries.len() as u32).to_be_bytes());
    for query in queries {
        out.extend_from_slice(&(query.len() as u32).to_be_bytes());
        out.extend_from_slice(query.as_bytes());
    }
    out
}

/// A request of the transmission phase, 28 bytes.
pub fn encode_request(command: Command, cookie: u64, offset: u64, len: u32) -> [u8; 28] {
    let mut out = [0; 28];
    out[0..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
    out[6..8].copy_from_slice(&(command as u16).to_be_bytes());
    out[8..16].copy_from_slice(&cookie.to_be_bytes());
    out[16..24].copy_from_slice(&offset.to_be_bytes());
    out[24..28].copy_from_slice(&len.to_be_bytes());
    out
}

/// Header of one reply to an option; `len` payload bytes follow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionReply {
    /// Number of the option this answers.
    pub option: u32,
    /// Kind of reply; the top bit marks errors.
    pub kind: u32,
    /// Length of the payload, at most [`limits::OPTION_REPLY_BYTES`].
    pub len: u32,
}

/// Decodes the header of a reply to an option.
///
/// # Errors
/// `Protocol`: wrong magic, or a payload above the limit.
pub fn decode_option_reply(bytes: &[u8; 20]) -> Result<OptionReply, NbdError> {
    let mut cursor = Cursor::new(bytes);
    if cursor.u64()? != OPTION_REPLY_MAGIC {
        return Err(NbdError::protocol("a reply of the handshake does not begin with its magic number"));
    }
    let reply = OptionReply { option: cursor.u32()?, kind: cursor.u32()?, len: cursor.u32()? };
    if reply.len > limits::OPTION_REPLY_BYTES {
        return Err(NbdError::protocol(format!("a reply of the handshake claims {} bytes", reply.len)));
    }
    Ok(reply)
}

/// Header of one chunk of a structured reply; `len` payload bytes follow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkHeader {
    /// This is the last chunk of the reply.
    pub done: bool,
    /// Kind of chunk.
    pub kind: u16,
    /// The request this answers.
    pub cookie: u64,
    /// Length of the payload; checked against the request by the receiver.
    pub len: u32,
}

/// Decodes the 16 bytes after the magic number of a structured reply.
///
/// # Errors
/// `Protocol`: unknown flags.
pub fn decode_chunk_header(bytes: &[u8; 16]) -> Result<ChunkHeader, NbdError> {
    let mut cursor = Cursor::new(bytes);
    let flags = cursor.u16()?;
    if flags & !CHUNK_DONE != 0 {
        return Err(NbdError::protocol(format!("a reply has unknown flags {flags:#x}")));
    }
    Ok(ChunkHeader {
        done: flags & CHUNK_DONE != 0,
        kind: cursor.u16()?,
        cookie: cursor.u64()?,
        len: cursor.u32()?,
    })
}

/// Decodes the payload of a block status chunk: the context and its (length, flags) pairs, neighbours with
/// equal flags merged.
///
/// # Errors
/// `Protocol`: the payload is not one context and at least one whole extent, or an extent is empty.
pub fn decode_block_status(payload: &[u8]) -> Result<(u32, Vec<(u32, u32)>), NbdError> {
    let mut cursor = Cursor::new(payload);
    let context = cursor.u32()?;
    let pairs = cursor.rest();
    if pairs.is_empty() || !pairs.len().is_multiple_of(8) {
        return Err(NbdError::protocol("a block status is not a whole number of extents"));
    }
    let mut extents: Vec<(u32, u32)> = Vec::new();
    for pair in pairs.chunks_exact(8) {
        let mut cursor = Cursor::new(pair);
        let (len, flags) = (cursor.u32()?, cursor.u32()?);
        if len == 0 {
            return Err(NbdError::protocol("a block status has an empty extent"));
        }
        match extents.last_mut() {
            Some((last, same)) if *same == flags && last.checked_add(len).is_some() => *last += len,
            _ => extents.push((len, flags)),
        }
    }
    Ok((context, extents))
}

/// Decodes the payload of an error chunk: the number and the server's words.
///
/// # Errors
/// `Protocol`: shorter than its fields, or error number 0.
pub fn decode_error_chunk(payload: &[u8]) -> Result<(u32, String), NbdError> {
    let mut cursor = Cursor::new(payload);
    let errno = cursor.u32()?;
    let len = usize::from(cursor.u16()?);
    let words = cursor.take(len)?;
    if errno == 0 {
        return Err(NbdError::protocol("an error chunk carries no error"));
    }
    Ok((errno, String::from_utf8_lossy(words).into_owned()))
}

/// Name of an error reply of the handshake.
pub(crate) fn option_error_name(kind: u32) -> &'static str {
    match kind & !REPLY_ERROR_BIT {
        1 => "not supported",
        2 => "forbidden by its policy",
        3 => "invalid request",
        4 => "not supported on its platform",
        5 => "it requires TLS, which Copal does not speak",
        6 => "no export of that name",
        7 => "it is shutting down",
        8 => "it requires a block size",
        9 => "request too big",
        _ => "unknown error",
    }
}
