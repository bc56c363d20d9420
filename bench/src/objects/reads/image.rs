//! `VmImage`: the disk of a VM that is backed up each day, made from a seed.
//!
//! 512 MiB that do not compress. Each day changes about 15 MiB of it, as a server does: pages of a database inside a
//! hot region, short writes anywhere, and two files of 4 MiB that are written anew.

use anyhow::{Context, Result};
use std::{
    fs::File,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};
use xtask::dataset::random::Random;

pub(super) const IMAGE_BYTES: u64 = 512 << 20;
const SEED: u64 = 32;
/// Place of the database.
const HOT_AT: u64 = 192 << 20;
const HOT_BYTES: u64 = 16 << 20;
const PAGE_BYTES: u64 = 8 << 10;

/// Changes of one day: number, and longest length in units of 4 KiB.
const DATABASE_PAGES: u64 = 200;
const SHORT_WRITES: u64 = 40;
const SHORT_UNITS: u64 = 16;
const NEW_FILES: u64 = 2;
const FILE_BYTES: u64 = 4 << 20;

pub(super) struct VmImage {
    path: PathBuf,
    file: File,
}

impl VmImage {
    /// Writes the disk of day 0.
    pub(super) fn make(path: &Path) -> Result<VmImage> {
        let file = File::create_new(path).with_context(|| format!("creating {}", path.display()))?;
        let image = VmImage { path: path.to_owned(), file };
        let mut random = Random::new(&[SEED, 0]);
        for part in 0..IMAGE_BYTES / FILE_BYTES {
            image.write(&mut random, part * FILE_BYTES, FILE_BYTES)?;
        }
        Ok(image)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Changes the disk as day `day` does.
    pub(super) fn pass_day(&self, day: u64) -> Result<()> {
        let mut random = Random::new(&[SEED, day]);
        for _ in 0..DATABASE_PAGES {
            let page = random.below(HOT_BYTES / PAGE_BYTES);
            self.write(&mut random, HOT_AT + page * PAGE_BYTES, PAGE_BYTES)?;
        }
        for _ in 0..SHORT_WRITES {
            let length = (1 + random.below(SHORT_UNITS)) * 4096;
            let at = random.below((IMAGE_BYTES - length) / 4096) * 4096;
            self.write(&mut random, at, length)?;
        }
        for _ in 0..NEW_FILES {
            let at = random.below((IMAGE_BYTES - FILE_BYTES) / 4096) * 4096;
            self.write(&mut random, at, FILE_BYTES)?;
        }
        Ok(())
    }

    fn write(&self, random: &mut Random, at: u64, length: u64) -> Result<()> {
        let mut bytes = vec![0; length as usize];
        random.fill(&mut bytes);
        Ok(self.file.write_all_at(&bytes, at)?)
    }
}
