//! Groups that are in the memtable and not in the log yet: they gather, and one frame takes them all.
//!
//! Invariants
//! - They go in front of whatever is logged next, in the order of their sequences.
//! - Whoever brings them on their way because they are due waits for the device and keeps nobody from writing
//!   meanwhile. Others wait only for a half of the page-cache log that comes round before its frame is
//!   written.
//! - A kill-safe write goes behind them into the page-cache log only when they stand there, too, or their
//!   frame is written.

use super::writer::{Deferred, Writer};
use crate::{
    Error,
    engine::Engine,
    memory::budget::Class as Memory,
    session::signal::Sleeper,
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

impl Writer {
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

impl Engine {
    pub(crate) fn deferred_bytes(&self) -> usize {
        DEFERRED_BYTES.min(self.budget.waiting_bytes() as usize)
    }

    /// Keeps a group of `count` operations for the log's next one; `log` holds what was deferred before, too.
    pub(super) fn defer(&self, deferred: &mut Deferred, log: Vec<u8>, count: u32, after: Option<Lsn>) {
        deferred.ops = log;
        // And their frame, when they go.
        let bytes = (deferred.ops.capacity() + deferred.ops.len()) as u64;
        match &mut deferred.charge {
            Some(charge) => charge.set(bytes),
            None => deferred.charge = Some(self.budget.charge(Memory::Log, bytes)),
        }
        deferred.count += count;
        deferred.after = after.or(deferred.after);
        if deferred.since.is_none() {
            deferred.since = Some(Instant::now());
            self.signal.kick_one(Sleeper::Flusher);
        }
    }

    /// Nothing is deferred any more; the next ones gather in the same memory, unless one large write made it.
    pub(super) fn logged(&self, deferred: &mut Deferred, mut ops: Vec<u8>) {
        let charge = deferred.charge.take();
        *deferred = Deferred::default();
        ops.clear();
        if let Some(mut charge) = charge
            && ops.capacity() <= 2 * self.deferred_bytes()
        {
            charge.set(ops.capacity() as u64);
            (deferred.ops, deferred.charge) = (ops, Some(charge));
        }
    }

    /// Brings the deferred groups, which all stand in the page-cache log, on their way into the log. `given`
    /// is the last sequence so far.
    /// # Errors
    /// `NoSpace`: they go on waiting. `Poisoned`.
    pub(crate) fn send_deferred(&self, writer: &mut Writer, given: u64) -> Result<(), Error> {
        let frame = self.reserve_deferred(writer, given, Ack::Written)?;
        let at = frame.at();
        self.deferred_placed(writer, at, frame.write());
        Ok(())
    }

    /// Gives the deferred groups their place in the log. Nobody is kept from writing by the device, if the
    /// writer is let go before [`DeferredInFlight::wait`].
    /// # Errors
    /// `NoSpace`: they go on waiting. `Poisoned`.
    pub(crate) fn log_deferred_durably(&self, writer: &mut Writer) -> Result<DeferredInFlight<'_>, Error> {
        let frame = self.reserve_deferred(writer, self.snapshots.allocated_seq(), Ack::Durable)?;
        // The half of these groups waits for what is told when the frame is there.
        let (tell, told) = Completion::pair(None);
        self.deferred_placed(writer, frame.at(), told);
        Ok(DeferredInFlight { engine: self, stream: writer.log.stream, frame, tell })
    }

    /// Reserves the last frame of the group of all that is deferred, and writes those before it.
    fn reserve_deferred(&self, writer: &mut Writer, given: u64, ack: Ack) -> Result<ReservedFrame, Error> {
        let Deferred { ops, count, after, .. } = &writer.deferred;
        let group =
            LoggedGroup { first_seq: given + 1 - u64::from(*count), count: *count, ops, after: *after };
        let reserved = writer.log.reserve_group(&self.objects, group, ack);
        reserved.map_err(|error| self.poison.failed_write(error))
    }

    /// The last frame has its place. Whoever wants the log durable asks for more than this frame: no group of
    /// the queue answers for it, so its own promise does not count.
    fn deferred_placed(&self, writer: &mut Writer, at: FramePos, logged: Logged) {
        writer.log.placed(at, Ack::Written);
        let ops = std::mem::take(&mut writer.deferred.ops);
        writer.page_cache_logged(match writer.page_cache_log_covers(ops.len()) {
            true => ReuseAfter::Frame(logged),
            // Until it is written, a record behind it would have a hole in front.
            false => ReuseAfter::NextAckedGroup,
        });
        self.logged(&mut writer.deferred, ops);
    }
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
