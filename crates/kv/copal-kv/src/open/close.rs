//! The end of a session: nothing is left without a name, and the objects are free for the next one.

use crate::{
    Error,
    compact::{flusher, install},
    engine::Engine,
    tree::manifest::format::ManifestRecord,
    write::admission,
};
use copal_object::Ack;
use std::sync::atomic::Ordering;

/// The end of a clean session: frees what nobody reads any more, and notes that nothing else is without a
/// name. What is found later was then not left behind by a kill.
pub(crate) fn end_session(engine: &Engine) -> Result<(), Error> {
    if engine.options.read_only || engine.poison.check().is_err() {
        return Ok(());
    }
    // A commit that was under way when the store was closed has named what it made, or taken it back.
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

/// The objects are free for the next opening: no thread of ours touches them any more.
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

/// Makes a table of a log that the next opening would be long about. Commits of a few bytes each leave
/// many pages of log long before the memtable is full.
pub(crate) fn leave_short_log(engine: &Engine) {
    if !engine.options.read_only
        && engine.writes.writer.lock().log.is_long()
        && let Err(error) = flusher::flush_now(engine)
    {
        // It can be read as it is; whether it could be written is for `seal` to tell.
        tracing::debug!(%error, "a long log stays as it is");
    }
}
