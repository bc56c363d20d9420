//! Devices: the storage interface below the object store.
//!
//! A [`Device`] takes reads, writes, flushes and discards and completes them in any order. Implementations:
//! - a preallocated file or block device ([`open_file`])
//! - a memory device ([`MemoryDevice`])
//! - a device that records, crashes and fails on request ([`fault`], [`crash`])
//! - models of disks, in virtual time and on the wall clock (`emulated`, behind the feature of that name)
//!
//! The crash contract, which is all that upper layers may assume:
//! - C1 a logical block is written completely or not at all; nothing larger is atomic.
//! - C2 writes that completed but were not flushed survive a power loss in any subset.
//! - C3 a flush makes durable every write that *completed before the flush was submitted*.
//! - C4 a write with `fua` makes itself durable, and no earlier write.
//! - C5 a killed process loses no completed write, but none of them is durable yet: an opening flushes before
//!   its first read.
//! - C6 discarded ranges read as anything.
//! - C7 an error on a read is damage of that range. A failed write or flush poisons the handle until it is
//!   reopened; no flush is retried.
//! - C8 for all of these rules, a write through the page cache is a write of the logical blocks it touches.
//!   It completes when the call returns.
//!
//! A [`probe`] measures a device and chooses the backend for it.
//!
//! Not here: meaning of the bytes, free space, checksums (`copal-object`).

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "a test without threads fails"))]

mod buffer;
mod class_queue;
mod completion;
pub mod conformance;
pub mod crash;
mod device;
#[cfg(any(test, feature = "emulated"))]
pub mod emulated;
mod error;
pub mod fault;
mod file;
mod image;
mod memory;
pub mod probe;
mod random;
mod record;

pub use buffer::{AlignedBuf, BUFFER_ALIGNMENT, KeptLimit};
pub use completion::{Completer, Completion, CompletionDriver};
pub use device::clock::{DeviceClock, VirtualClock};
pub use device::{Device, DeviceCounters, Geometry, Io, IoClass, IoDone, IoKind, PageCache, ZonedModel};
pub use error::{DeviceError, DeviceOpenError};
pub use file::{
    DiskCommands, FileOptions, is_on_rotational_disk, kernel_use, mounted_on, open_file, overlap_in_use,
    share_bytes,
};
pub use image::Image;
pub use memory::MemoryDevice;
pub use record::DeviceHistory;
