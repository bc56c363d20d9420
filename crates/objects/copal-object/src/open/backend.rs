//! What a store lies on: a device of its own, or files of a directory.

use super::overrides::Tuning;
use crate::{
    OpenError, OpenOptions,
    backend::{
        hostfs::{FileSpace, HostFiles},
        lenient::Lenient,
    },
    format::superblock::BACKEND_HOSTFS,
    space::{allocator::Allocator, placement::Placement},
};
use copal_device::{Device, DeviceError};
use std::sync::Arc;

/// What a store lies on.
pub(crate) enum Backend {
    /// A device of its own.
    Device(Arc<dyn Device>),
    /// Files of a directory.
    Files(Arc<HostFiles>),
}

impl Backend {
    pub(super) fn device(&self, options: &OpenOptions) -> Arc<dyn Device> {
        let device: Arc<dyn Device> = match self {
            Backend::Device(device) => Arc::clone(device),
            Backend::Files(files) => Arc::<HostFiles>::clone(files),
        };
        if options.salvage && options.read_only {
            return Lenient::over(device);
        }
        device
    }

    /// Whether the store was made for this.
    pub(super) fn fits(&self, made_for: u8) -> Result<(), OpenError> {
        let (device, directory) = ("on a device", "in a directory");
        match self {
            Backend::Device(_) if made_for == BACKEND_HOSTFS => {
                Err(OpenError::Backend { is: directory, given: device })
            }
            Backend::Files(_) if made_for != BACKEND_HOSTFS => {
                Err(OpenError::Backend { is: device, given: directory })
            }
            _ => Ok(()),
        }
    }

    /// The files, when it has any, and space of which nothing is taken: `pages` of a device, up to
    /// `max_bytes` of a directory.
    pub(super) fn into_empty_space(
        self,
        pages: u64,
        page_bytes: usize,
        max_bytes: u64,
        tuning: &Tuning,
    ) -> Result<(Option<Arc<HostFiles>>, Placement), OpenError> {
        match self {
            Backend::Device(_) => {
                let mut pages = Allocator::new(pages);
                pages.lowest_first = tuning.lowest_first;
                Ok((None, Placement::Pages(pages)))
            }
            Backend::Files(files) => {
                let numbers = files.numbers_taken().map_err(|error| DeviceError::io("list", 0, 0, error))?;
                let space = FileSpace::on(Arc::clone(&files), &numbers, page_bytes, max_bytes);
                Ok((Some(files), Placement::Files(space)))
            }
        }
    }
}
