//! Reference of a data set, `oracle.json`: hash of each image and its changes, found by comparing bytes.

use super::parameters::{Parameters, VmPlan};
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::{fs, path::Path};

/// Reference of the whole set.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Oracle {
    /// Version of this form.
    pub v: u32,
    /// Parameters of the build.
    pub parameters: serde_json::Value,
    /// Distinct non-zero blocks of 4 KiB over all images, in bytes.
    pub unique_4k_bytes: u64,
    /// VMs, in the order of their backups on each day.
    pub vms: Vec<Vm>,
}

/// One VM.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Vm {
    /// Its name.
    pub name: String,
    /// Its role.
    pub role: String,
    /// Whether its first image is a copy of its role's template.
    pub clone: bool,
    /// Its days, from 0.
    pub days: Vec<Day>,
}

/// One image.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Day {
    /// Number from 0.
    pub day: u32,
    /// Path below the set's directory.
    pub image: String,
    /// SHA-256 of the whole image, holes as zeros.
    pub sha256: String,
    /// Size of the disk.
    pub size_bytes: u64,
    /// Bytes outside holes.
    pub data_bytes: u64,
    /// Bytes of 4 KiB blocks that differ from the day before and are not zero.
    pub true_dirty_bytes: u64,
    /// The same at 64 KiB, the granularity of a dirty bitmap: the dirty bytes of `changed_extents`.
    pub dirty_bytes: u64,
    /// Bytes listed as zero.
    pub zeroed_bytes: u64,
    /// Changed extents since the day before, in Copal's form; none on day 0.
    pub changed_extents: Option<String>,
    /// The same in the form of `nbdinfo --json --map`.
    pub nbdinfo_map: Option<String>,
}

impl Oracle {
    pub(super) fn new(parameters: &Parameters) -> Oracle {
        Oracle {
            v: 1,
            parameters: serde_json::to_value(parameters).unwrap_or_default(),
            unique_4k_bytes: 0,
            vms: Vec::new(),
        }
    }

    /// Reads the oracle of the set in `directory`.
    ///
    /// # Errors
    /// The file is missing or malformed.
    pub fn read(directory: &Path) -> Result<Oracle> {
        let path = directory.join("oracle.json");
        let text = fs::read_to_string(&path).with_context(|| {
            format!("reading {}; `cargo xtask dataset DIR=...` builds it", path.display())
        })?;
        serde_json::from_str(&text).with_context(|| format!("parsing {}", path.display()))
    }

    pub(super) fn write(&self, directory: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self)?;
        fs::write(directory.join("oracle.json"), text).context("writing oracle.json")
    }
}

impl Vm {
    pub(super) fn new(plan: &VmPlan) -> Vm {
        Vm { name: plan.name.clone(), role: plan.role.clone(), clone: plan.clone, days: Vec::new() }
    }
}
