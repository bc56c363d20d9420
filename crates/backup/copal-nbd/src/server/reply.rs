//! Reply writer of a server: several threads send replies, one at a time.

use crate::{
    NbdError,
    wire::{self, limits},
};
use parking_lot::Mutex;
use std::io::Write;

/// The sending half of a connection. After a failed reply every later one fails too.
pub(crate) struct ReplyWriter<W> {
    writer: Mutex<W>,
    /// Whether replies to reads are structured.
    pub(crate) is_structured: bool,
}

impl<W: Write> ReplyWriter<W> {
    pub(crate) fn new(writer: W, is_structured: bool) -> ReplyWriter<W> {
        ReplyWriter { writer: Mutex::new(writer), is_structured }
    }

    /// Sends the end of a request: success, or an error number with a message.
    pub(crate) fn done(&self, cookie: u64, outcome: Result<(), (u32, &str)>) -> Result<(), NbdError> {
        match (self.is_structured, outcome) {
            (true, Ok(())) => self.chunk(cookie, true, wire::CHUNK_NONE, &[&[]]),
            (true, Err((errno, what))) => {
                let what = &what.as_bytes()[..what.len().min(limits::STRING_BYTES)];
                let mut payload = errno.to_be_bytes().to_vec();
                payload.extend_from_slice(&(what.len() as u16).to_be_bytes());
                self.chunk(cookie, true, wire::CHUNK_ERROR, &[&payload, what])
            }
            (false, outcome) => self.simple(cookie, outcome.err().map_or(0, |(errno, _)| errno), &[]),
        }
    }

    /// Sends a read as one simple reply.
    pub(crate) fn simple(&self, cookie: u64, errno: u32, data: &[u8]) -> Result<(), NbdError> {
        let mut header = [0; 16];
        header[..4].copy_from_slice(&wire::SIMPLE_REPLY_MAGIC.to_be_bytes());
        header[4..8].copy_from_slice(&errno.to_be_bytes());
        header[8..].copy_from_slice(&cookie.to_be_bytes());
        let mut writer = self.writer.lock();
        writer.write_all(&header)?;
        writer.write_all(data)?;
        Ok(writer.flush()?)
    }

    /// Sends a long read as one simple reply: `first`, then the pieces that `next` puts into the buffer while
    /// it returns true. If `next` fails, the reply is incomplete and the connection must end.
    pub(crate) fn simple_in_pieces(
        &self,
        cookie: u64,
        first: Vec<u8>,
        mut next: impl FnMut(&mut Vec<u8>) -> Result<bool, NbdError>,
    ) -> Result<(), NbdError> {
        let mut header = [0; 16];
        header[..4].copy_from_slice(&wire::SIMPLE_REPLY_MAGIC.to_be_bytes());
        header[8..].copy_from_slice(&cookie.to_be_bytes());
        let mut piece = first;
        let mut writer = self.writer.lock();
        writer.write_all(&header)?;
        writer.write_all(&piece)?;
        loop {
            let is_more = next(&mut piece)?;
            writer.write_all(&piece)?;
            if !is_more {
                return Ok(writer.flush()?);
            }
        }
    }

    /// Sends a data chunk of a read.
    pub(crate) fn data(&self, cookie: u64, offset: u64, data: &[u8]) -> Result<(), NbdError> {
        let offset = offset.to_be_bytes();
        self.chunk(cookie, false, wire::CHUNK_OFFSET_DATA, &[&offset, data])
    }

    /// Sends a hole chunk of a read.
    pub(crate) fn hole(&self, cookie: u64, offset: u64, len: u32) -> Result<(), NbdError> {
        let (offset, len) = (offset.to_be_bytes(), len.to_be_bytes());
        self.chunk(cookie, false, wire::CHUNK_OFFSET_HOLE, &[&offset, &len])
    }

    /// Sends the extents of one context; `is_last` marks the last context.
    pub(crate) fn extents(
        &self,
        cookie: u64,
        context: u32,
        extents: &[(u32, u32)],
        is_last: bool,
    ) -> Result<(), NbdError> {
        let mut payload = Vec::with_capacity(4 + extents.len() * 8);
        payload.extend_from_slice(&context.to_be_bytes());
        for (len, flags) in extents {
            payload.extend_from_slice(&len.to_be_bytes());
            payload.extend_from_slice(&flags.to_be_bytes());
        }
        self.chunk(cookie, is_last, wire::CHUNK_BLOCK_STATUS, &[&payload])
    }

    /// `parts` together are the payload, at most as long as a request.
    fn chunk(&self, cookie: u64, is_last: bool, kind: u16, parts: &[&[u8]]) -> Result<(), NbdError> {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        let mut header = [0; 20];
        header[..4].copy_from_slice(&wire::STRUCTURED_REPLY_MAGIC.to_be_bytes());
        header[4..6].copy_from_slice(&(u16::from(is_last) * wire::CHUNK_DONE).to_be_bytes());
        header[6..8].copy_from_slice(&kind.to_be_bytes());
        header[8..16].copy_from_slice(&cookie.to_be_bytes());
        header[16..].copy_from_slice(&(len as u32).to_be_bytes());
        let mut writer = self.writer.lock();
        writer.write_all(&header)?;
        for part in parts {
            writer.write_all(part)?;
        }
        Ok(writer.flush()?)
    }
}
