//! Suites of the object layer: its device commands, and comparisons with a file system.

pub(crate) mod aged;
pub(crate) mod commands;
pub(crate) mod commit;
pub(crate) mod disk_replay;
pub(crate) mod emulate;
pub(crate) mod foreign;
pub(crate) mod open;
pub(crate) mod powercut;
pub(crate) mod reads;
pub(crate) mod scrub;
pub(crate) mod stores;

use anyhow::{Context, Result};
use std::{fs, path::Path};

/// Makes an empty directory for one suite.
pub(crate) fn fresh(scratch: &Path) -> Result<()> {
    if scratch.exists() {
        fs::remove_dir_all(scratch).with_context(|| format!("removing {}", scratch.display()))?;
    }
    fs::create_dir_all(scratch).with_context(|| format!("creating {}", scratch.display()))
}
