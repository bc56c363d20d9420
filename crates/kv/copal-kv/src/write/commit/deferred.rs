//! Groups that are in the memtable and not in the log yet: they gather, and one frame takes them all.
//!
//! Invariants
//! - They go in front of whatever is logged next, in the order of their sequences.
//! - Whoever brings them on their way because they are due waits for the device and keeps nobody from writing
//!   meanwhile. Others wait only for a half of the page-cache log that comes round before its frame is
//!   written.
//! - A kill-safe write goes behind them into the page-cache log only when they stand there, too, or their
//!   frame is written.

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

/// Log bytes that deferred groups may keep waiting.
const DEFERRED_BYTES: usize = 1 << 20;

/// What the log learns of deferred groups that are on their way.
type Logged = Completion<Result<FramePos, StoreError>>;

impl LogWriter {
    /// Since when a deferred write waits for the log.
    pub(crate) fn deferred_since(&self) -> Option<Instant> {
        self.deferred.since
    }

    /// Log bytes of writes that are deferred.
    pub(crate) fn deferred_bytes(&self) -> usize {
        self.deferred.ops.len()
    }

    /// Whether deferred writes point to values of their own objects.
    pub(crate) fn deferred_names_values(&self) -> bool {
        self.deferred.after.is_some()
    }

    /// The frame `at` of the log `stream` is durable, and with it those before it.
    fn is_durable(&mut self, stream: ObjectId, at: FramePos) {
        if !self.log.ends_with(stream, at) {
            return;
        }
        self.log.unsynced = false;
        if let PageCacheLogState::Open(cache_log) = &mut self.page_cache_log {
            cache_log.log_written();
        }
    }

    /// Whether all of the buffer, `buffered` bytes, stands in the page-cache log, if there is one.
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

/// Keeps a group of `count` operations for the log's next one; `log` holds what was deferred before, too.
pub(super) fn defer(
    engine: &Engine,
    deferred: &mut DeferredWrites,
    log: Vec<u8>,
    count: u32,
    after: Option<Lsn>,
) {
    deferred.ops = log;
    // And their frame, when they go.
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

/// Nothing is deferred any more; the next ones gather in the same memory, unless one large write made it.
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

/// Brings the deferred groups, which all stand in the page-cache log, on their way into the log. `given`
/// is the last sequence so far.
/// # Errors
/// `NoSpace`: they go on waiting. `Poisoned`.
pub(crate) fn send_deferred(engine: &Engine, writer: &mut LogWriter, given: u64) -> Result<(), Error> {
    let frame = reserve_deferred(engine, writer, given, Ack::Written)?;
    let at = frame.at();
    deferred_placed(engine, writer, at, frame.write());
    Ok(())
}

/// Gives the deferred groups their place in the log. Nobody is kept from writing by the device, if the
/// writer is let go before [`DeferredInFlight::wait`].
/// # Errors
/// `NoSpace`: they go on waiting. `Poisoned`.
pub(crate) fn log_deferred_durably<'e>(
    engine: &'e Engine,
    writer: &mut LogWriter,
) -> Result<DeferredInFlight<'e>, Error> {
    let frame = reserve_deferred(engine, writer, engine.snapshots.allocated_seq(), Ack::Durable)?;
    // The half of these groups waits for what is told when the frame is there.
    let (tell, told) = Completion::pair(None);
    deferred_placed(engine, writer, frame.at(), told);
    Ok(DeferredInFlight { engine, stream: writer.log.stream, frame, tell })
}

/// Reserves the last frame of the group of all that is deferred, and writes those before it.
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

/// The last frame has its place. Whoever wants the log durable asks for more than this frame: no group of
/// the queue answers for it, so its own promise does not count.
fn deferred_placed(engine: &Engine, writer: &mut LogWriter, at: FramePos, logged: Logged) {
    writer.log.placed(at, Ack::Written);
    let ops = std::mem::take(&mut writer.deferred.ops);
    writer.page_cache_logged(match writer.page_cache_log_covers(ops.len()) {
        true => ReuseAfter::Frame(logged),
        // Until it is written, a record behind it would have a hole in front.
        false => ReuseAfter::NextAckedGroup,
    });
    clear_deferred(engine, &mut writer.deferred, ops);
}

/// The deferred groups on their way into the log.
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
        // Whoever has the writer now logs more, or syncs for himself.
        if let Some(mut writer) = self.engine.writes.writer.try_lock() {
            writer.is_durable(self.stream, at);
        }
        Ok(())
    }
}

/// Logs that deferred writes could not be logged now.
pub(crate) fn still_deferred(logged: Result<(), Error>) {
    if let Err(error) = logged {
        tracing::warn!(%error, "deferred writes are still not in the log");
    }
}
