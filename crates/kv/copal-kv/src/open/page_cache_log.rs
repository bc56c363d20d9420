//! What stands in the page-cache log behind the end of the logs: into the log, into the memtable.
//!
//! Invariants
//! - It is durable in the log before anyone sees it, and the page-cache log counts no more before anything is
//!   written to it or to the log: a record of this session is never mistaken for one of the next.
//! - Records are taken exactly in sequence. Where they do not go on, a power loss took them, or nobody was
//!   told of them.
//! - One record is in memory at a time, and what is gathered for one frame. A full memtable becomes a table
//!   first, where there is space.

use crate::{
    Error,
    broken::Flaw,
    engine::Engine,
    memory::budget::Class as Memory,
    open::{insert, leftovers::Found},
    table::entry::LAST_SEQ,
    write::{
        log::LoggedGroup,
        page_cache_log::{PageCacheLog, PageCacheLogState, format::Records, random_number},
    },
};

/// Log bytes that are gathered for one group.
const GATHERED_BYTES: usize = 256 << 10;

/// Operations that are in memory and not in the log yet.
#[derive(Default)]
struct Gathered {
    ops: Vec<u8>,
    count: u32,
}

impl Engine {
    /// See the module. Blocks; nothing else has begun.
    /// # Errors
    /// `NoSpace`: the log has none for what waits; it goes on waiting. `OverBudget`: a read-only store has no
    /// cache_log for it in memory. `Corrupt`: a later build wrote it. A failed read or write.
    pub(crate) fn replay_page_cache_log(&self, found: &Found) -> Result<(), Error> {
        let Some(stream) = found.page_cache_log else {
            return Ok(());
        };
        let Some(extent) = self.objects.raw_extent(stream, 0)? else {
            self.writes.writer.lock().page_cache_stream = Some(stream);
            return Ok(());
        };
        let header = crate::write::page_cache_log::header_of(&extent)?;
        if let Some(header) = header {
            let records = Records::new(header, |at, out: &mut [u8]| Ok(extent.read(at, out)?));
            self.take_records(records)?;
        }
        if self.options.read_only {
            return Ok(());
        }
        let has_cache = self.objects.has_page_cache();
        let session = match header {
            Some(header) if self.broken(Flaw::SessionGoesOn) => header.session,
            _ => random_number()?,
        };
        let cache_log = PageCacheLog::begin(extent, session, &self.budget, false)
            .map_err(|error| self.poison.failed_write(error))?;
        self.writes.writer.lock().page_cache_log =
            if has_cache { PageCacheLogState::Open(Box::new(cache_log)) } else { PageCacheLogState::Absent };
        Ok(())
    }

    fn take_records<R>(&self, mut records: Records<R>) -> Result<(), Error>
    where
        R: FnMut(u64, &mut [u8]) -> Result<(), Error>,
    {
        let mut charge = self.budget.charge(Memory::Log, 0);
        let gathered_bytes = 3 * GATHERED_BYTES as u64;
        let mut held = |bytes| charge.set(gathered_bytes + bytes);
        let mut gathered = Gathered::default();
        let mut last_seq = self.snapshots.allocated_seq();
        while let Some(record) = records.next(last_seq, &mut held)? {
            if gathered.ops.len() + record.encoded.len() > GATHERED_BYTES {
                self.log_gathered(&mut gathered, last_seq)?;
                self.make_space_to_take()?;
            }
            if last_seq + record.ops.len() as u64 > LAST_SEQ {
                return Err(Error::NumbersUsedUp);
            }
            gathered.ops.extend_from_slice(&record.encoded);
            gathered.count += record.ops.len() as u32;
            let active = self.super_version().active.clone();
            for op in record.ops {
                last_seq += 1;
                insert(&active, op, last_seq);
            }
        }
        self.log_gathered(&mut gathered, last_seq)?;
        self.make_space_to_take()
    }

    /// Logs what was gathered, durably, and shows it.
    fn log_gathered(&self, gathered: &mut Gathered, last_seq: u64) -> Result<(), Error> {
        let Gathered { ops, count } = std::mem::take(gathered);
        if count == 0 {
            return Ok(());
        }
        if !self.options.read_only {
            let group =
                LoggedGroup { first_seq: last_seq + 1 - u64::from(count), count, ops: &ops, after: None };
            let log = &mut self.writes.writer.lock().log;
            self.in_whole_reserve(|| {
                let logged = log.append_durably(&self.objects, group);
                logged.map_err(|error| self.poison.failed_write(error))
            })?;
        }
        self.snapshots.advance(last_seq);
        Ok(())
    }

    /// Counts the memtable; a full one becomes a table.
    fn make_space_to_take(&self) -> Result<(), Error> {
        self.budget.count_memtables();
        if self.options.read_only {
            return self.budget.check_used();
        }
        if self.super_version().active.charged_bytes() < self.budget.memtable_bytes() {
            return Ok(());
        }
        let made = self.flush_taken();
        match made {
            // What is logged stays in memory: the page-cache log is small.
            Err(error) if error.is_no_space() => Ok(()),
            made => made,
        }
    }

    fn flush_taken(&self) -> Result<(), Error> {
        let flush = || {
            let _step = self.compactor.step.lock();
            self.flush_all()
        };
        flush()?;
        self.rotate(&mut self.writes.writer.lock())?;
        flush().map(drop)
    }
}
