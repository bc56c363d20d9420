//! Integration tests of `copal-device`: the conformance suite on every device, and opening real files and
//! disks.
#![allow(clippy::disallowed_methods, reason = "a test without threads fails")]

mod block_device;
mod conformance;
mod idle;
mod open;
mod seccomp;

use std::path::Path;

/// A directory on a real disk: `/tmp` may be memory.
fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in(Path::new(env!("CARGO_TARGET_TMPDIR"))).unwrap()
}
