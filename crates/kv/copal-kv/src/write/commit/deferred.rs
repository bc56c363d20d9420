//! Deferred groups: they are in the memtable but not in the log yet; they gather until one group logs them
//! together.
//!
//! Invariants
//! - They are logged before any later group, in the order of their sequences.
//! - A thread that logs them because they are due waits for the device without blocking writers. Other
//!   threads wait only for half of the page-cache log, if they need it before its frame is written.
//! - A kill-safe write enters the page-cache log only if the deferred groups before it are there as well, or
//!   their frame is written.

use super::writer::{DeferredWrites, LogWriter};
use crate::{
    Error,
    engine::Engine,
    memory::budget::MemoryClass as Memory,
    session::signal::BackgroundThread,
    write::{
        log::LoggedGroup,
        page_cache_log::{PageCacheLogState, ReuseAfter},
    },
};
use copal_device::{Completer, Completion};
use copal_object::{Ack, FramePos, Lsn, ObjectId, ReservedFrame, StoreError};
use std::time::Instant;

/// Limit of the log bytes of deferred groups.
const DEFERRED_BYTES: usize = 1 << 20;

/// Result of logging deferred groups.
type Logged = Completion<Result<FramePos, StoreError>>;

impl LogWriter {
    /// Time since which a deferred write waits for the log.
    pub(crate) fn deferred_since(&self) -> Option<Instant> {
        self.deferred.since
    }

    /// Log bytes of deferred writes.
    pub(crate) fn deferred_bytes(&self) -> usize {
        self.deferred.ops.len()
    }

    /// Whether deferred writes point to values in value objects.
    pub(crate) fn deferred_names_values(&self) -> bool {
        self.deferred.after.is_some()
    }

    /// Records that frame `at` of the log `stream`, and all frames before it, are durable.
    fn is_durable(&mut self, stream: ObjectId, at: FramePos) {
        if !self.log.ends_with(stream, at) {
            return;
        }
        self.log.unsynced = false;
        if let PageCacheLogState::Open(cache_log) = &mut self.page_cache_log {
            cache_log.log_written();
        }
    }

    /// Whether the page-cache log, if there is one, holds all `buffered` bytes of the buffer.
    fn page_cache_log_covers(&self, buffered: usize) -> bool {
        match &self.page_cache_log {
            PageCacheLogState::Open(cache_log) => cache_log.covers(buffered),
            PageCacheLogState::NotRequested | PageCacheLogState::Absent => true,
        }
    }

    #[cfg(test)]
    pub(crate) fn make_deferred_due(&mut self) {
        let since = self.deferred.since.as_mut().expect("something was deferred");
        *since = since.checked_sub(std::time::Duration::from_secs(1)).unwrap();
    }
}

pub(crate) fn deferred_bytes(engine: &Engine) -> usize {
    DEFERRED_BYTES.min(engine.budget.waiting_bytes() as usize)
}

/// Adds a group of `count` operations to the deferred ones; `log` also holds the earlier ones.
pub(super) fn defer(
    engine: &Engine,
    deferred: &mut DeferredWrites,
    log: Vec<u8>,
    count: u32,
    after: Option<Lsn>,
) {
    deferred.ops = log;
    // The length counts for their frame, when they are logged.
    let bytes = (deferred.ops.capacity() + deferred.ops.len()) as u64;
    match &mut deferred.charge {
        Some(charge) => charge.set(bytes),
        None => deferred.charge = Some(engine.budget.charge(Memory::Log, bytes)),
    }
    deferred.count += count;
    deferred.after = after.or(deferred.after);
    if deferred.since.is_none() {
        deferred.since = Some(Instant::now());
        engine.signal.wake_worker(BackgroundThread::Flusher);
    }
}

/// Clears the deferred groups. Keeps the buffer for later ones, unless one large write made it.
pub(super) fn clear_deferred(engine: &Engine, deferred: &mut DeferredWrites, mut ops: Vec<u8>) {
    let charge = deferred.charge.take();
    *deferred = DeferredWrites::default();
    ops.clear();
    if let Some(mut charge) = charge
        && ops.capacity() <= 2 * deferred_bytes(engine)
    {
        charge.set(ops.capacity() as u64);
        (deferred.ops, deferred.charge) = (ops, Some(charge));
    }
}

/// Starts to log the deferred groups, which must all be in the page-cache log. `given` is the last allocated
/// sequence.
/// # Errors
/// `NoSpace`: they stay deferred. `Poisoned`.
pub(crate) fn send_deferred(engine: &Engine, writer: &mut LogWriter, given: u64) -> Result<(), Error> {
    let frame = reserve_deferred(engine, writer, given, Ack::Written)?;
    let at = frame.at();
    deferred_placed(engine, writer, at, frame.write());
    Ok(())
}

/// Reserves the place of the deferred groups in the log. The device blocks no writer, if the caller releases
/// the writer lock before [`DeferredInFlight::wait`].
/// # Errors
/// `NoSpace`: they stay deferred. `Poisoned`.
pub(crate) fn log_deferred_durably<'e>(
    engine: &'e Engine,
    writer: &mut LogWriter,
) -> Result<DeferredInFlight<'e>, Error> {
    let frame = reserve_deferred(engine, writer, engine.snapshots.allocated_seq(), Ack::Durable)?;
    // The half with these groups is reusable once the completion reports the frame as written.
    let (tell, placed) = Completion::pair(None);
    deferred_placed(engine, writer, frame.at(), placed);
    Ok(DeferredInFlight { engine, stream: writer.log.stream, frame, tell })
}

/// Writes the frames of all deferred groups except the last one, and reserves that.
fn reserve_deferred(
    engine: &Engine,
    writer: &mut LogWriter,
    given: u64,
    ack: Ack,
) -> Result<ReservedFrame, Error> {
    let DeferredWrites { ops, count, after, .. } = &writer.deferred;
    let group = LoggedGroup { first_seq: given + 1 - u64::from(*count), count: *count, ops, after: *after };
    let reserved = writer.log.reserve_group(&engine.objects, group, ack);
    reserved.map_err(|error| engine.poison.failed_write(error))
}

/// Records the reserved place of the last frame. It counts as `Written`, since no group of the queue waits
/// for this frame: a caller that needs a durable log has to sync.
fn deferred_placed(engine: &Engine, writer: &mut LogWriter, at: FramePos, logged: Logged) {
    writer.log.placed(at, Ack::Written);
    let ops = std::mem::take(&mut writer.deferred.ops);
    writer.page_cache_logged(match writer.page_cache_log_covers(ops.len()) {
        true => ReuseAfter::Frame(logged),
        // Until the frame is written, a later record would follow a gap.
        false => ReuseAfter::NextAckedGroup,
    });
    clear_deferred(engine, &mut writer.deferred, ops);
}

/// Deferred groups that are being logged.
#[must_use = "they are durable when they were waited for"]
pub(crate) struct DeferredInFlight<'e> {
    engine: &'e Engine,
    stream: ObjectId,
    frame: ReservedFrame,
    tell: Completer<Result<FramePos, StoreError>>,
}

impl DeferredInFlight<'_> {
    /// Waits until they are durable.
    /// # Errors
    /// `Poisoned`.
    pub(crate) fn wait(self) -> Result<(), Error> {
        let at = self.frame.at();
        let durable = self.frame.write().wait();
        self.tell.complete(durable.clone());
        durable.map_err(|error| self.engine.poison.failed_write(error))?;
        // If another thread holds the writer lock, it logs more or syncs itself.
        if let Some(mut writer) = self.engine.writes.writer.try_lock() {
            writer.is_durable(self.stream, at);
        }
        Ok(())
    }
}

/// Reports that deferred writes could not be logged now.
pub(crate) fn still_deferred(logged: Result<(), Error>) {
    if let Err(error) = logged {
        tracing::warn!(%error, "deferred writes are still not in the log");
    }
}
