//! What only the thread that has the turn touches: the log, what is deferred, the page-cache log.
//!
//! Not here: what is done with it in a turn (`leader`), when there is room for more (`room`).

use crate::{
    Error,
    memory::budget::MemoryCharge,
    write::{
        log::{LoggedGroup, WriteLog},
        page_cache_log::{PageCacheLogState, ReuseAfter},
    },
};
use copal_object::{Ack, Lsn, ObjectId, ReservedFrame, Store as Objects, StoreError};
use std::time::Instant;

/// Groups that are in the memtable and not in the log yet; see `deferred`.
#[derive(Default)]
pub(super) struct DeferredWrites {
    pub(super) ops: Vec<u8>,
    pub(super) count: u32,
    /// When the first of them was accepted.
    pub(super) since: Option<Instant>,
    /// The last commit of values that they point to.
    pub(super) after: Option<Lsn>,
    pub(super) charge: Option<MemoryCharge>,
}

/// What only the thread that has the turn touches.
pub(crate) struct LogWriter {
    pub(crate) log: WriteLog,
    pub(super) deferred: DeferredWrites,
    pub(crate) page_cache_log: PageCacheLogState,
    /// The stream that an earlier session made for its page-cache log, and did not begin to use.
    pub(crate) page_cache_stream: Option<ObjectId>,
    /// The budget had room for all that the memtable may hold.
    pub(in crate::write) has_room: bool,
    /// The last merge of everything did not make that room.
    pub(in crate::write) merged_in_vain: bool,
    /// The store is closed: nothing more is written.
    pub(in crate::write) closed: bool,
}

impl LogWriter {
    pub(crate) fn new(log: WriteLog) -> LogWriter {
        LogWriter {
            log,
            deferred: DeferredWrites::default(),
            page_cache_log: PageCacheLogState::default(),
            page_cache_stream: None,
            has_room: false,
            merged_in_vain: false,
            closed: false,
        }
    }

    /// # Errors
    /// `Closed`: the objects belong to the next opening, and nothing is written to them any more.
    pub(crate) fn check_open(&self) -> Result<(), Error> {
        if self.closed { Err(Error::Closed) } else { Ok(()) }
    }

    /// Copies a group, which takes sequences behind `given`, to the page-cache log, and with it what was
    /// deferred before it and does not stand there yet.
    pub(super) fn copy_to_page_cache_log(
        &mut self,
        log: &[u8],
        count: u32,
        given: u64,
    ) -> Result<(), StoreError> {
        if let PageCacheLogState::Open(cache_log) = &mut self.page_cache_log {
            let before = self.deferred.count - cache_log.copied_count;
            let first_seq = given + 1 - u64::from(before);
            cache_log.copy(log, first_seq, before + count)?;
        }
        Ok(())
    }

    /// The page-cache log learns that the log took all that was deferred.
    pub(super) fn page_cache_logged(&mut self, reuse: ReuseAfter) {
        if let PageCacheLogState::Open(cache_log) = &mut self.page_cache_log {
            cache_log.logged(reuse);
        }
    }

    /// Reserves the last frame of a group of `count` operations, deferred writes included: `log` holds them
    /// all. The frames before it are written. `given` is the last sequence so far.
    pub(super) fn reserve_group(
        &mut self,
        objects: &Objects,
        given: u64,
        (log, count): (&[u8], u32),
        after: Option<Lsn>,
        ack: Ack,
    ) -> Result<ReservedFrame, StoreError> {
        let before = &self.deferred;
        let group = LoggedGroup {
            first_seq: given + 1 - u64::from(before.count),
            count: before.count + count,
            ops: log,
            after: after.or(before.after),
        };
        self.log.reserve_group(objects, group, ack)
    }

    /// Brings the deferred groups into the log, and makes everything in it durable. `given` is the last
    /// sequence so far; nothing is on its way.
    /// # Errors
    /// `NoSpace`: they go on waiting. Otherwise a failed write.
    pub(crate) fn sync(&mut self, objects: &Objects, given: u64) -> Result<(), StoreError> {
        let DeferredWrites { ops, count, after, .. } = &self.deferred;
        if *count > 0 || self.log.unsynced {
            let group =
                LoggedGroup { first_seq: given + 1 - u64::from(*count), count: *count, ops, after: *after };
            self.log.append_durably(objects, group)?;
            self.deferred = DeferredWrites::default();
        }
        if let PageCacheLogState::Open(cache_log) = &mut self.page_cache_log {
            cache_log.all_written();
        }
        Ok(())
    }
}
