//! Replays the page-cache log after the end of the logs: its records go to the log and to the memtable.
//!
//! Invariants
//! - Records are durable in the log before a reader sees them.
//! - Before the session writes anything else to the log or to the page-cache log, the old records no longer
//!   count. So a record of one session is never mistaken for one of the next.
//! - Records are taken exactly in sequence. If one is missing, a power loss took it, or it was never
//!   acknowledged.
//! - Memory holds one record, and the operations gathered for one frame. A full memtable is flushed first, if
//!   there is space.

use crate::{
    Error,
    broken::Flaw,
    compact::flusher,
    engine::Engine,
    format::entry::LAST_SEQ,
    memory::budget::MemoryClass as Memory,
    open::{insert, leftovers::FoundObjects},
    write::{
        admission,
        log::LoggedGroup,
        page_cache_log::{PageCacheLog, PageCacheLogState, format::RecordReader, random_number},
    },
};

/// Log bytes gathered for one group.
const GATHERED_BYTES: usize = 256 << 10;

/// Operations that are in memory and not in the log yet.
#[derive(Default)]
struct GatheredRecords {
    ops: Vec<u8>,
    count: u32,
}

/// Replays the page-cache log; see the module. Blocks; must run before any other work of the engine.
/// # Errors
/// `NoSpace`: the log has no space for the records, which stay here. `OverBudget`: they do not fit the memory
/// of a read-only store. `Corrupt`: a later build wrote it. A failed read or write.
pub(crate) fn replay_page_cache_log(engine: &Engine, found: &FoundObjects) -> Result<(), Error> {
    let Some(stream) = found.page_cache_log else {
        return Ok(());
    };
    let Some(extent) = engine.objects.raw_extent(stream, 0)? else {
        engine.writes.writer.lock().page_cache_stream = Some(stream);
        return Ok(());
    };
    let header = crate::write::page_cache_log::header_of(&extent)?;
    if let Some(header) = header {
        let records = RecordReader::new(header, |at, out: &mut [u8]| Ok(extent.read(at, out)?));
        take_records(engine, records)?;
    }
    if engine.options.read_only {
        return Ok(());
    }
    let has_cache = engine.objects.has_page_cache();
    let session = match header {
        Some(header) if engine.broken(Flaw::SessionGoesOn) => header.session,
        _ => random_number()?,
    };
    let cache_log = PageCacheLog::begin(extent, session, &engine.budget, false)
        .map_err(|error| engine.poison.failed_write(error))?;
    engine.writes.writer.lock().page_cache_log =
        if has_cache { PageCacheLogState::Open(Box::new(cache_log)) } else { PageCacheLogState::Absent };
    Ok(())
}

fn take_records<R>(engine: &Engine, mut records: RecordReader<R>) -> Result<(), Error>
where
    R: FnMut(u64, &mut [u8]) -> Result<(), Error>,
{
    let mut charge = engine.budget.charge(Memory::Log, 0);
    let gathered_bytes = 3 * GATHERED_BYTES as u64;
    let mut held = |bytes| charge.set(gathered_bytes + bytes);
    let mut gathered = GatheredRecords::default();
    let mut last_seq = engine.snapshots.allocated_seq();
    while let Some(record) = records.next(last_seq, &mut held)? {
        if gathered.ops.len() + record.encoded.len() > GATHERED_BYTES {
            log_gathered(engine, &mut gathered, last_seq)?;
            make_space_to_take(engine)?;
        }
        if last_seq + record.ops.len() as u64 > LAST_SEQ {
            return Err(Error::NumbersUsedUp);
        }
        gathered.ops.extend_from_slice(&record.encoded);
        gathered.count += record.ops.len() as u32;
        let active = engine.super_version().active.clone();
        for op in record.ops {
            last_seq += 1;
            insert(&active, op, last_seq);
        }
    }
    log_gathered(engine, &mut gathered, last_seq)?;
    make_space_to_take(engine)
}

/// Logs the gathered operations durably, and makes them visible.
fn log_gathered(engine: &Engine, gathered: &mut GatheredRecords, last_seq: u64) -> Result<(), Error> {
    let GatheredRecords { ops, count } = std::mem::take(gathered);
    if count == 0 {
        return Ok(());
    }
    if !engine.options.read_only {
        let group = LoggedGroup { first_seq: last_seq + 1 - u64::from(count), count, ops: &ops, after: None };
        let log = &mut engine.writes.writer.lock().log;
        admission::in_whole_reserve(engine, || {
            let logged = log.append_durably(&engine.objects, group);
            logged.map_err(|error| engine.poison.failed_write(error))
        })?;
    }
    engine.snapshots.advance(last_seq);
    Ok(())
}

/// Counts the memtable; flushes it if it is full.
fn make_space_to_take(engine: &Engine) -> Result<(), Error> {
    engine.budget.count_memtables();
    if engine.options.read_only {
        return engine.budget.check_used();
    }
    if engine.super_version().active.charged_bytes() < engine.budget.memtable_bytes() {
        return Ok(());
    }
    let made = flush_taken(engine);
    match made {
        // Logged data stays in memory: the page-cache log is small.
        Err(error) if error.is_no_space() => Ok(()),
        made => made,
    }
}

fn flush_taken(engine: &Engine) -> Result<(), Error> {
    let flush = || {
        let _step = engine.compactor.step.lock();
        flusher::flush_all(engine)
    };
    flush()?;
    admission::rotate(engine, &mut engine.writes.writer.lock())?;
    flush().map(drop)
}
