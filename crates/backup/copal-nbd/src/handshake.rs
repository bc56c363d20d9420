//! Client handshake: from the server's greeting to a selected export.
//!
//! Generic over the stream, so that tests can supply bytes. Order: flags, structured replies, metadata
//! contexts, GO. Reads also work without structured replies and contexts.

use crate::{
    NbdError,
    wire::{self, FieldReader, OptionKind, export_flags, limits},
};
use std::io::{Read, Write};

/// A metadata context that was negotiated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetaContext {
    /// Number of the context on this connection.
    pub id: u32,
    /// Name of the context, such as `base:allocation`.
    pub name: String,
}

/// Description of the export by its server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportInfo {
    /// Size of the disk in bytes.
    pub size: u64,
    /// Transmission flags as sent: bits of `export_flags`.
    pub flags: u16,
    /// Requests must be multiples of this many bytes; a power of two.
    pub block_bytes: u32,
    /// Longest read or write, in bytes; a multiple of `block_bytes`.
    pub max_request_bytes: u32,
}

impl ExportInfo {
    /// Longest range of one zeroing; a multiple of every block size.
    pub const MAX_ZERO_BYTES: u32 = 1 << 30;

    fn has(&self, bit: u16) -> bool {
        self.flags & export_flags::HAS_FLAGS != 0 && self.flags & bit != 0
    }

    /// Whether the server accepts writes.
    pub fn can_write(&self) -> bool {
        !self.has(export_flags::READ_ONLY)
    }

    /// Whether the server supports flushes.
    pub fn can_flush(&self) -> bool {
        self.has(export_flags::SEND_FLUSH)
    }

    /// Whether the server can zero ranges without receiving the bytes.
    pub fn can_zero(&self) -> bool {
        self.has(export_flags::SEND_WRITE_ZEROES)
    }

    /// Whether several connections see the same bytes, and a flush on one is a flush of all.
    pub fn is_multi_conn(&self) -> bool {
        self.has(export_flags::MULTI_CONN)
    }
}

/// Outcome of a handshake.
#[derive(Clone, Debug)]
pub(crate) struct HandshakeResult {
    pub(crate) export: ExportInfo,
    pub(crate) structured: bool,
    pub(crate) contexts: Vec<MetaContext>,
}

/// One reply to an option, with its payload.
struct ReplyMessage {
    kind: u32,
    payload: Vec<u8>,
}

/// Greets the server and selects an export. Negotiates those of the `wanted` contexts that exist, which
/// requires structured replies.
pub(crate) fn negotiate<S: Read + Write>(
    stream: &mut S,
    export: &str,
    wanted: &[&str],
    chunked: bool,
) -> Result<HandshakeResult, NbdError> {
    greet(stream)?;
    if export.len() > limits::STRING_BYTES || wanted.iter().any(|w| w.len() > limits::STRING_BYTES) {
        return Err(NbdError::protocol("a name is longer than 4096 bytes"));
    }
    let structured = chunked && ask_structured(stream)?;
    let contexts =
        if structured && !wanted.is_empty() { set_contexts(stream, export, wanted)? } else { Vec::new() };
    let export = go(stream, export)?;
    Ok(HandshakeResult { export, structured, contexts })
}

/// Lists the metadata contexts that match `queries` (all of them if empty), then ends the connection.
pub(crate) fn list_contexts<S: Read + Write>(
    stream: &mut S,
    export: &str,
    queries: &[&str],
) -> Result<Vec<String>, NbdError> {
    greet(stream)?;
    let mut names = Vec::new();
    if ask_structured(stream)? {
        let data = wire::encode_meta_context_request(export, queries);
        send(stream, OptionKind::ListMetaContext, &data)?;
        names = meta_contexts(stream, OptionKind::ListMetaContext)?.into_iter().map(|c| c.name).collect();
    }
    send(stream, OptionKind::Abort, &[])?;
    Ok(names)
}

fn greet<S: Read + Write>(stream: &mut S) -> Result<(), NbdError> {
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting)?;
    let mut cursor = FieldReader::new(&greeting);
    if cursor.u64()? != wire::NBD_MAGIC {
        return Err(NbdError::protocol("its greeting is not that of an NBD server"));
    }
    if cursor.u64()? != wire::OPTION_MAGIC {
        return Err(NbdError::protocol("it speaks the oldstyle protocol, which has no named exports"));
    }
    let flags = cursor.u16()?;
    if flags & wire::FLAG_FIXED_NEWSTYLE == 0 {
        return Err(NbdError::protocol("it does not speak fixed newstyle"));
    }
    let answer = u32::from(flags & (wire::FLAG_FIXED_NEWSTYLE | wire::FLAG_NO_ZEROES));
    stream.write_all(&answer.to_be_bytes())?;
    Ok(())
}

fn send<S: Write>(stream: &mut S, option: OptionKind, data: &[u8]) -> Result<(), NbdError> {
    stream.write_all(&wire::encode_option(option, data))?;
    Ok(())
}

fn receive<S: Read>(stream: &mut S, option: OptionKind) -> Result<ReplyMessage, NbdError> {
    let mut header = [0; 20];
    stream.read_exact(&mut header)?;
    let header = wire::decode_option_reply(&header)?;
    if header.option != option as u32 {
        return Err(NbdError::protocol(format!(
            "it answered option {} instead of {}",
            header.option,
            option.name()
        )));
    }
    let mut payload = vec![0; header.len as usize];
    stream.read_exact(&mut payload)?;
    Ok(ReplyMessage { kind: header.kind, payload })
}

fn refused(option: OptionKind, reply: &ReplyMessage) -> NbdError {
    let name = wire::option_error_name(reply.kind);
    let words = String::from_utf8_lossy(&reply.payload);
    let reason = if words.is_empty() { name.to_owned() } else { format!("{name} ({words})") };
    NbdError::Refused { option: option.name(), reason }
}

fn ask_structured<S: Read + Write>(stream: &mut S) -> Result<bool, NbdError> {
    send(stream, OptionKind::StructuredReply, &[])?;
    let reply = receive(stream, OptionKind::StructuredReply)?;
    match reply.kind {
        wire::REPLY_ACK => Ok(true),
        kind if kind & wire::REPLY_ERROR_BIT != 0 => Ok(false),
        kind => Err(NbdError::protocol(format!("it answered STRUCTURED_REPLY with {kind}"))),
    }
}

fn set_contexts<S: Read + Write>(
    stream: &mut S,
    export: &str,
    wanted: &[&str],
) -> Result<Vec<MetaContext>, NbdError> {
    send(stream, OptionKind::SetMetaContext, &wire::encode_meta_context_request(export, wanted))?;
    let contexts = meta_contexts(stream, OptionKind::SetMetaContext)?;
    for (at, context) in contexts.iter().enumerate() {
        if contexts[..at].iter().any(|other| other.id == context.id || other.name == context.name) {
            return Err(NbdError::protocol("it names a metadata context twice"));
        }
        if !wanted.contains(&context.name.as_str()) {
            return Err(NbdError::protocol("it names a metadata context that was not asked for"));
        }
    }
    Ok(contexts)
}

fn meta_contexts<S: Read>(stream: &mut S, option: OptionKind) -> Result<Vec<MetaContext>, NbdError> {
    let mut contexts = Vec::new();
    for _ in 0..limits::OPTION_REPLIES {
        let reply = receive(stream, option)?;
        match reply.kind {
            wire::REPLY_ACK => return Ok(contexts),
            wire::REPLY_META_CONTEXT => {
                let mut cursor = FieldReader::new(&reply.payload);
                let id = cursor.u32()?;
                let name = std::str::from_utf8(cursor.rest())
                    .map_err(|_| NbdError::protocol("the name of a metadata context is not UTF-8"))?;
                contexts.push(MetaContext { id, name: name.to_owned() });
            }
            // A server without contexts still serves data.
            wire::REPLY_ERR_UNSUP => return Ok(Vec::new()),
            kind if kind & wire::REPLY_ERROR_BIT != 0 => return Err(refused(option, &reply)),
            kind => {
                return Err(NbdError::protocol(format!("it answered {} with {kind}", option.name())));
            }
        }
    }
    Err(NbdError::protocol("it answers an option without end"))
}

fn go<S: Read + Write>(stream: &mut S, export: &str) -> Result<ExportInfo, NbdError> {
    send(stream, OptionKind::Go, &wire::encode_info_request(export))?;
    let mut size_and_flags = None;
    let (mut block_bytes, mut max_request_bytes) = (1u32, limits::READ_BYTES);
    for _ in 0..limits::OPTION_REPLIES {
        let reply = receive(stream, OptionKind::Go)?;
        match reply.kind {
            wire::REPLY_ACK => {
                let (size, flags) = size_and_flags
                    .ok_or_else(|| NbdError::protocol("it started without the size of the export"))?;
                return Ok(ExportInfo { size, flags, block_bytes, max_request_bytes });
            }
            wire::REPLY_INFO => {
                let mut cursor = FieldReader::new(&reply.payload);
                match cursor.u16()? {
                    wire::INFO_EXPORT => {
                        let (size, flags) = (cursor.u64()?, cursor.u16()?);
                        if i64::try_from(size).is_err() {
                            return Err(NbdError::protocol(format!(
                                "an export of {size} bytes cannot exist"
                            )));
                        }
                        size_and_flags = Some((size, flags));
                    }
                    wire::INFO_BLOCK_SIZE => {
                        (block_bytes, max_request_bytes) = block_sizes(&mut cursor)?;
                    }
                    // Names and descriptions are not needed; unknown kinds may be skipped.
                    _ => continue,
                }
                if !cursor.is_empty() {
                    return Err(NbdError::protocol("an INFO reply is longer than its fields"));
                }
            }
            wire::REPLY_SERVER => return Err(NbdError::protocol("it answered GO with a list")),
            kind if kind & wire::REPLY_ERROR_BIT != 0 => return Err(refused(OptionKind::Go, &reply)),
            kind => return Err(NbdError::protocol(format!("it answered GO with {kind}"))),
        }
    }
    Err(NbdError::protocol("it answers GO without end"))
}

/// Smallest unit and longest read, checked and clipped.
fn block_sizes(cursor: &mut FieldReader<'_>) -> Result<(u32, u32), NbdError> {
    let (smallest, _preferred, longest) = (cursor.u32()?, cursor.u32()?, cursor.u32()?);
    if !smallest.is_power_of_two() || smallest > 64 << 10 {
        return Err(NbdError::protocol(format!("a block size of {smallest} bytes")));
    }
    if longest < smallest {
        return Err(NbdError::protocol("its longest request is shorter than a block"));
    }
    let longest = longest.min(limits::READ_BYTES);
    Ok((smallest, longest - longest % smallest))
}
