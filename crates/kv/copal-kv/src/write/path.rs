//! State of the write path: the queue, the writer, open value objects, the reserve, the throttle.

use super::{
    commit::{queue::CommitQueue, values::DirectValues, writer::LogWriter},
    pressure::SpacePressure,
    reserve::SpaceReserve,
};
use crate::write::throttle::WriteThrottle;
use parking_lot::Mutex;
use std::sync::Arc;

/// State that only writes touch; see the module.
pub(crate) struct WritePath {
    pub(crate) queue: Arc<CommitQueue>,
    pub(crate) writer: Mutex<LogWriter>,
    pub(crate) direct_values: Mutex<DirectValues>,
    pub(crate) reserve: SpaceReserve,
    pub(crate) pressure: SpacePressure,
    pub(crate) throttle: WriteThrottle,
}
