//! Room for the next group: a memtable that is not full, and the log that goes with it.
//!
//! Invariants
//! - A memtable is frozen when everything in it is visible: nothing is on its way into it.
//! - A log ends when everything in it is durable.
//! - What tables keep in memory stops writes that add to it, and not those that delete, nor flushes: these
//!   make it less.
//! - No memtable is too large to be frozen: room is asked for by what is written, and never by what makes
//!   some.
//! - What a large write takes is charged before it is there, and counted as the memtable's before that is
//!   given back.

use super::{Write, writer::Writer};
use crate::{
    Error,
    engine::Engine,
    memory::budget::Class as Memory,
    session::{counters::Counters, signal::Sleeper},
    table::key::KeyRange,
    tree::{manifest::format::Level, memtable::Memtable, super_version::SuperVersion, version::Slice},
    write::log::Log,
};
use copal_object::{Ack, Op, Txn};
use std::{
    sync::{Arc, atomic::Ordering},
    time::Instant,
};

/// Writes that take as much are worth a look at the caches.
const LARGE_BYTES: u64 = 64 << 10;
/// What a memtable holds at least when a put that finds no space begins its flush.
const FLUSHED_FOR_SPACE: u64 = 1 << 20;

impl Engine {
    /// Passes a batch through the log. Caches give way before a large one goes into log and memtable.
    pub(crate) fn commit_with_room(&self, write: Write) -> Result<(), Error> {
        let bytes = write.room_bytes;
        if bytes < LARGE_BYTES {
            return self.commit(write);
        }
        let _room = self.budget.charge(Memory::Log, bytes);
        let committed = self.commit(write);
        self.budget.count_memtables();
        committed
    }

    /// Whether there is room in memtable and budget for a group that takes `bytes` of them; waits for it.
    /// Freezes a full memtable in any case: the next one takes nothing before there is room for what goes
    /// into it, and only the flush of this one may make some.
    /// # Errors
    /// `OverBudget`: there is none, and nothing the engine does would make some. `NoSpace`: the flush that
    /// would finds none.
    pub(super) fn make_room(&self, writer: &mut Writer, bytes: u64, frees_space: bool) -> Result<(), Error> {
        loop {
            self.poison.check()?;
            writer.check_open()?;
            if self.signal.stopping() {
                return Err(Error::Closed);
            }
            let view = self.super_version();
            let limit = self.budget.memtable_bytes();
            let charged = view.active.charged_bytes();
            let is_full = charged >= limit;
            if !is_full && writer.has_room && charged + bytes <= limit {
                return Ok(());
            }
            let rest = bytes.max(limit.saturating_sub(charged));
            let room = self.budget.room_for_writes(rest);
            if !is_full && room.is_ok() {
                writer.has_room = true;
                return Ok(());
            }
            if view.frozen.is_empty() {
                if is_full {
                    self.rotate(writer)?;
                    continue;
                }
                if self.merge_may_make_room(writer, rest, frees_space) && self.wait_for_memory(writer, rest) {
                    continue;
                }
                // Beside a small part of a memtable there is as much room as beside none: a flush would make
                // no more.
                if frees_space || charged <= limit / 8 {
                    return self.room_for_a_delete(frees_space, room);
                }
                self.rotate(writer)?;
                continue;
            }
            if self.signal.flush_is_stuck() {
                return if frees_space && charged < 2 * limit { Ok(()) } else { Err(Error::NoSpace) };
            }
            self.wait_for_a_flush(writer, view.frozen.len());
        }
    }

    /// What frees space goes on where what tables keep in memory leaves no `room`: only readers of old
    /// memtables stop it.
    fn room_for_a_delete(&self, frees_space: bool, room: Result<(), Error>) -> Result<(), Error> {
        if !frees_space {
            return room;
        }
        if self.budget.room_beside_readers().is_err() {
            // A flush and a step of a merge give back what they took when they end.
            drop(self.compactor.stand_still());
        }
        self.budget.room_beside_readers()
    }

    /// Waits until fewer than `frozen` memtables are, unless the next flush finds no space.
    fn wait_for_a_flush(&self, writer: &mut Writer, frozen: usize) {
        // The flusher could not: it does not get the writer meanwhile.
        self.log_deferred_now(writer);
        self.attend();
        let began = Instant::now();
        // A flush that fails poisons the store: it will not come.
        self.signal
            .wait_for_flush(|| self.super_version().frozen.len() < frozen || self.poison.check().is_err());
        Counters::add_time(&self.counters.stalled_nanos, began);
    }

    /// Whether a merge of everything is worth waiting for by someone for whom memtables have no room. Range
    /// deletes go with it; what else it frees is unknown, so once it did not help puts wait for it again when
    /// an eighth of the store is new, and what frees space goes on without room.
    fn merge_may_make_room(&self, writer: &Writer, bytes: u64, frees_space: bool) -> bool {
        if self.stands_at_the_bottom() {
            return false;
        }
        let ranges = self.budget.used(Memory::RangeTombstones);
        let goes =
            ranges >= self.budget.total_bytes() / 16 && 2 * ranges >= self.budget.missing_for_writes(bytes);
        if goes || frees_space {
            return goes;
        }
        let version = self.super_version().version.clone();
        let bytes_of = |is_new: bool| -> u64 {
            let runs = version.runs.iter().filter(|run| !is_new || run.level != Level::BOTTOM);
            runs.flat_map(|run| &run.slices).map(Slice::bytes).sum()
        };
        !writer.merged_in_vain || 8 * bytes_of(true) >= bytes_of(false)
    }

    /// Waits, where memtables have no room for `bytes` more, for merges: what tables keep in memory is least
    /// once all of it is in the bottom. Whether there is room then.
    fn wait_for_memory(&self, writer: &mut Writer, bytes: u64) -> bool {
        // The flusher could not: it does not get the writer meanwhile.
        self.log_deferred_now(writer);
        let began = Instant::now();
        let merged = self.compactor.jobs.request(KeyRange::all());
        self.signal.kick();
        self.attend();
        // A merge that fails for good poisons the store; one may take longer than a closing store has.
        let ends = || self.poison.check().is_err() || self.closed.load(Ordering::Acquire);
        self.signal.wait_for(|| merged.result().is_some() || ends());
        Counters::add_time(&self.counters.stalled_nanos, began);
        let helped = self.budget.room_for_writes(bytes).is_ok();
        writer.merged_in_vain = !helped;
        helped
    }

    /// Whether a merge of everything would find nothing to bring together or to drop.
    fn stands_at_the_bottom(&self) -> bool {
        let oldest = self.snapshots.stripes().oldest();
        let version = self.super_version().version.clone();
        let is_clean = |slice: &Slice| slice.table.meta.droppable == 0 || slice.table.meta.max_seq > oldest;
        match &version.runs[..] {
            [] => true,
            [run] => run.level == Level::BOTTOM && run.slices.iter().all(is_clean),
            _ => false,
        }
    }

    /// Waits for the flush under way, which gives the space of its log back; whether there was one, and it
    /// succeeded.
    pub(super) fn wait_for_space(&self, writer: &mut Writer) -> bool {
        let frozen = self.super_version().frozen.len();
        if frozen == 0 || self.signal.flush_is_stuck() {
            return false;
        }
        self.wait_for_a_flush(writer, frozen);
        self.super_version().frozen.len() < frozen
    }

    /// What memtables hold stands in their logs as well: where that is much, a flush may be all that a put
    /// lacks.
    pub(super) fn begin_flush_for_space(&self, writer: &mut Writer) {
        let view = self.super_version();
        let is_much =
            view.active.charged_bytes() >= FLUSHED_FOR_SPACE || self.log_is_long_for_reserve(writer);
        if !view.frozen.is_empty() || !is_much || self.signal.flush_is_stuck() {
            return;
        }
        drop(view);
        if let Err(error) = self.in_whole_reserve(|| self.rotate(writer)) {
            tracing::debug!(%error, "a full store began no flush");
        }
    }

    /// Whether the log holds so many pages that the reserve is soon used up by more of them.
    pub(super) fn log_is_long_for_reserve(&self, writer: &Writer) -> bool {
        const PAGE: u64 = 4096;
        let share = self.writes.reserve.share_bytes(&self.objects);
        writer.log.frames() * PAGE >= (share / 8).max(FLUSHED_FOR_SPACE / 4)
    }

    /// Whether there is room for a put once no step of a merge and no flush uses the reserve.
    pub(super) fn has_room_when_still(&self, bytes: u64) -> bool {
        let _still = self.compactor.stand_still();
        self.has_reserve_beside(bytes)
    }

    /// Freezes the active memtable, if it holds anything, and opens a new log and memtable.
    pub(crate) fn rotate(&self, writer: &mut Writer) -> Result<(), Error> {
        self.writes.queue.drain()?;
        if self.super_version().active.is_empty() {
            return Ok(());
        }
        writer.check_open()?;
        let generation = writer.log.generation + 1;
        let fail = |error| self.poison.failed_write(error);
        let log = Log::create(&self.objects, generation, self.new_object()).map_err(fail)?;
        if let Err(error) = writer.sync(&self.objects, self.snapshots.allocated_seq()) {
            let ops = vec![Op::Delete { id: log.stream }];
            let error = self.poison.failed_write(error);
            if let Err(second) = self.objects.commit(Txn::new().ops(ops), Ack::Ordered).wait() {
                self.poison.set_by(&Error::Object(second));
            }
            return Err(error);
        }
        let active = Arc::new(Memtable::new(generation, log.stream));
        self.budget.watch(&active);
        writer.log = log;
        writer.has_room = false;
        self.change_super_version(|view| {
            let mut frozen = view.frozen.clone();
            frozen.insert(0, view.active.clone());
            SuperVersion { active, frozen, version: view.version.clone() }
        });
        self.signal.kick_one(Sleeper::Flusher);
        Ok(())
    }

    /// Everything logged so far is durable.
    pub(crate) fn sync(&self) -> Result<(), Error> {
        if self.options.read_only {
            return Ok(());
        }
        self.poison.check()?;
        let mut writer = self.writes.writer.lock();
        writer.check_open()?;
        self.sync_log(&mut writer)
    }

    /// The last sync: whoever comes later is told that the store is closed.
    pub(crate) fn end_writes(&self) -> Result<(), Error> {
        let mut writer = self.writes.writer.lock();
        writer.closed = true;
        if self.options.read_only {
            return Ok(());
        }
        self.poison.check()?;
        self.sync_log(&mut writer)
    }

    /// What is on its way has arrived, what was deferred is logged, and all of it is durable.
    pub(crate) fn sync_log(&self, writer: &mut Writer) -> Result<(), Error> {
        self.writes.queue.drain()?;
        self.in_whole_reserve(|| {
            let synced = writer.sync(&self.objects, self.snapshots.allocated_seq());
            synced.map_err(|error| self.poison.failed_write(error))
        })
    }
}

#[cfg(test)]
mod tests;
