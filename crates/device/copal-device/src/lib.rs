//! Devices: where bytes meet storage, below the object store.
//!
//! A [`Device`] takes reads, writes, flushes and discards and completes them in any order. Behind the trait
//! stand a preallocated file or block device ([`open_file`]), a memory device ([`MemoryDevice`]), and one
//! that records, crashes and fails on request ([`fault`], [`crash`]).
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
//! - C8 a write through the page cache is, to all of these, a write of the logical blocks it touches that
//!   completes when the call returns.
//!
//! Not here: what the bytes mean, free space, checksums (`copal-object`); models of disks in virtual time and
//! the measuring of real ones (not built yet).

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "a test without threads fails"))]

mod buffer;
mod completion;
pub mod conformance;
pub mod crash;
mod device;
mod error;
pub mod fault;
mod file;
mod image;
mod memory;
mod pread;
mod queue;
mod random;
mod record;
mod tally;
mod uring;

pub use buffer::{AlignedBuf, BUFFER_ALIGNMENT, KeptLimit};
pub use completion::{Completer, Completion, CompletionDriver};
pub use device::{Device, DeviceCounters, Geometry, Io, IoClass, IoDone, IoKind, PageCache};
pub use error::{DeviceError, DeviceOpenError};
pub use file::{FileOptions, mounted_on, open_file, overlap_in_use, share_bytes};
pub use image::Image;
pub use memory::MemoryDevice;
pub use record::DeviceHistory;
