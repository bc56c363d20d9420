//! A group in the memtable whose bytes are on their way to the device.

use super::queue::GroupCompletion;
use crate::memory::budget::MemoryCharge;
use copal_device::Completion;
use copal_object::{FramePos, StoreError};

/// See the module.
#[must_use = "the group takes effect when it is waited for"]
pub(crate) struct InFlight {
    completing: GroupCompletion,
    completion: Completion<Result<FramePos, StoreError>>,
    /// Operations, frames, and their copy on the way to the device: until the answer, which for deferred
    /// writes is there at once and leaves the copy to the object layer's own limit.
    charge: MemoryCharge,
}

impl InFlight {
    pub(super) fn new(
        completing: GroupCompletion,
        completion: Completion<Result<FramePos, StoreError>>,
        charge: MemoryCharge,
    ) -> InFlight {
        InFlight { completing, completion, charge }
    }

    /// Waits until the group is as safe as it was promised to be, or has failed.
    pub(crate) fn wait(self) {
        let result = self.completion.wait();
        drop(self.charge);
        self.completing.complete(result.map(drop));
    }
}
