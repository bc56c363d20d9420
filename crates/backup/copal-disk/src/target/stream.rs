//! Stream target: standard output or any other writer. Holes become zero bytes.

use super::{Target, TargetError};
use parking_lot::Mutex;
use std::io::Write;

/// A writer as a target.
pub struct StreamTarget {
    what: String,
    state: Mutex<StreamState>,
}

struct StreamState {
    writer: Box<dyn Write + Send>,
    position: u64,
}

impl StreamTarget {
    /// A target that writes everything to `writer`; `what` names it in messages.
    pub fn new(what: impl Into<String>, writer: Box<dyn Write + Send>) -> StreamTarget {
        StreamTarget { what: what.into(), state: Mutex::new(StreamState { writer, position: 0 }) }
    }

    /// Standard output of this process.
    pub fn stdout() -> StreamTarget {
        StreamTarget::new("standard output", Box::new(std::io::stdout()))
    }

    fn failed(&self, action: &'static str) -> impl Fn(std::io::Error) -> TargetError {
        move |error| TargetError::Io { action, what: self.what.clone(), error }
    }

    fn at(&self, state: &StreamState, offset: u64) -> Result<(), TargetError> {
        if state.position == offset {
            return Ok(());
        }
        Err(TargetError::Unusable {
            reason: format!("{} can be written once, from its beginning to its end", self.what),
        })
    }
}

impl Target for StreamTarget {
    fn is_ordered(&self) -> bool {
        true
    }

    fn begin(&self, _size_bytes: u64) -> Result<(), TargetError> {
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), TargetError> {
        let mut state = self.state.lock();
        self.at(&state, offset)?;
        state.writer.write_all(data).map_err(self.failed("write"))?;
        state.position += data.len() as u64;
        Ok(())
    }

    fn hole(&self, offset: u64, length: u64) -> Result<(), TargetError> {
        static ZEROES: [u8; 64 << 10] = [0; 64 << 10];
        let mut state = self.state.lock();
        self.at(&state, offset)?;
        let mut rest = length;
        while rest > 0 {
            let piece = rest.min(ZEROES.len() as u64);
            state.writer.write_all(&ZEROES[..piece as usize]).map_err(self.failed("write"))?;
            rest -= piece;
        }
        state.position += length;
        Ok(())
    }

    fn finish(&self) -> Result<(), TargetError> {
        self.state.lock().writer.flush().map_err(self.failed("flush"))
    }
}
