//! What the leader of a group does in its turn: make room, place values, log; then insert.
//!
//! Invariants
//! - A group takes its sequences when its last frame has its number: sequences have no gaps. Only a device that fails
//!   undoes that, and then nothing is written any more.
//! - A `Deferred` group is inserted at once and logged within 100 ms or 1 MiB, in front of whatever is logged next. A
//!   `Process` group is treated like one where the page-cache log takes a copy of it (`enter`).
//! - `NoSpace` leaves log, value objects and memtable as they were. A group refused for lack of space or memory is tried
//!   again write by write, so that a delete is not refused because of its neighbour, and a put is not refused while a
//!   flush under way gives back a log.

use super::{
    Write,
    deferred::Deferred,
    encode::{Encoded, close_covered, insert},
    queue::{Landing, Turn},
    values::{DirectValues, Placement},
};
use crate::{
    Durability, Error,
    broken::Flaw,
    budget::{Charge, Class as Memory},
    engine::Engine,
    entry::LAST_SEQ,
    log::Log,
    page_cache_log::{PageCacheLogState, ReuseAfter},
};
use bytes::Bytes;
use copal_device::Completion;
use copal_object::{Ack, FramePos, Lsn, ObjectId, Op, Store as Objects, StoreError, Txn};
use parking_lot::MutexGuard;

/// What only the thread that has the turn touches.
pub(crate) struct Writer {
    pub(crate) log: Log,
    pub(super) deferred: Deferred,
    pub(crate) page_cache_log: PageCacheLogState,
    /// The stream that an earlier session made for its page-cache log, and did not begin to use.
    pub(crate) page_cache_stream: Option<ObjectId>,
    /// The budget had room for all that the memtable may hold.
    pub(super) has_room: bool,
    /// The last merge of everything did not make that room.
    pub(super) merged_in_vain: bool,
    /// The store is closed: nothing more is written.
    pub(super) sealed: bool,
}

impl Writer {
    pub(crate) fn new(log: Log) -> Writer {
        Writer {
            log,
            deferred: Deferred::default(),
            page_cache_log: PageCacheLogState::default(),
            page_cache_stream: None,
            has_room: false,
            merged_in_vain: false,
            sealed: false,
        }
    }

    /// # Errors
    /// `Closed`: the objects belong to the next opening, and nothing is written to them any more.
    pub(crate) fn check_open(&self) -> Result<(), Error> {
        if self.sealed { Err(Error::Closed) } else { Ok(()) }
    }

    /// Copies a group, which takes sequences behind `given`, to the page-cache log, and with it what was deferred before
    /// it and does not stand there yet.
    fn copy_to_room(&mut self, encoded: &Encoded, given: u64) -> Result<(), StoreError> {
        if let PageCacheLogState::Open(cache_log) = &mut self.page_cache_log {
            let before = self.deferred.count - cache_log.copied_count;
            let first_seq = given + 1 - u64::from(before);
            cache_log.copy(&encoded.log, first_seq, before + encoded.count)?;
        }
        Ok(())
    }

    /// The page-cache log learns that the log took all that was deferred.
    pub(super) fn page_cache_logged(&mut self, reuse: ReuseAfter) {
        if let PageCacheLogState::Open(cache_log) = &mut self.page_cache_log {
            cache_log.logged(reuse);
        }
    }

    /// Begins the group of `encoded`, deferred writes included; returns the payload of its last frame and
    /// the commit that frame comes after. `given` is the last sequence so far.
    fn begin_group(
        &mut self,
        objects: &Objects,
        given: u64,
        encoded: &Encoded,
        after: Option<Lsn>,
    ) -> Result<(Bytes, Option<Lsn>), StoreError> {
        let before = &self.deferred;
        let after = after.or(before.after);
        let (count, first_seq) = (before.count + encoded.count, given + 1 - u64::from(before.count));
        let last = self
            .log
            .begin_group(objects, first_seq, count, &encoded.log, after)?;
        Ok((last, after))
    }

    /// Brings the deferred groups into the log, and makes everything in it durable. `given` is the last sequence so
    /// far; nothing is on its way.
    /// # Errors
    /// `NoSpace`: they go on waiting. Otherwise a failed write.
    pub(crate) fn sync(&mut self, objects: &Objects, given: u64) -> Result<(), StoreError> {
        let Deferred {
            ops, count, after, ..
        } = &self.deferred;
        if *count > 0 || self.log.unsynced {
            let first_seq = given + 1 - u64::from(*count);
            self.log.append_durably(objects, first_seq, *count, ops, *after)?;
            self.deferred = Deferred::default();
        }
        if let PageCacheLogState::Open(cache_log) = &mut self.page_cache_log {
            cache_log.all_written();
        }
        Ok(())
    }
}

/// The turn of a group, and whether it is spent on one of its writes only.
struct Course {
    turn: Option<Turn>,
    part: bool,
}

impl Course {
    fn place(&mut self, last_seq: u64) -> Option<Landing> {
        let turn = self.turn.as_mut()?;
        Some(if self.part {
            turn.place_part(last_seq)
        } else {
            turn.place(last_seq)
        })
    }
}

type Held<'a> = Option<MutexGuard<'a, Writer>>;

/// A group in the memtable whose bytes are on their way to the device.
#[must_use = "the group lands when it is waited for"]
pub(crate) struct Underway {
    landing: Landing,
    completion: Completion<Result<FramePos, StoreError>>,
    /// Operations, frames, and their copy on the way to the device: until the answer, which for deferred writes is
    /// there at once and leaves the copy to the object layer's own limit.
    charge: Charge,
}

impl Underway {
    /// Waits until the group is as safe as it was promised to be, or has failed.
    pub(crate) fn wait(self) {
        let result = self.completion.wait();
        drop(self.charge);
        self.landing.land(result.map(drop));
    }

    /// Lets the thread that delivers the device's answer do the rest.
    pub(super) fn detach(self) {
        let Underway {
            landing,
            completion,
            charge,
        } = self;
        completion.on_complete(move |result| {
            drop(charge);
            landing.land(result.map(drop));
        });
    }
}

impl Engine {
    /// Brings `writes` into log and memtable as one group, where that is possible.
    pub(crate) fn lead(&self, turn: Turn, mut writes: Vec<Write>) -> Option<Underway> {
        self.pace(writes.iter().map(|write| write.user_bytes).sum());
        let mut held = Some(self.writer.lock());
        let mut course = Course {
            turn: Some(turn),
            part: false,
        };
        let frees_space = writes.iter().all(|write| write.frees_space);
        let bytes = writes.iter().map(|write| write.room_bytes).sum();
        let launched = match held.as_mut() {
            Some(writer) => self.make_room(writer, bytes, frees_space),
            None => Err(Error::Closed),
        }
        .and_then(|()| self.launch(&mut held, &mut course, &mut writes));
        let error = match launched {
            Ok(underway) => return underway,
            Err(error) => error,
        };
        let turn = course.turn.take()?;
        if error.is_no_space() || matches!(error, Error::OverBudget { .. }) {
            self.lead_alone(held, turn, &mut writes);
        } else {
            drop(held);
            turn.refuse(error);
        }
        None
    }

    /// Each write as its own group; one that frees space may use the reserve.
    fn lead_alone<'a>(&'a self, mut held: Held<'a>, turn: Turn, writes: &mut [Write]) {
        let mut course = Course {
            turn: Some(turn),
            part: true,
        };
        let mut attempt = |write: &mut Write, held: &mut Held<'a>| {
            if let Some(writer) = held.as_mut() {
                self.make_room(writer, write.room_bytes, write.frees_space)?;
            }
            let underway = self.launch(held, &mut course, std::slice::from_mut(write))?;
            if let Some(underway) = underway {
                underway.wait();
            }
            self.queue.drain()
        };
        let mut results = Vec::with_capacity(writes.len());
        for write in writes {
            let is_full = |result: &Result<(), Error>| result.as_ref().is_err_and(Error::is_no_space);
            let mut result = attempt(write, &mut held);
            if write.frees_space && is_full(&result) {
                let opened = self.reserve.open(&self.objects);
                result = attempt(write, &mut held);
                drop(opened);
                self.signal.kick();
            }
            // It may be full for the moment only, while a flush is under way.
            while !write.frees_space
                && is_full(&result)
                && held.as_mut().is_some_and(|writer| self.wait_for_space(writer))
            {
                result = attempt(write, &mut held);
            }
            results.push(result);
        }
        drop(held);
        if let Some(turn) = course.turn.take() {
            turn.answer(results);
        }
    }

    /// Brings `writes` on their way as one group, and inserts them: their operations go into the memtable as they are, not as
    /// copies that would count references in allocations of their own. The turn is passed on and the writer let go as soon
    /// as the group has its place in the log; a part of a group keeps both.
    /// # Errors
    /// `NoSpace`: nothing happened. `Poisoned`.
    fn launch<'a>(
        &'a self,
        held: &mut Held<'a>,
        course: &mut Course,
        writes: &mut [Write],
    ) -> Result<Option<Underway>, Error> {
        self.poison.check()?;
        // While the reserve is open or spent, its space is not for writes that only add.
        if !writes.iter().all(|write| write.frees_space) && !self.reserve.refill(&self.objects) {
            return Err(Error::NoSpace);
        }
        let Some(writer) = held.as_mut() else {
            return Err(Error::Closed);
        };
        let bytes: usize = writes.iter().map(|write| write.log_bytes).sum();
        let charge = self.budget.charge(Memory::Log, 3 * bytes as u64);
        let given = self.snapshots.given();
        let count: u64 = writes.iter().map(|write| write.ops.len() as u64).sum();
        if given + count > LAST_SEQ {
            return Err(Error::NumbersUsedUp);
        }
        let durability = writes.iter().map(|write| write.durability).min();
        let durability = durability.unwrap_or_default();
        let enters =
            durability == Durability::Process && self.fits_page_cache_log(writer, writes, bytes, given)?;
        let deferred = writer.deferred.ops.len();
        // Nobody waits for the log of deferred writes: once there is enough of it, it is on its way.
        let is_deferred = durability == Durability::Deferred;
        let later = enters || is_deferred && deferred + bytes <= self.deferred_bytes();
        let mut values = Some(self.direct_values.lock());
        let mut placement = Placement::default();
        let log = std::mem::take(&mut writer.deferred.ops);
        let mut encoded = match values.as_mut() {
            Some(values) => self.encode(log, values, &mut placement, writes, given + 1),
            None => return Err(Error::Closed),
        };
        let last_seq = given + u64::from(encoded.count);
        let memtable = self.view().active.clone();
        let ack = match durability {
            Durability::Device => Ack::Durable,
            Durability::Process => Ack::Written,
            Durability::Deferred => Ack::Ordered,
        };
        let begun = self.append_values(&mut placement).and_then(|after| {
            if enters && !self.broken(Flaw::PageCacheLogPassedBy) {
                writer.copy_to_room(&encoded, given)?;
            }
            if later {
                return Ok((None, after));
            }
            let (last, after) = writer.begin_group(&self.objects, given, &encoded, after)?;
            Ok((Some(last), after))
        });
        let (last, after) = match begun {
            Ok(begun) => begun,
            Err(error) => {
                writer.deferred.ops = encoded.without_own(deferred);
                return Err(self.take_back(values, placement, error));
            }
        };
        let stream = writer.log.stream;
        let mut landing = None;
        // Once the group has its place: the order of these steps is what the next leader relies on.
        let mut placed = |held: &mut Held<'a>| {
            self.snapshots.give(last_seq);
            for meta in std::mem::take(&mut placement.touched).into_values() {
                memtable.note_value(meta);
            }
            if let Some(values) = values.as_mut() {
                close_covered(values, writes);
            }
            landing = course.place(last_seq);
            values = None;
            if !course.part {
                *held = None;
                course.turn = None;
            }
        };
        let completion = match last {
            None => {
                if let Some(writer) = held.as_mut() {
                    self.defer(&mut writer.deferred, &mut encoded, after);
                }
                placed(held);
                None
            }
            Some(last) => Some(self.objects.append_frame_placed(stream, last, after, ack, |at| {
                if let Some(writer) = held.as_mut() {
                    writer.log.placed(at, ack);
                    writer.page_cache_logged(match ack {
                        Ack::Ordered => ReuseAfter::NextAckedGroup,
                        Ack::Written | Ack::Durable => ReuseAfter::Group(last_seq),
                    });
                    self.logged(&mut writer.deferred, std::mem::take(&mut encoded.log));
                }
                placed(held);
            })),
        };
        let Some(landing) = landing else {
            let error = match completion.map(|completion| completion.wait()) {
                Some(Err(error)) => error,
                Some(Ok(_)) | None => return Err(Error::Closed),
            };
            if let Some(writer) = held.as_mut() {
                writer.deferred.ops = encoded.without_own(deferred);
            }
            return Err(self.take_back(values, placement, error));
        };
        insert(&memtable, &self.rows, writes, encoded, given + 1);
        self.count_room_of(writes);
        self.counters.entered_room(enters);
        let bytes = writes.iter().map(|write| write.user_bytes).sum();
        self.counters.wrote(writes.len() as u64, bytes);
        match completion {
            None => {
                landing.land(Ok(()));
                Ok(None)
            }
            Some(completion) => Ok(Some(Underway {
                landing,
                completion,
                charge,
            })),
        }
    }

    /// Appends the values, ordered before the log frames; returns the commit the frames come after.
    fn append_values(&self, placement: &mut Placement) -> Result<Option<Lsn>, StoreError> {
        let mut after = None;
        for ops in std::mem::take(&mut placement.txns) {
            after = Some(
                self.objects
                    .commit(
                        Txn {
                            ops,
                            ..Txn::default()
                        },
                        Ack::Ordered,
                    )
                    .wait()?,
            );
        }
        Ok(after.filter(|_| !self.broken(Flaw::LogBeforeValues)))
    }

    /// Cuts off what a failed group appended; turns the failure into what the writer is told.
    fn take_back(
        &self,
        values: Option<MutexGuard<'_, DirectValues>>,
        placement: Placement,
        error: StoreError,
    ) -> Error {
        let error = self.poison.failed_write(error);
        let Some(mut values) = values else { return error };
        let mut ops = values.undo(placement);
        ops.retain(|op| match op {
            Op::Truncate { id, len } => self.objects.stat(*id).is_some_and(|stat| stat.len > *len),
            Op::Delete { id } => self.objects.stat(*id).is_some(),
            _ => true,
        });
        if error.is_no_space() && !ops.is_empty() {
            let undone = self
                .objects
                .commit(
                    Txn {
                        ops,
                        ..Txn::default()
                    },
                    Ack::Ordered,
                )
                .wait();
            if let Err(second) = undone {
                // The lengths are no longer known to be those of the open objects.
                self.poison.set(&format!("could not take back a value: {second}"));
            }
        }
        error
    }
}
