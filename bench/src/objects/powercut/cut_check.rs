//! `CutCheck`: opens a disk as a power cut left it, by the binary that wrote it.

use super::{super::fresh, recorded_run::RecordedRun, repository::DiskRepository};
use anyhow::Result;
use copal_device::Image;
use copal_object::BackendKind;
use std::{
    fs::File,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

const PART: u64 = 1 << 20;

pub(super) struct CutCheck<'a> {
    binary: &'a Path,
    home: PathBuf,
    backend: BackendKind,
}

impl CutCheck<'_> {
    pub(super) fn new<'a>(binary: &'a Path, home: &Path, backend: BackendKind) -> Result<CutCheck<'a>> {
        Ok(CutCheck { binary, home: home.to_owned(), backend })
    }

    /// Loss of an acknowledged backup, or damage; `None`: all is well.
    /// # Errors
    /// The machine's fault: a program does not start, a file cannot be written.
    pub(super) fn loss(&self, run: &RecordedRun, step: usize, image: &Image) -> Result<Option<String>> {
        fresh(&self.home)?;
        let disk = self.home.join("disk");
        store(image, &disk)?;
        let repository = match DiskRepository::on(self.binary, &disk, &self.home, self.backend, false) {
            Ok(repository) => repository,
            Err(error) => return Ok(Some(format!("the file system does not mount: {error:#}"))),
        };
        let acknowledged = run.acknowledged(step);
        let found = match repository.snapshots()? {
            Ok(found) => found as usize,
            Err(loss) => return Ok(Some(loss)),
        };
        if found < acknowledged || found > acknowledged + 1 {
            return Ok(Some(format!("{found} snapshots, {acknowledged} were acknowledged")));
        }
        if let Some(wanted) = run.image(found) {
            match repository.newest()? {
                Ok(bytes) if bytes == wanted => {}
                Ok(_) => return Ok(Some(format!("snapshot {found} has other bytes"))),
                Err(loss) => return Ok(Some(loss)),
            }
        }
        repository.damage()
    }
}

/// Writes an image as a sparse file.
fn store(image: &Image, path: &Path) -> Result<()> {
    let file = File::create(path)?;
    file.set_len(image.size())?;
    let mut part = vec![0; PART as usize];
    for at in (0..image.size()).step_by(PART as usize) {
        let len = PART.min(image.size() - at) as usize;
        image.read(at, &mut part[..len]);
        if part[..len].iter().any(|byte| *byte != 0) {
            file.write_all_at(&part[..len], at)?;
        }
    }
    Ok(())
}
