//! Suites of the object layer: what it asks of a device, and how that compares with a file system.

pub(crate) mod commands;
pub(crate) mod figure9;
mod loop_device;
mod stores;

use anyhow::{Context, Result};
use std::{fs, path::Path};

/// An empty directory for one suite.
fn fresh(scratch: &Path) -> Result<()> {
    if scratch.exists() {
        fs::remove_dir_all(scratch).with_context(|| format!("removing {}", scratch.display()))?;
    }
    fs::create_dir_all(scratch).with_context(|| format!("creating {}", scratch.display()))
}
