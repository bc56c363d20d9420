//! What the core does only when objects are files: removing what a crash left, asking the host for space.

use super::HostFiles;
use crate::{
    placement::Placement,
    state::{Inner, State},
};
use copal_device::{Class, DeviceError, Io, IoKind};

impl Inner {
    /// Removes files that no record names. After the mount: until then recovery may still change its mind.
    pub(crate) fn remove_unknown_files(&self) -> Result<(), DeviceError> {
        let Some(files) = &self.files else { return Ok(()) };
        let numbers = files
            .numbers()
            .map_err(|error| DeviceError::io("list", 0, 0, error))?;
        let unknown = match &mut self.state.lock().space.allocator {
            Placement::Pages(_) => Vec::new(),
            Placement::Files(space) => {
                self.set_free_pages(space, files);
                space.unknown(&numbers)
            }
        };
        let ios = unknown.into_iter().map(|run| Io {
            at: self.shape.byte(run.at),
            kind: IoKind::Discard(self.shape.byte(run.pages.into())),
            class: Class::Background,
        });
        let done = self.device.submit(ios.collect()).wait();
        done.into_iter().try_for_each(|done| done.result)
    }

    /// Looks at the host's file system again; whether `pages` more are available now.
    pub(crate) fn ask_host(&self, state: &mut State, files: &HostFiles, pages: u64) -> bool {
        if let Placement::Files(space) = &mut state.space.allocator {
            self.set_free_pages(space, files);
        }
        state.space.available_pages() >= pages
    }

    /// What the host has left, and no more than the store may grow to.
    fn set_free_pages(&self, space: &mut super::FileSpace, files: &HostFiles) {
        let taken = space.pages() - space.free_pages();
        let allowed = (self.shape.max_size_bytes / self.shape.page_bytes as u64).saturating_sub(taken);
        space.set_free(allowed.min(files.host_free_bytes() / self.shape.page_bytes as u64));
    }
}
