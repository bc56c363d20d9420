//! Kill-safe groups on their way through the waiting room instead of the device.
//!
//! Invariants
//! - A group that does not go through the room goes into the log at once, with all that was deferred before it, and is
//!   answered when that is written.
//! - Nobody but kill-safe writers pays for the room: without them there is none.
//!
//! Not here: what stands in the room (`waiting`), reading it back (`recovery::take_in`).

use super::{Write, WriteOp, leader::Writer};
use crate::{
    Error,
    broken::Flaw,
    engine::Engine,
    waiting::{self, Waiting},
};
use copal_object::StoreError;

impl Engine {
    /// Whether `writes`, `bytes` of log at most, may be answered as soon as they are copied to the room, which is made
    /// ready for them. A full buffer of deferred writes goes into the log first; nobody waits for it but whoever needs
    /// its bay next.
    /// # Errors
    /// `NoSpace`: nothing happened. `Poisoned`.
    pub(super) fn enters_room(
        &self,
        writer: &mut Writer,
        writes: &[Write],
        bytes: usize,
        given: u64,
    ) -> Result<bool, Error> {
        let mut ops = writes.iter().flat_map(|write| &write.ops);
        if bytes > self.deferred_bytes() || ops.any(|op| matches!(op, WriteOp::Direct { .. })) {
            return Ok(false);
        }
        self.open_room(writer)?;
        let buffered = writer.deferred_bytes();
        let names_values = writer.deferred_names_values();
        let Waiting::Open(room) = &writer.waiting else {
            return Ok(false);
        };
        if names_values || !room.is_watched() {
            return Ok(false);
        }
        if buffered + bytes > self.deferred_bytes() || !room.fits(buffered, bytes) {
            // What only the buffer holds would be nowhere until its frame is written.
            if !room.covers(buffered) {
                return Ok(false);
            }
            if buffered > 0 {
                self.send_deferred(writer, given)?;
            }
        }
        let buffered = writer.deferred_bytes();
        let Waiting::Open(room) = &mut writer.waiting else {
            return Ok(false);
        };
        if self.broken(Flaw::BayReusedEarly) {
            room.forget_hold();
        }
        let is_free = room.is_free(self.snapshots.visible());
        let is_free = is_free.map_err(|error| self.poison.failed_write(error))?;
        Ok(is_free && room.fits(buffered, bytes))
    }

    /// The first kill-safe write of a session makes the room. What a store has no space for it does without.
    fn open_room(&self, writer: &mut Writer) -> Result<(), Error> {
        // What is kept back for deletes is not for the room.
        if !matches!(writer.waiting, Waiting::Unasked) || !self.reserve.refill(&self.objects) {
            return Ok(());
        }
        writer.waiting = Waiting::Absent;
        let session = crate::recovery::random_number()?;
        let new = || self.new_object();
        match waiting::make(&self.objects, &self.budget, session, writer.room_stream, new) {
            Ok(None) | Err(StoreError::NoSpace { .. }) => {}
            Ok(Some(room)) => writer.waiting = Waiting::Open(Box::new(room)),
            Err(error) => return Err(self.poison.failed_write(error)),
        }
        Ok(())
    }
}
