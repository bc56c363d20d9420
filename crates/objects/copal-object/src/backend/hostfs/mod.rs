//! The `hostfs` backend: objects as files in a directory of any file system.
//!
//! Same core, same records, same recovery as `cow`; only the address space differs: a page is a place in a
//! file. Two uses: portability, and the control in benchmarks: same program, same objects, a file system
//! below instead of a device. It is not tuned; a wish to tune it is an argument for `cow` on a preallocated
//! file.
//!
//! Design: docs/design/object.md#files-in-a-directory
//! Invariants
//! - Files that no record names are removed at open, after the mount; a file goes only when what made it dead
//!   is durable (OBJ-3).
//!
//! Not here: the journal and recovery, which do not know it.

mod directory;
mod files;
mod numbers;
#[cfg(test)]
pub(crate) mod sim_directory;
mod space;
mod syncs;
#[cfg(test)]
mod tests;

pub(crate) use files::{FILE_BYTES, HostFiles};
pub(crate) use space::FileSpace;
