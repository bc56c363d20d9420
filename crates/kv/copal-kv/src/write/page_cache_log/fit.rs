//! Routes kill-safe groups through the page-cache log instead of the device.
//!
//! Invariants
//! - A group that does not go through the page-cache log is logged at once, with all deferred groups before
//!   it, and is acknowledged when that is written.
//! - Only kill-safe writers pay for the page-cache log: without them none is made.
//!
//! Not here: contents of the page-cache log (the module above), replaying it (`open`).

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

/// Whether `writes`, at most `bytes` of log, may be acknowledged once they are copied to the page-cache log,
/// and makes it ready for them. Logs a full buffer of deferred writes first; only the next user of its half
/// waits for that.
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
        // Writes that are only in the buffer would not survive a kill until their frame is written.
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

/// Makes the page-cache log at the first kill-safe write of a session. A store without space for it works
/// without.
fn open_page_cache_log(engine: &Engine, writer: &mut LogWriter) -> Result<(), Error> {
    // The reserve for deletes is not for the page-cache log.
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
