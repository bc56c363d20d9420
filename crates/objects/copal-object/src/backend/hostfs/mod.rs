//! The `hostfs` backend: objects as files in a directory of any file system.
//!
//! Core, records and recovery are those of `cow`; only the address space differs: a page is a position in a
//! file. It has two uses: portability, and the control in benchmarks (same program, same objects, a file
//! system instead of a device). It is not tuned; a need for tuning is an argument for `cow` on a preallocated
//! file.
//!
//! Design: docs/design/object.md#files-in-a-directory
//! Invariants
//! - Files that no record names are removed at open, after the mount. A file is removed only after the record
//!   that freed it is durable (OBJ-3).
//!
//! Not here: the journal and recovery, which are independent of the backend.

mod directory;
#[cfg(test)]
pub(crate) mod faulty_directory;
mod files;
mod numbers;
mod placement;
#[cfg(test)]
pub(crate) mod sim_directory;
mod space;
mod syncs;
#[cfg(test)]
mod tests;

pub(crate) use files::{FILE_BYTES, HostFiles};
pub(crate) use placement::FilePlacement;
pub(crate) use space::FileSpace;
