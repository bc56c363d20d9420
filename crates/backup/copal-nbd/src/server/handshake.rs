//! Server handshake: greeting and options, until the client has selected a disk or disconnected.
//!
//! Generic over the stream, so that tests and the fuzzer can supply bytes.
//! Invariants
//! - The data of an option is read only if its length is at most [`OPTION_BYTES`].
//! - A handshake has at most [`OPTIONS`] options.

use super::export::{DiskExports, ExportDisk};
use crate::{
    MetaContext, NbdError,
    wire::{self, BASE_ALLOCATION, FieldReader, OptionKind, export_flags, limits},
};
use std::{
    io::{Read, Write},
    sync::Arc,
};

/// Longest data of an option: a few names.
const OPTION_BYTES: u32 = 64 << 10;
/// Maximum number of options in one handshake.
const OPTIONS: usize = 256;
/// Maximum number of metadata contexts of a connection.
const CONTEXTS: usize = 32;
/// Preferred request size, in bytes.
const PREFERRED_BYTES: u32 = 64 << 10;

/// Result of a handshake.
pub(crate) struct ExportChoice {
    pub(crate) disk: Arc<dyn ExportDisk>,
    pub(crate) is_structured: bool,
    pub(crate) contexts: Vec<MetaContext>,
}

/// Greets and answers options; returns the selected disk, or `None` if the client has disconnected.
pub(crate) fn receive_client<S: Read + Write>(
    stream: &mut S,
    exports: &dyn DiskExports,
) -> Result<Option<ExportChoice>, NbdError> {
    let mut greeting = Vec::with_capacity(18);
    greeting.extend_from_slice(&wire::NBD_MAGIC.to_be_bytes());
    greeting.extend_from_slice(&wire::OPTION_MAGIC.to_be_bytes());
    let offered = wire::FLAG_FIXED_NEWSTYLE | wire::FLAG_NO_ZEROES;
    greeting.extend_from_slice(&offered.to_be_bytes());
    stream.write_all(&greeting)?;
    let mut flags = [0; 4];
    stream.read_exact(&mut flags)?;
    let flags = u32::from_be_bytes(flags);
    if flags & !u32::from(offered) != 0 {
        return Err(NbdError::protocol(format!("the client has unknown flags {flags:#x}")));
    }
    let mut handshake = ServerHandshake {
        stream,
        exports,
        leaves_zeroes_out: flags & u32::from(wire::FLAG_NO_ZEROES) != 0,
        is_structured: false,
        contexts: None,
    };
    for _ in 0..OPTIONS {
        match handshake.option()? {
            HandshakeStep::More => {}
            HandshakeStep::Left => return Ok(None),
            HandshakeStep::Chosen(disk, name) => return Ok(Some(handshake.choice(disk, &name))),
        }
    }
    Err(NbdError::protocol("the client has options without end"))
}

/// Result of an option.
enum HandshakeStep {
    More,
    Left,
    Chosen(Arc<dyn ExportDisk>, String),
}

struct ServerHandshake<'a, S> {
    stream: &'a mut S,
    exports: &'a dyn DiskExports,
    leaves_zeroes_out: bool,
    is_structured: bool,
    /// Contexts of the last SET_META_CONTEXT, and the export that it named.
    contexts: Option<(String, Vec<MetaContext>)>,
}

impl<S: Read + Write> ServerHandshake<'_, S> {
    fn option(&mut self) -> Result<HandshakeStep, NbdError> {
        let mut header = [0; 16];
        self.stream.read_exact(&mut header)?;
        let mut cursor = FieldReader::new(&header);
        if cursor.u64()? != wire::OPTION_MAGIC {
            return Err(NbdError::protocol("an option does not begin with its magic number"));
        }
        let (option, len) = (cursor.u32()?, cursor.u32()?);
        if len > OPTION_BYTES {
            self.reply(option, wire::REPLY_ERR_TOO_BIG, b"an option has at most 64 KiB")?;
            return Err(NbdError::protocol(format!("an option claims {len} bytes")));
        }
        let mut data = vec![0; len as usize];
        self.stream.read_exact(&mut data)?;
        let is = |kind: OptionKind| option == kind as u32;
        if is(OptionKind::ExportName) {
            return self.export_name(&data);
        }
        if is(OptionKind::Abort) {
            self.reply(option, wire::REPLY_ACK, &[])?;
            return Ok(HandshakeStep::Left);
        }
        if is(OptionKind::List) {
            self.list(&data)?;
        } else if is(OptionKind::Info) || is(OptionKind::Go) {
            return self.info(option, &data);
        } else if is(OptionKind::StructuredReply) {
            if data.is_empty() {
                self.is_structured = true;
                self.reply(option, wire::REPLY_ACK, &[])?;
            } else {
                self.reply(option, wire::REPLY_ERR_INVALID, b"this option has no data")?;
            }
        } else if is(OptionKind::ListMetaContext) || is(OptionKind::SetMetaContext) {
            self.meta_contexts(option, &data)?;
        } else if is(OptionKind::StartTls) {
            self.reply(option, wire::REPLY_ERR_UNSUP, b"this server has no TLS")?;
        } else {
            self.reply(option, wire::REPLY_ERR_UNSUP, b"unknown option")?;
        }
        Ok(HandshakeStep::More)
    }

    fn reply(&mut self, option: u32, kind: u32, payload: &[u8]) -> Result<(), NbdError> {
        let mut reply = Vec::with_capacity(20 + payload.len());
        reply.extend_from_slice(&wire::OPTION_REPLY_MAGIC.to_be_bytes());
        reply.extend_from_slice(&option.to_be_bytes());
        reply.extend_from_slice(&kind.to_be_bytes());
        reply.extend_from_slice(&(payload.len() as u32).to_be_bytes());
        reply.extend_from_slice(payload);
        self.stream.write_all(&reply)?;
        Ok(())
    }

    /// Selects an export the old way, which has no error reply.
    fn export_name(&mut self, data: &[u8]) -> Result<HandshakeStep, NbdError> {
        let found = std::str::from_utf8(data).ok().and_then(|name| {
            let disk = self.exports.find(name)?;
            Some((disk, name.to_owned()))
        });
        let (disk, name) =
            found.ok_or_else(|| NbdError::protocol("the client selected an unknown export"))?;
        let mut answer = Vec::with_capacity(134);
        answer.extend_from_slice(&disk.size_bytes().to_be_bytes());
        answer.extend_from_slice(&flags_of(&*disk).to_be_bytes());
        if !self.leaves_zeroes_out {
            answer.resize(answer.len() + 124, 0);
        }
        self.stream.write_all(&answer)?;
        Ok(HandshakeStep::Chosen(disk, name))
    }

    fn list(&mut self, data: &[u8]) -> Result<(), NbdError> {
        let option = OptionKind::List as u32;
        if !data.is_empty() {
            return self.reply(option, wire::REPLY_ERR_INVALID, b"this option has no data");
        }
        for name in self.exports.names() {
            let mut payload = (name.len() as u32).to_be_bytes().to_vec();
            payload.extend_from_slice(name.as_bytes());
            self.reply(option, wire::REPLY_SERVER, &payload)?;
        }
        self.reply(option, wire::REPLY_ACK, &[])
    }

    fn info(&mut self, option: u32, data: &[u8]) -> Result<HandshakeStep, NbdError> {
        let Ok(name) = info_request(data) else {
            self.reply(option, wire::REPLY_ERR_INVALID, b"its lengths do not fit")?;
            return Ok(HandshakeStep::More);
        };
        let Some(disk) = self.exports.find(name) else {
            self.reply(option, wire::REPLY_ERR_UNKNOWN, b"no export has this name")?;
            return Ok(HandshakeStep::More);
        };
        let mut export = wire::INFO_EXPORT.to_be_bytes().to_vec();
        export.extend_from_slice(&disk.size_bytes().to_be_bytes());
        export.extend_from_slice(&flags_of(&*disk).to_be_bytes());
        self.reply(option, wire::REPLY_INFO, &export)?;
        let mut sizes = wire::INFO_BLOCK_SIZE.to_be_bytes().to_vec();
        for size in [1, PREFERRED_BYTES, limits::REQUEST_BYTES] {
            sizes.extend_from_slice(&size.to_be_bytes());
        }
        self.reply(option, wire::REPLY_INFO, &sizes)?;
        self.reply(option, wire::REPLY_ACK, &[])?;
        match option == OptionKind::Go as u32 {
            true => Ok(HandshakeStep::Chosen(disk, name.to_owned())),
            false => Ok(HandshakeStep::More),
        }
    }

    fn meta_contexts(&mut self, option: u32, data: &[u8]) -> Result<(), NbdError> {
        let sets = option == OptionKind::SetMetaContext as u32;
        if sets {
            self.contexts = None;
        }
        let Ok((name, queries)) = context_request(data) else {
            return self.reply(option, wire::REPLY_ERR_INVALID, b"its lengths do not fit");
        };
        if sets && !self.is_structured {
            let why = b"structured replies come first";
            return self.reply(option, wire::REPLY_ERR_INVALID, why);
        }
        let Some(disk) = self.exports.find(name) else {
            return self.reply(option, wire::REPLY_ERR_UNKNOWN, b"no export has this name");
        };
        let names = match sets {
            true => chosen_contexts(&*disk, &queries),
            false => listed_contexts(&*disk, &queries),
        };
        let found: Vec<MetaContext> =
            names.into_iter().zip(1..).map(|(name, id)| MetaContext { id, name }).collect();
        for context in &found {
            // A number is valid only once the context is set.
            let id = if sets { context.id } else { 0 };
            let mut payload = id.to_be_bytes().to_vec();
            payload.extend_from_slice(context.name.as_bytes());
            self.reply(option, wire::REPLY_META_CONTEXT, &payload)?;
        }
        self.reply(option, wire::REPLY_ACK, &[])?;
        if sets {
            self.contexts = Some((name.to_owned(), found));
        }
        Ok(())
    }

    /// Contexts are valid only for the export that they were set for.
    fn choice(self, disk: Arc<dyn ExportDisk>, name: &str) -> ExportChoice {
        let contexts = self.contexts.filter(|(of, _)| of == name);
        ExportChoice {
            disk,
            is_structured: self.is_structured,
            contexts: contexts.map_or_else(Vec::new, |(_, contexts)| contexts),
        }
    }
}

/// Transmission flags of a disk.
fn flags_of(disk: &dyn ExportDisk) -> u16 {
    use export_flags::*;
    let both = HAS_FLAGS | SEND_FLUSH | SEND_FUA | MULTI_CONN;
    match disk.is_writable() {
        true => both | SEND_TRIM | SEND_WRITE_ZEROES,
        false => both | READ_ONLY,
    }
}

/// A string with a length prefix.
fn text<'a>(cursor: &mut FieldReader<'a>) -> Result<&'a str, NbdError> {
    let len = cursor.u32()? as usize;
    if len > limits::STRING_BYTES {
        return Err(NbdError::protocol("a name is longer than 4096 bytes"));
    }
    std::str::from_utf8(cursor.take(len)?).map_err(|_| NbdError::protocol("a name is not UTF-8"))
}

/// The export of INFO or GO. The requested items are ignored, since all are sent.
fn info_request(data: &[u8]) -> Result<&str, NbdError> {
    let mut cursor = FieldReader::new(data);
    let name = text(&mut cursor)?;
    let wanted = usize::from(cursor.u16()?);
    cursor.take(2 * wanted)?;
    match cursor.is_empty() {
        true => Ok(name),
        false => Err(NbdError::protocol("an option is longer than its fields")),
    }
}

/// Decodes LIST_META_CONTEXT or SET_META_CONTEXT: the export and the queries.
fn context_request(data: &[u8]) -> Result<(&str, Vec<&str>), NbdError> {
    let mut cursor = FieldReader::new(data);
    let name = text(&mut cursor)?;
    let mut queries = Vec::new();
    for _ in 0..cursor.u32()? {
        queries.push(text(&mut cursor)?);
    }
    match cursor.is_empty() {
        true => Ok((name, queries)),
        false => Err(NbdError::protocol("an option is longer than its fields")),
    }
}

/// The supported contexts among the queries.
fn chosen_contexts(disk: &dyn ExportDisk, queries: &[&str]) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for query in queries {
        let is_there = *query == BASE_ALLOCATION || disk.has_context(query);
        if is_there && found.len() < CONTEXTS && !found.iter().any(|name| name == query) {
            found.push((*query).to_owned());
        }
    }
    found
}

/// The contexts that match: a query that ends with a colon matches a prefix, and no query matches all.
fn listed_contexts(disk: &dyn ExportDisk, queries: &[&str]) -> Vec<String> {
    let mut names = disk.contexts();
    names.insert(0, BASE_ALLOCATION.to_owned());
    let matches = |name: &String| {
        let mut queries = queries.iter();
        queries.any(|query| name == query || (query.ends_with(':') && name.starts_with(query)))
    };
    names.retain(|name| queries.is_empty() || matches(name));
    names.truncate(limits::OPTION_REPLIES - 1);
    names
}
