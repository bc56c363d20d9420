//! Recorder of a store's Gets: a trace for the simulator of filter units and rules.
//!
//! Format: sim/src/rules/trace.rs, `copal gets 1`
//! Invariants
//! - Without a recording a Get pays one relaxed load.
//! - An incomplete trace is never taken for a complete one: the first write error is kept and returned at the
//!   end.
//!
//! Not here: playing a trace (`copal-sim rules --trace`).

use parking_lot::Mutex;
use std::{
    io::{self, BufWriter, Write},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

/// Recording of one store.
#[derive(Default)]
pub(crate) struct GetRecorder {
    on: AtomicBool,
    trace: Mutex<Option<GetTrace>>,
}

struct GetTrace {
    to: BufWriter<Box<dyn Write + Send>>,
    gets: u64,
    failed: Option<io::Error>,
}

impl GetRecorder {
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Relaxed)
    }

    /// Records a look-up of the internal `key`.
    pub(crate) fn note(&self, key: &[u8], found: bool) {
        if self.is_on() {
            self.write(key, found);
        }
    }

    #[cold]
    fn write(&self, key: &[u8], found: bool) {
        let mut line = Vec::with_capacity(2 * key.len() + 2);
        line.push(if found { b'+' } else { b'-' });
        let digit = |half: u8| b"0123456789abcdef"[usize::from(half)];
        line.extend(key.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]));
        line.push(b'\n');
        let mut trace = self.trace.lock();
        let Some(trace) = trace.as_mut().filter(|trace| trace.failed.is_none()) else {
            return;
        };
        match trace.to.write_all(&line) {
            Ok(()) => trace.gets += 1,
            Err(error) => trace.failed = Some(error),
        }
    }

    pub(crate) fn start(&self, to: Box<dyn Write + Send>, keys: u64) -> io::Result<()> {
        let mut trace = GetTrace { to: BufWriter::new(to), gets: 0, failed: None };
        writeln!(trace.to, "copal gets 1\nkeys {keys}")?;
        *self.trace.lock() = Some(trace);
        self.on.store(true, Relaxed);
        Ok(())
    }

    pub(crate) fn stop(&self) -> io::Result<u64> {
        self.on.store(false, Relaxed);
        let Some(mut trace) = self.trace.lock().take() else {
            return Ok(0);
        };
        trace.failed.take().map_or(Ok(()), Err)?;
        trace.to.flush()?;
        Ok(trace.gets)
    }
}
