//! Receiving half of a connection: matches replies to the requests in flight.
//!
//! One thread runs [`run`] until the connection ends. Every request that is still in flight then gets the
//! error that ended it. Generic over the reader, so that tests can supply bytes.

use crate::{
    NbdError,
    assembly::ReadAssembly,
    client::ReadReply,
    wire::{self, ChunkHeader, FieldReader, limits},
};
use parking_lot::{Condvar, Mutex};
use std::{
    collections::HashMap,
    io::Read,
    sync::{Arc, mpsc::SyncSender},
};

/// Extents of one context: its number, and (length, flags) pairs from the start of the request.
pub(crate) type StatusReply = Vec<(u32, Vec<(u32, u32)>)>;

/// A request in flight.
pub(crate) struct WireRequest {
    pub(crate) body: RequestBody,
    /// First error of the reply; the result once the reply is complete.
    pub(crate) failed: Option<NbdError>,
}

/// Kind of a request, with its reply channel.
pub(crate) enum RequestBody {
    Read {
        assembly: ReadAssembly,
        answer: SyncSender<Result<ReadReply, NbdError>>,
    },
    Status {
        offset: u64,
        len: u32,
        /// Numbers of the negotiated contexts; a reply may contain no others.
        contexts: Arc<[u32]>,
        found: StatusReply,
        answer: SyncSender<Result<StatusReply, NbdError>>,
    },
    /// A request without data in its reply: a write, a zeroing, a flush.
    Change {
        what: &'static str,
        offset: u64,
        len: u32,
        answer: SyncSender<Result<(), NbdError>>,
    },
}

impl WireRequest {
    fn describe(&self) -> (&'static str, u64, u32) {
        match &self.body {
            RequestBody::Change { what, offset, len, .. } => (what, *offset, *len),
            RequestBody::Read { assembly, .. } => ("read", assembly.offset(), assembly.len()),
            RequestBody::Status { offset, len, .. } => ("block status", *offset, *len),
        }
    }

    fn fail(&mut self, errno: u32, words: &str) {
        let (request, offset, len) = self.describe();
        let message = if words.is_empty() { String::new() } else { format!(": {words}") };
        self.failed.get_or_insert(NbdError::Request { request, offset, len, errno, message });
    }

    /// Sends the result to the caller, which may have stopped waiting.
    fn answer(self, lost: Option<&NbdError>) {
        let failed = lost.cloned().or(self.failed);
        match self.body {
            RequestBody::Read { assembly, answer } => {
                let result = match failed {
                    Some(error) => Err(error),
                    None => assembly.finish().map(|(data, holes)| ReadReply { data, holes }),
                };
                let _ = answer.send(result);
            }
            RequestBody::Status { found, answer, .. } => {
                let result = match failed {
                    Some(error) => Err(error),
                    None if found.is_empty() => {
                        Err(NbdError::protocol("a block status reply describes no context"))
                    }
                    None => Ok(found),
                };
                let _ = answer.send(result);
            }
            RequestBody::Change { answer, .. } => {
                let _ = answer.send(failed.map_or(Ok(()), Err));
            }
        }
    }
}

/// The requests in flight, shared by the sending and the receiving half.
#[derive(Default)]
pub(crate) struct RequestTable {
    pub(crate) state: Mutex<RequestState>,
    /// Signalled when a request completes or the connection ends.
    pub(crate) left: Condvar,
}

/// Requests in flight, and the error that ended the connection.
#[derive(Default)]
pub(crate) struct RequestState {
    pub(crate) pending: HashMap<u64, WireRequest>,
    /// Requests in flight, including one whose chunk is being read.
    pub(crate) on_wire: usize,
    pub(crate) dead: Option<NbdError>,
}

impl RequestTable {
    fn take(&self, cookie: u64) -> Result<WireRequest, NbdError> {
        let found = self.state.lock().pending.remove(&cookie);
        found.ok_or_else(|| NbdError::protocol("a reply to a request that was not made"))
    }

    fn put_back(&self, cookie: u64, pending: WireRequest) {
        self.state.lock().pending.insert(cookie, pending);
    }

    fn finish(&self, pending: WireRequest) {
        pending.answer(None);
        let mut state = self.state.lock();
        // `end` may have emptied the table while this reply was being read.
        state.on_wire = state.on_wire.saturating_sub(1);
        drop(state);
        self.left.notify_all();
    }

    /// Ends the connection: all waiting and later requests get `error`.
    pub(crate) fn end(&self, error: NbdError) {
        let waiting = {
            let mut state = self.state.lock();
            state.dead.get_or_insert(error.clone());
            state.on_wire = 0;
            std::mem::take(&mut state.pending)
        };
        for pending in waiting.into_values() {
            pending.answer(Some(&error));
        }
        self.left.notify_all();
    }
}

/// Reads replies until the connection ends.
pub(crate) fn run<R: Read>(mut reader: R, table: &RequestTable, structured: bool) {
    loop {
        if let Err(error) = one_reply(&mut reader, table, structured) {
            return table.end(error);
        }
    }
}

fn one_reply<R: Read>(reader: &mut R, table: &RequestTable, structured: bool) -> Result<(), NbdError> {
    let mut magic = [0; 4];
    reader.read_exact(&mut magic)?;
    match u32::from_be_bytes(magic) {
        wire::SIMPLE_REPLY_MAGIC => simple_reply(reader, table, structured),
        wire::STRUCTURED_REPLY_MAGIC if structured => {
            let mut header = [0; 16];
            reader.read_exact(&mut header)?;
            chunk(reader, table, wire::decode_chunk_header(&header)?)
        }
        other => Err(NbdError::protocol(format!("a reply begins with {other:#010x}"))),
    }
}

/// Runs `work` on a request taken off the table. An error ends the connection and is the result of the
/// request too.
fn with_pending(
    table: &RequestTable,
    cookie: u64,
    work: impl FnOnce(&mut WireRequest) -> Result<bool, NbdError>,
) -> Result<(), NbdError> {
    let mut pending = table.take(cookie)?;
    match work(&mut pending) {
        Ok(true) => table.finish(pending),
        Ok(false) => table.put_back(cookie, pending),
        Err(error) => {
            pending.answer(Some(&error));
            return Err(error);
        }
    }
    Ok(())
}

fn simple_reply<R: Read>(reader: &mut R, table: &RequestTable, structured: bool) -> Result<(), NbdError> {
    let mut rest = [0; 12];
    reader.read_exact(&mut rest)?;
    let mut cursor = FieldReader::new(&rest);
    let (errno, cookie) = (cursor.u32()?, cursor.u64()?);
    with_pending(table, cookie, |pending| {
        if errno != 0 {
            pending.fail(errno, "");
            return Ok(true);
        }
        match &mut pending.body {
            RequestBody::Read { assembly, .. } if !structured => reader.read_exact(assembly.whole()?)?,
            // A reply without data need not be structured.
            RequestBody::Change { .. } => {}
            _ => {
                return Err(NbdError::protocol("a simple reply although structured replies were negotiated"));
            }
        }
        Ok(true)
    })
}

fn chunk<R: Read>(reader: &mut R, table: &RequestTable, header: ChunkHeader) -> Result<(), NbdError> {
    with_pending(table, header.cookie, |pending| {
        match header.kind {
            wire::CHUNK_NONE => {
                if !header.done || header.len != 0 {
                    return Err(NbdError::protocol("an empty chunk that is not the last, or not empty"));
                }
            }
            wire::CHUNK_OFFSET_DATA => data_chunk(reader, pending, header.len)?,
            wire::CHUNK_OFFSET_HOLE => {
                let payload = payload(reader, header.len, 12)?;
                let mut cursor = FieldReader::new(&payload);
                let (offset, len) = (cursor.u64()?, cursor.u32()?);
                if !cursor.is_empty() {
                    return Err(NbdError::protocol("a hole chunk is longer than its fields"));
                }
                read_of(pending)?.hole_chunk(offset, len)?;
            }
            wire::CHUNK_BLOCK_STATUS => {
                let payload = payload(reader, header.len, limits::STATUS_BYTES)?;
                let (context, extents) = wire::decode_block_status(&payload)?;
                let RequestBody::Status { contexts, found, .. } = &mut pending.body else {
                    return Err(NbdError::protocol("a block status answers a request of another kind"));
                };
                if !contexts.contains(&context) {
                    return Err(NbdError::protocol(
                        "a block status describes a context that was not negotiated",
                    ));
                }
                if found.iter().any(|(other, _)| *other == context) {
                    return Err(NbdError::protocol("a block status describes one context twice"));
                }
                found.push((context, extents));
            }
            wire::CHUNK_ERROR | wire::CHUNK_ERROR_OFFSET => {
                let payload = payload(reader, header.len, limits::ERROR_BYTES)?;
                let (errno, words) = wire::decode_error_chunk(&payload)?;
                pending.fail(errno, &words);
            }
            // An unknown error chunk, marked by the top bit: the request failed too.
            kind if kind & 0x8000 != 0 => {
                let payload = payload(reader, header.len, limits::ERROR_BYTES)?;
                let (errno, words) = wire::decode_error_chunk(&payload)?;
                pending.fail(errno, &words);
            }
            kind => return Err(NbdError::protocol(format!("a chunk of unknown kind {kind}"))),
        }
        Ok(header.done)
    })
}

fn read_of(pending: &mut WireRequest) -> Result<&mut ReadAssembly, NbdError> {
    match &mut pending.body {
        RequestBody::Read { assembly, .. } => Ok(assembly),
        RequestBody::Status { .. } | RequestBody::Change { .. } => {
            Err(NbdError::protocol("data answers a request that is not a read"))
        }
    }
}

fn data_chunk<R: Read>(reader: &mut R, pending: &mut WireRequest, len: u32) -> Result<(), NbdError> {
    let mut offset = [0; 8];
    let len = len
        .checked_sub(offset.len() as u32)
        .ok_or_else(|| NbdError::protocol("a data chunk is shorter than its offset"))?;
    reader.read_exact(&mut offset)?;
    let space = read_of(pending)?.data_chunk(u64::from_be_bytes(offset), len)?;
    reader.read_exact(space)?;
    Ok(())
}

/// Reads a payload of `len` bytes, at most `limit`.
fn payload<R: Read>(reader: &mut R, len: u32, limit: u32) -> Result<Vec<u8>, NbdError> {
    if len > limit {
        return Err(NbdError::protocol(format!("a chunk claims {len} bytes")));
    }
    let mut payload = vec![0; len as usize];
    reader.read_exact(&mut payload)?;
    Ok(payload)
}
