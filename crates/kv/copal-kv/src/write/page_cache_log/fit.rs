//! Kill-safe groups on their way through the page-cache log instead of the device.
//!
//! Invariants
//! - A group that does not go through the page-cache log goes into the log at once, with all that was
//!   deferred before it, and is answered when that is written.
//! - Nobody but kill-safe writers pays for the page-cache log: without them there is none.
//!
//! Not here: what stands in the page-cache log (the module above), reading it back (`open`).

use super::PageCacheLogState;
use crate::{
    Error,
    broken::Flaw,
    engine::Engine,
    write::{
        admission,
        commit::{WriteOp, WriteRequest, deferred, writer::LogWriter},
    },
};
use copal_object::StoreError;

/// Whether `writes`, `bytes` of log at most, may be answered as soon as they are copied to the page-cache
/// log, which is made ready for them. A full buffer of deferred writes goes into the log first; nobody
/// waits for it but whoever needs its half next.
/// # Errors
/// `NoSpace`: nothing happened. `Poisoned`.
pub(crate) fn fits_page_cache_log(
    engine: &Engine,
    writer: &mut LogWriter,
    writes: &[WriteRequest],
    bytes: usize,
    given: u64,
) -> Result<bool, Error> {
    let mut ops = writes.iter().flat_map(|write| &write.ops);
    if bytes > deferred::deferred_bytes(engine) || ops.any(|op| matches!(op, WriteOp::Direct { .. })) {
        return Ok(false);
    }
    open_page_cache_log(engine, writer)?;
    let buffered = writer.deferred_bytes();
    let names_values = writer.deferred_names_values();
    let PageCacheLogState::Open(cache_log) = &writer.page_cache_log else {
        return Ok(false);
    };
    if names_values || !cache_log.is_watched() {
        return Ok(false);
    }
    if buffered + bytes > deferred::deferred_bytes(engine) || !cache_log.fits(buffered, bytes) {
        // What only the buffer holds would be nowhere until its frame is written.
        if !cache_log.covers(buffered) {
            return Ok(false);
        }
        if buffered > 0 {
            deferred::send_deferred(engine, writer, given)?;
        }
    }
    let buffered = writer.deferred_bytes();
    let PageCacheLogState::Open(cache_log) = &mut writer.page_cache_log else {
        return Ok(false);
    };
    if engine.broken(Flaw::HalfReusedEarly) {
        cache_log.forget_reuse();
    }
    let is_free =
        cache_log.is_free(engine.snapshots.visible()).map_err(|error| engine.poison.failed_write(error))?;
    Ok(is_free && cache_log.fits(buffered, bytes))
}

/// The first kill-safe write of a session makes the page-cache log. What a store has no space for it does
/// without.
fn open_page_cache_log(engine: &Engine, writer: &mut LogWriter) -> Result<(), Error> {
    // What is kept back for deletes is not for the page-cache log.
    if !matches!(writer.page_cache_log, PageCacheLogState::NotRequested)
        || !admission::has_reserve_beside(engine, 0)
    {
        return Ok(());
    }
    writer.page_cache_log = PageCacheLogState::Absent;
    let session = super::random_number()?;
    let new = || engine.new_object();
    match super::make(&engine.objects, &engine.budget, session, writer.page_cache_stream, new) {
        Ok(None) | Err(StoreError::NoSpace { .. }) => {}
        Ok(Some(cache_log)) => writer.page_cache_log = PageCacheLogState::Open(Box::new(cache_log)),
        Err(error) => return Err(engine.poison.failed_write(error)),
    }
    Ok(())
}
