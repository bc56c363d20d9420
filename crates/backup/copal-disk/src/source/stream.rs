//! Stream source: standard input, the output of a command, or any reader, read once from front to back.
//!
//! The size is known at the end of the stream. There is no map and no second read, so a stream is always read
//! in full. An empty stream is an error: the program before the pipe has failed. The first bytes can be
//! examined before the read, the last ones after it.

use super::{END_BYTES, Extent, ExtentKind, Source, SourceError};
use parking_lot::Mutex;
use std::io::Read;

/// Called at the end of a stream; fails if the program that wrote the stream failed.
pub type StreamEnd = Box<dyn FnOnce() -> Result<(), SourceError> + Send>;

/// A reader as a source.
pub struct StreamSource {
    what: String,
    state: Mutex<PipeState>,
}

struct PipeState {
    reader: Box<dyn Read + Send>,
    end: Option<StreamEnd>,
    /// Bytes that `head` has read and `read_at` has not returned yet.
    peeked: Vec<u8>,
    position: u64,
    last: Vec<u8>,
    ended: bool,
}

impl StreamSource {
    /// A source that reads `reader` to its end; `what` names it in messages.
    pub fn new(what: impl Into<String>, reader: Box<dyn Read + Send>) -> StreamSource {
        StreamSource::with_end(what, reader, Box::new(|| Ok(())))
    }

    /// As [`StreamSource::new`]; `end` is called at the end of the stream, and its error makes the source
    /// fail.
    pub fn with_end(what: impl Into<String>, reader: Box<dyn Read + Send>, end: StreamEnd) -> StreamSource {
        StreamSource {
            what: what.into(),
            state: Mutex::new(PipeState {
                reader,
                end: Some(end),
                peeked: Vec::new(),
                position: 0,
                last: Vec::new(),
                ended: false,
            }),
        }
    }

    /// Standard input of this process.
    pub fn stdin() -> StreamSource {
        StreamSource::new("standard input", Box::new(std::io::stdin()))
    }

    /// Reads until `buf` is full or the stream ends.
    fn fill(&self, state: &mut PipeState, buf: &mut [u8]) -> Result<usize, SourceError> {
        let mut done = 0;
        while done < buf.len() && !state.ended {
            match state.reader.read(&mut buf[done..]) {
                Ok(0) => state.ended = true,
                Ok(read) => done += read,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => {
                    return Err(SourceError::Io { action: "read", what: self.what.clone(), error });
                }
            }
        }
        if state.ended
            && let Some(end) = state.end.take()
        {
            end()?;
        }
        Ok(done)
    }
}

impl Source for StreamSource {
    fn size_bytes(&self) -> Option<u64> {
        None
    }

    fn extent_at(&self, offset: u64) -> Result<Extent, SourceError> {
        Ok(Extent { offset, length: u64::MAX - offset, kind: ExtentKind::Data })
    }

    fn head(&self, buf: &mut [u8]) -> Result<usize, SourceError> {
        let mut state = self.state.lock();
        if state.position == 0 && state.peeked.is_empty() {
            let mut head = vec![0; buf.len()];
            let length = self.fill(&mut state, &mut head)?;
            head.truncate(length);
            state.peeked = head;
        }
        let length = state.peeked.len().min(buf.len());
        buf[..length].copy_from_slice(&state.peeked[..length]);
        Ok(length)
    }

    fn tail(&self, buf: &mut [u8]) -> Result<usize, SourceError> {
        let last = &self.state.lock().last;
        let length = last.len().min(buf.len());
        buf[..length].copy_from_slice(&last[last.len() - length..]);
        Ok(length)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize, SourceError> {
        let mut state = self.state.lock();
        if offset != state.position {
            return Err(SourceError::Unusable {
                reason: format!("{} can be read once, from its beginning to its end", self.what),
            });
        }
        let early = state.peeked.len().min(buf.len());
        buf[..early].copy_from_slice(&state.peeked[..early]);
        state.peeked.drain(..early);
        let done = early + self.fill(&mut state, &mut buf[early..])?;
        if state.ended && state.position + done as u64 == 0 {
            return Err(SourceError::Unusable {
                reason: format!(
                    "{} is empty; check the program that writes it, nothing was backed up",
                    self.what
                ),
            });
        }
        state.position += done as u64;
        let kept = &buf[done.saturating_sub(END_BYTES)..done];
        let keep = (END_BYTES - kept.len()).min(state.last.len());
        let older = state.last.len() - keep;
        state.last.drain(..older);
        state.last.extend_from_slice(kept);
        Ok(done)
    }
}
