//! Continues the newest log that an opening found.

use crate::{
    tree::memtable::Memtable,
    write::{commit::writer::LogWriter, log::WriteLog},
};
use std::sync::Arc;

pub(crate) type Current = (LogWriter, Arc<Memtable>, Vec<Arc<Memtable>>);

/// Continues the newest log after its last frame; `None`: there is no log.
pub(crate) fn go_on(mut memtables: Vec<(Arc<Memtable>, u64)>) -> Option<Current> {
    let (active, frames) = memtables.pop()?;
    let log = WriteLog::resume(active.generation, active.log, frames);
    let frozen = memtables.into_iter().rev().map(|(memtable, _)| memtable).collect();
    Some((LogWriter::new(log), active, frozen))
}
