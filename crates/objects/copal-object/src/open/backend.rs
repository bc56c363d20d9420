//! Storage below a store: its own device, or files of a directory.

use super::overrides::OpenOverrides;
use crate::{
    OpenOptions, StoreOpenError,
    backend::{
        cow::CowPlacement,
        hostfs::{FilePlacement, FileSpace, HostFiles},
        lenient::LenientDevice,
        log::LogPlacement,
    },
    format::superblock::BACKEND_HOSTFS,
    space::{allocator::PageAllocator, journal_place::JournalRing, placement::Placement},
};
use copal_device::{Device, DeviceError};
use std::sync::Arc;

/// Storage below a store.
pub(crate) enum StoreBackend {
    /// A device used by the store alone.
    Device(Arc<dyn Device>),
    /// Files of a directory.
    Files(Arc<HostFiles>),
}

/// Place of the next record.
pub(super) enum JournalStart {
    Ring(JournalRing),
    Segments(Box<LogPlacement>),
}

/// Space without owned pages.
pub(super) struct EmptySpace {
    /// The directory, if there is one.
    pub(super) files: Option<Arc<HostFiles>>,
    pub(super) placement: Box<dyn Placement>,
}

impl StoreBackend {
    pub(super) fn device(&self, options: &OpenOptions) -> Arc<dyn Device> {
        let device: Arc<dyn Device> = match self {
            StoreBackend::Device(device) => Arc::clone(device),
            StoreBackend::Files(files) => Arc::<HostFiles>::clone(files),
        };
        if options.salvage && options.read_only {
            return LenientDevice::over(device);
        }
        device
    }

    /// Checks that the store was made for this backend.
    pub(super) fn fits(&self, made_for: u8) -> Result<(), StoreOpenError> {
        let (device, directory) = ("on a device", "in a directory");
        match self {
            StoreBackend::Device(_) if made_for == BACKEND_HOSTFS => {
                Err(StoreOpenError::Backend { is: directory, given: device })
            }
            StoreBackend::Files(_) if made_for != BACKEND_HOSTFS => {
                Err(StoreOpenError::Backend { is: device, given: directory })
            }
            _ => Ok(()),
        }
    }

    /// Space without owned pages, with its `journal`: `pages` of a device, or up to
    /// `max_bytes` of a directory.
    pub(super) fn into_empty_space(
        self,
        pages: u64,
        page_bytes: usize,
        max_bytes: u64,
        journal: JournalStart,
        tuning: &OpenOverrides,
    ) -> Result<EmptySpace, StoreOpenError> {
        match self {
            StoreBackend::Device(device) => {
                let ring = match journal {
                    JournalStart::Ring(ring) => ring,
                    JournalStart::Segments(mut placement) => {
                        if tuning.lowest_first {
                            placement.place_low();
                        }
                        if tuning.data_apart {
                            placement.place_data_apart();
                        }
                        if device.geometry().gives_back {
                            placement.write_ahead();
                        }
                        return Ok(EmptySpace { files: None, placement });
                    }
                };
                let mut pages = PageAllocator::new(pages);
                pages.lowest_first = tuning.lowest_first;
                Ok(EmptySpace { files: None, placement: Box::new(CowPlacement::new(pages, ring)) })
            }
            StoreBackend::Files(files) => {
                let JournalStart::Ring(ring) = journal else {
                    let what = "a directory holds no segments of records".into();
                    return Err(StoreOpenError::Damaged { what });
                };
                let numbers = files.numbers_taken().map_err(|error| DeviceError::io("list", 0, 0, error))?;
                let space = FileSpace::on(Arc::clone(&files), &numbers, page_bytes, max_bytes);
                let placement = Box::new(FilePlacement::new(space, ring));
                Ok(EmptySpace { files: Some(files), placement })
            }
        }
    }
}
