//! What the way of a write owns: the queue, who has the turn, open value objects, the reserve, the throttle.

use super::{
    commit::{queue::CommitQueue, values::DirectValues, writer::Writer},
    pressure::Pressure,
    reserve::Reserve,
};
use crate::write::throttle::Throttle;
use parking_lot::Mutex;
use std::sync::Arc;

/// See the module.
pub(crate) struct WritePath {
    pub(crate) queue: Arc<CommitQueue>,
    pub(crate) writer: Mutex<Writer>,
    pub(crate) direct_values: Mutex<DirectValues>,
    pub(crate) reserve: Reserve,
    pub(crate) pressure: Pressure,
    pub(crate) throttle: Throttle,
}
