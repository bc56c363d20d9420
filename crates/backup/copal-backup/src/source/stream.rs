//! A disk that arrives through a pipe: standard input, or any reader.
//!
//! Read once, front to back; its size is known when it ends. Without a map and without a second
//! look, so a stream is always read in full. One that is empty is no disk but a program that failed before the pipe.

use super::{Extent, ExtentKind, Source, SourceError};
use parking_lot::Mutex;
use std::io::Read;

/// A reader as a source.
pub struct StreamSource {
    what: String,
    state: Mutex<PipeState>,
}

struct PipeState {
    reader: Box<dyn Read + Send>,
    position: u64,
    ended: bool,
}

impl StreamSource {
    /// A source of everything `reader` gives until it ends; `what` names it in messages.
    pub fn new(what: impl Into<String>, reader: Box<dyn Read + Send>) -> StreamSource {
        StreamSource {
            what: what.into(),
            state: Mutex::new(PipeState {
                reader,
                position: 0,
                ended: false,
            }),
        }
    }

    /// Standard input of this process.
    pub fn stdin() -> StreamSource {
        StreamSource::new("standard input", Box::new(std::io::stdin()))
    }
}

impl Source for StreamSource {
    fn size_bytes(&self) -> Option<u64> {
        None
    }

    fn extent_at(&self, offset: u64) -> Result<Extent, SourceError> {
        Ok(Extent {
            offset,
            length: u64::MAX - offset,
            kind: ExtentKind::Data,
        })
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize, SourceError> {
        let mut state = self.state.lock();
        if offset != state.position {
            return Err(SourceError::Unusable {
                reason: format!("{} can be read once, from its beginning to its end", self.what),
            });
        }
        let mut done = 0;
        while done < buf.len() && !state.ended {
            match state.reader.read(&mut buf[done..]) {
                Ok(0) => state.ended = true,
                Ok(read) => done += read,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => {
                    return Err(SourceError::Io {
                        action: "read",
                        what: self.what.clone(),
                        error,
                    });
                }
            }
        }
        if state.ended && state.position + done as u64 == 0 {
            return Err(SourceError::Unusable {
                reason: format!(
                    "{} is empty; look at the program that writes it, nothing was backed up",
                    self.what
                ),
            });
        }
        state.position += done as u64;
        Ok(done)
    }
}
