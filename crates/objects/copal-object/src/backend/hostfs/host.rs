//! What the core does only when objects are files: removing what a crash left, asking the host for space.

use crate::{
    engine::discard_io,
    space::placement::Placement,
    state::{StoreCore, StoreState, Tag},
};
use copal_device::DeviceError;
use std::sync::Arc;

impl StoreCore {
    /// Removes files that no record names. After the mount: until then recovery may still change its mind.
    pub(crate) fn remove_unknown_files(self: &Arc<StoreCore>) -> Result<(), DeviceError> {
        let Some(files) = &self.files else { return Ok(()) };
        files.refill();
        let numbers = files.numbers().map_err(|error| DeviceError::io("list", 0, 0, error))?;
        let mut state = self.state.lock();
        if let Placement::Files(space) = &mut state.space.allocator {
            space.look(0);
            space.give_up_unknown(&numbers);
        }
        self.give_back(&mut state);
        drop(state);
        self.pump();
        Ok(())
    }

    /// Queues what the device may forget: blocks and files that nothing owns any more.
    pub(crate) fn give_back(&self, state: &mut StoreState) {
        for run in state.space.allocator.take_gone() {
            let io = discard_io(&self.shape, run);
            state.outbox.push((Tag::Discard { run }, vec![io]));
        }
    }

    /// Looks at the host's file system when it is time to, before anything is admitted.
    pub(crate) fn look_at_host(&self, state: &mut StoreState) {
        let unwritten_bytes = state.in_flight_bytes;
        if let Placement::Files(space) = &mut state.space.allocator {
            space.look_when_due(unwritten_bytes);
        }
    }

    /// Looks at the host's file system again; whether more pages are available than before, and `pages` at
    /// least.
    pub(crate) fn ask_host(&self, state: &mut StoreState, pages: u64) -> bool {
        let before = state.space.available_pages();
        let unwritten_bytes = state.in_flight_bytes;
        if let Placement::Files(space) = &mut state.space.allocator {
            space.look(unwritten_bytes);
        }
        // A caller that found too few tries again only if there are more; else it would ask without end.
        let now = state.space.available_pages();
        now > before && now >= pages
    }
}
