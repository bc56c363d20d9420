//! Wire format: constants, encoders and decoders of the protocol.
//!
//! Format: the NBD project's `doc/proto.md`. All integers are big-endian.
//! Pure: slices in, values out, no I/O. A decoder gets exactly the bytes of its message.
//! Not here: the order of messages (`handshake`, `receiver`).

use crate::NbdError;

/// Limits that no peer can change.
pub mod limits {
    /// Longest read that is requested, in bytes; servers must accept it unless they announce less.
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
    /// Maximum number of requests in flight; a further one waits.
    pub const IN_FLIGHT: usize = 64;
    /// Longest write that is sent, and longest request that is accepted, in bytes.
    pub const REQUEST_BYTES: u32 = 32 << 20;
}

/// Metadata context that reports holes and zeroes.
pub const BASE_ALLOCATION: &str = "base:allocation";
/// Flag of `base:allocation`: nothing is allocated here.
pub const STATE_HOLE: u32 = 1;
/// Flag of `base:allocation`: reads as zeroes.
pub const STATE_ZERO: u32 = 2;
/// Flag of `qemu:dirty-bitmap:*` and `copal:diff:*`: changed since the bitmap, or that snapshot, was made.
pub const STATE_DIRTY: u32 = 1;

/// Bits of the transmission flags of an export.
pub mod export_flags {
    /// The other bits are valid.
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
    /// Select an export and start, without a reply on errors.
    ExportName = 1,
    /// End the handshake.
    Abort = 2,
    /// List the exports.
    List = 3,
    /// Start TLS.
    StartTls = 5,
    /// Describe an export.
    Info = 6,
    /// Describe an export and start.
    Go = 7,
    /// Replies in chunks.
    StructuredReply = 8,
    /// List metadata contexts.
    ListMetaContext = 9,
    /// Select metadata contexts.
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
pub enum RequestKind {
    /// Read bytes.
    Read = 0,
    /// Write bytes.
    Write = 1,
    /// End the connection.
    Disconnect = 2,
    /// Make completed writes durable.
    Flush = 3,
    /// Discard a range.
    Trim = 4,
    /// Zero a range.
    WriteZeroes = 6,
    /// Extents of the selected metadata contexts.
    BlockStatus = 7,
}

/// Request flag: durable before the reply.
pub(crate) const REQUEST_FUA: u16 = 1;
/// Flag of WRITE_ZEROES: do not punch a hole.
pub(crate) const REQUEST_NO_HOLE: u16 = 2;
/// Flag of BLOCK_STATUS: return one extent only.
pub(crate) const REQUEST_ONE: u16 = 8;

pub(crate) const CHUNK_DONE: u16 = 1;
pub(crate) const CHUNK_NONE: u16 = 0;
pub(crate) const CHUNK_OFFSET_DATA: u16 = 1;
pub(crate) const CHUNK_OFFSET_HOLE: u16 = 2;
pub(crate) const CHUNK_BLOCK_STATUS: u16 = 5;
pub(crate) const CHUNK_ERROR: u16 = 0x8001;
pub(crate) const CHUNK_ERROR_OFFSET: u16 = 0x8002;

/// Takes big-endian integers off the front of a slice; a short slice is a protocol error.
pub(crate) struct FieldReader<'a> {
    rest: &'a [u8],
}

impl<'a> FieldReader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> FieldReader<'a> {
        FieldReader { rest: bytes }
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

/// Encodes an option of the handshake.
pub fn encode_option(option: OptionKind, data: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(16 + data.len());
    out.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
    out.extend_from_slice(&(option as u32).to_be_bytes());
    out.extend_from_slice(&(data.len() as u32).to_be_bytes());
    out.extend_from_slice(data);
    out
}

/// Encodes the data of `INFO` and `GO`: the name of the export and a request for its block sizes.
pub fn encode_info_request(export: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(8 + export.len());
    out.extend_from_slice(&(export.len() as u32).to_be_bytes());
    out.extend_from_slice(export.as_bytes());
    out.extend_from_slice(&1u16.to_be_bytes());
    out.extend_from_slice(&INFO_BLOCK_SIZE.to_be_bytes());
    out
}

/// Encodes the data of `LIST_META_CONTEXT` and `SET_META_CONTEXT`.
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

/// Encodes a request of the transmission phase, 28 bytes.
pub fn encode_request(command: RequestKind, cookie: u64, offset: u64, len: u32) -> [u8; 28] {
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
    /// Number of the option that is answered.
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
    let mut cursor = FieldReader::new(bytes);
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
    /// Cookie of the request.
    pub cookie: u64,
    /// Length of the payload; checked against the request by the receiver.
    pub len: u32,
}

/// Decodes the 16 bytes after the magic number of a structured reply.
///
/// # Errors
/// `Protocol`: unknown flags.
pub fn decode_chunk_header(bytes: &[u8; 16]) -> Result<ChunkHeader, NbdError> {
    let mut cursor = FieldReader::new(bytes);
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

/// Decodes the payload of a block status chunk: the context and its (length, flags) pairs. Adjacent extents
/// with equal flags are merged.
///
/// # Errors
/// `Protocol`: the payload is not one context and at least one complete extent, or an extent is empty.
pub fn decode_block_status(payload: &[u8]) -> Result<(u32, Vec<(u32, u32)>), NbdError> {
    let mut cursor = FieldReader::new(payload);
    let context = cursor.u32()?;
    let pairs = cursor.rest();
    if pairs.is_empty() || !pairs.len().is_multiple_of(8) {
        return Err(NbdError::protocol("a block status is not a whole number of extents"));
    }
    let mut extents: Vec<(u32, u32)> = Vec::new();
    for pair in pairs.chunks_exact(8) {
        let mut cursor = FieldReader::new(pair);
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

/// Decodes the payload of an error chunk: error number and message of the server.
///
/// # Errors
/// `Protocol`: shorter than its fields, or error number 0.
pub fn decode_error_chunk(payload: &[u8]) -> Result<(u32, String), NbdError> {
    let mut cursor = FieldReader::new(payload);
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
