//! Groups that are in the memtable and not in the log yet: they gather, and one frame takes them all.
//!
//! Invariants
//! - They go in front of whatever is logged next, in the order of their sequences.
//! - Whoever brings them on their way because they are due waits for the device and keeps nobody from writing meanwhile. Others
//!   wait only for a half of the page-cache log that comes round before its frame is written.
//! - A kill-safe write goes behind them into the page-cache log only when they stand there, too, or their frame is written.

use super::{encode::Encoded, leader::Writer};
use crate::{
    Error,
    budget::{Charge, Class as Memory},
    engine::Engine,
    page_cache_log::{PageCacheLogState, ReuseAfter},
    signal::Sleeper,
};
use bytes::Bytes;
use copal_device::Completion;
use copal_object::{Ack, FramePos, Lsn, ObjectId, StoreError};
use parking_lot::MutexGuard;
use std::time::Instant;

/// Log bytes that deferred groups may keep waiting.
const DEFERRED_BYTES: usize = 1 << 20;

/// See the module.
#[derive(Default)]
pub(super) struct Deferred {
    pub(super) ops: Vec<u8>,
    pub(super) count: u32,
    /// When the first of them was accepted.
    since: Option<Instant>,
    /// The last commit of values that they point to.
    pub(super) after: Option<Lsn>,
    charge: Option<Charge>,
}

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
    fn room_covers(&self, buffered: usize) -> bool {
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

    /// Keeps a group for the log's next one.
    pub(super) fn defer(&self, deferred: &mut Deferred, encoded: &mut Encoded, after: Option<Lsn>) {
        deferred.ops = std::mem::take(&mut encoded.log);
        // And their frame, when they go.
        let bytes = (deferred.ops.capacity() + deferred.ops.len()) as u64;
        match &mut deferred.charge {
            Some(charge) => charge.set(bytes),
            None => deferred.charge = Some(self.budget.charge(Memory::Log, bytes)),
        }
        deferred.count += encoded.count;
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

    /// Brings the deferred groups, which all stand in the page-cache log, on their way into the log. `given` is the last
    /// sequence so far.
    /// # Errors
    /// `NoSpace`: they go on waiting. `Poisoned`.
    pub(crate) fn send_deferred(&self, writer: &mut Writer, given: u64) -> Result<(), Error> {
        let last = self.begin_deferred(writer, given)?;
        let (mut ops, after) = (std::mem::take(&mut writer.deferred.ops), writer.deferred.after);
        let mut place = None;
        let placed = |at| place = Some(at);
        let stream = writer.log.stream;
        let written = self
            .objects
            .append_frame_placed(stream, last, after, Ack::Written, placed);
        let Some(at) = place else {
            writer.deferred.ops = ops;
            return self.not_placed(written);
        };
        self.deferred_placed(writer, at, &mut ops, written);
        Ok(())
    }

    /// Makes the deferred groups durable. The writer is everybody's again as soon as they have their place in the log; blocks
    /// until they are there.
    /// # Errors
    /// `NoSpace`: they go on waiting, and `held` is kept. `Poisoned`.
    pub(crate) fn log_durably(&self, held: &mut Option<MutexGuard<'_, Writer>>) -> Result<(), Error> {
        let Some(writer) = held.as_mut() else {
            return Ok(());
        };
        let last = self.begin_deferred(writer, self.snapshots.given())?;
        let (mut ops, after) = (std::mem::take(&mut writer.deferred.ops), writer.deferred.after);
        let stream = writer.log.stream;
        // The half of these groups waits for what this thread is told below.
        let (tell, told) = Completion::pair(None);
        let mut place = None;
        let durable = self
            .objects
            .append_frame_placed(stream, last, after, Ack::Durable, |at| {
                place = Some(at);
                if let Some(mut writer) = held.take() {
                    self.deferred_placed(&mut writer, at, &mut ops, told);
                }
            });
        if let Some(writer) = held.as_mut() {
            writer.deferred.ops = ops;
            return self.not_placed(durable);
        }
        let durable = durable.wait();
        tell.complete(durable.clone());
        durable.map_err(|error| self.poison.failed_write(error))?;
        // Whoever has the writer now logs more, or syncs for himself.
        if let (Some(at), Some(mut writer)) = (place, self.writer.try_lock()) {
            writer.is_durable(stream, at);
        }
        Ok(())
    }

    /// Begins the group of all that is deferred; returns the payload of its last frame.
    fn begin_deferred(&self, writer: &mut Writer, given: u64) -> Result<Bytes, Error> {
        let Deferred {
            ops, count, after, ..
        } = &writer.deferred;
        let first_seq = given + 1 - u64::from(*count);
        let begun = writer
            .log
            .begin_group(&self.objects, first_seq, *count, ops, *after);
        begun.map_err(|error| self.poison.failed_write(error))
    }

    /// The last frame has its place. Whoever wants the log durable asks for more than this frame: no group of the queue
    /// answers for it, so its own promise does not count.
    fn deferred_placed(&self, writer: &mut Writer, at: FramePos, ops: &mut Vec<u8>, logged: Logged) {
        writer.log.placed(at, Ack::Written);
        writer.page_cache_logged(match writer.room_covers(ops.len()) {
            true => ReuseAfter::Frame(logged),
            // Until it is written, a record behind it would have a hole in front.
            false => ReuseAfter::NextAckedGroup,
        });
        self.logged(&mut writer.deferred, std::mem::take(ops));
    }

    fn not_placed(&self, refused: Logged) -> Result<(), Error> {
        let error = refused.wait().err();
        Err(error.map_or(Error::Closed, |error| self.poison.failed_write(error)))
    }
}
