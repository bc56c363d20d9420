//! End of a session: frees unnamed objects, and releases the objects for the next opening.

use crate::{
    Error,
    compact::{flusher, install},
    engine::Engine,
    tree::manifest::format::ManifestRecord,
    write::admission,
};
use copal_object::Ack;
use std::sync::atomic::Ordering;

/// Ends a session cleanly: frees garbage that no reader needs, and records that no other object is without a
/// name. An unnamed object found later was then not left by a kill of this session.
pub(crate) fn end_session(engine: &Engine) -> Result<(), Error> {
    if engine.options.read_only || engine.poison.check().is_err() {
        return Ok(());
    }
    // A commit in flight when the store was closed has named its outputs by now, or removed them.
    let _writer = engine.writes.writer.lock();
    let _still = engine.compactor.stand_still();
    install::free_garbage(engine)?;
    let mut tree = engine.stored.tree.lock();
    let below = engine.next_object.load(Ordering::Acquire);
    if tree.manifest.state.settled_below == below {
        return Ok(());
    }
    let record = [ManifestRecord::Settled { below }];
    admission::in_whole_reserve(engine, || {
        tree.manifest.commit(&engine.objects, &engine.poison, Vec::new(), &record, Ack::Ordered)
    })
}

/// Releases the objects for the next opening: no thread of this engine uses them any more.
pub(crate) fn let_go(engine: &Engine) {
    let handles: Vec<_> = engine.stored.tree.lock().handles.values().cloned().collect();
    let elastic = engine.caches.cache.elastic();
    for handle in &handles {
        elastic.retire(&*handle.table, 0..handle.table.partitions());
    }
    elastic.wait_for_the_adjuster();
    engine.writes.reserve.end();
    engine.ownership.lock().take();
}

/// Flushes a log that the next opening would take long to read. Commits of a few bytes each make a log of
/// many pages long before the memtable is full.
pub(crate) fn leave_short_log(engine: &Engine) {
    if !engine.options.read_only
        && engine.writes.writer.lock().log.is_long()
        && let Err(error) = flusher::flush_now(engine)
    {
        // The log can be replayed as it is; `end_writes` reports a failed write.
        tracing::debug!(%error, "a long log stays as it is");
    }
}
