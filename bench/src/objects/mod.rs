//! Suites of the object layer: its device commands, and comparisons with a file system.

pub(crate) mod commands;
pub(crate) mod commit;
pub(crate) mod disk_replay;
pub(crate) mod figure9;
mod loop_device;
pub(crate) mod reads;
mod stores;

use anyhow::{Context, Result};
use std::{fs, path::Path};

/// Makes an empty directory for one suite.
fn fresh(scratch: &Path) -> Result<()> {
    if scratch.exists() {
        fs::remove_dir_all(scratch).with_context(|| format!("removing {}", scratch.display()))?;
    }
    fs::create_dir_all(scratch).with_context(|| format!("creating {}", scratch.display()))
}
