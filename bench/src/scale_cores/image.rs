//! Image of a disk from the machine's own files: 1 MiB of zeros, then each file below /usr at a multiple of 4 KiB.

use anyhow::{Context, Result, ensure};
use std::{
    fs::{self, File},
    io::{BufWriter, Read, Write},
    path::Path,
};

/// Directory of the files.
const SOURCE: &str = "/usr";
/// Zeros at the begin of the image, as before a first partition.
const LEAD: u64 = 1 << 20;
/// Alignment of each file, as by a file system.
const BLOCK: u64 = 4096;

/// Makes an image of `bytes`, or smaller if there are not as many; an existing one stays. Returns its size.
pub(super) fn make(path: &Path, bytes: u64) -> Result<u64> {
    if !path.exists() {
        let part = path.with_extension("part");
        println!("making the image {}", path.display());
        let mut writer = ImageWriter { file: BufWriter::new(File::create(&part)?), at: 0, bytes };
        writer.zeros(LEAD)?;
        writer.directory(Path::new(SOURCE))?;
        writer.file.flush()?;
        fs::rename(&part, path)?;
    }
    let size = fs::metadata(path)?.len();
    ensure!(size > 0, "the image {} is empty", path.display());
    Ok(size)
}

/// Reads the image once, so that each measured read finds it in the page cache if it fits there.
pub(super) fn warm(path: &Path) -> Result<()> {
    std::io::copy(&mut File::open(path)?, &mut std::io::sink()).context("reading the image")?;
    Ok(())
}

struct ImageWriter {
    file: BufWriter<File>,
    at: u64,
    /// Size at which the image ends.
    bytes: u64,
}

impl ImageWriter {
    fn zeros(&mut self, count: u64) -> Result<()> {
        let count = count.min(self.bytes - self.at);
        self.at += std::io::copy(&mut std::io::repeat(0).take(count), &mut self.file)?;
        Ok(())
    }

    /// Appends all files below the directory, sorted by name.
    fn directory(&mut self, path: &Path) -> Result<()> {
        // Directories that this user may not read are left out.
        let Ok(entries) = fs::read_dir(path) else { return Ok(()) };
        let mut entries: Vec<_> = entries.flatten().collect();
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            if self.at >= self.bytes {
                break;
            }
            // Links are not followed: the files they name come by themselves.
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => self.directory(&entry.path())?,
                Ok(kind) if kind.is_file() => self.one_file(&entry.path())?,
                _ => {}
            }
        }
        Ok(())
    }

    fn one_file(&mut self, path: &Path) -> Result<()> {
        let Ok(file) = File::open(path) else { return Ok(()) };
        let mut rest = file.take(self.bytes - self.at);
        self.at += std::io::copy(&mut rest, &mut self.file)
            .with_context(|| format!("copying {}", path.display()))?;
        self.zeros(self.at.next_multiple_of(BLOCK) - self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::make;

    #[test]
    fn an_image_has_its_size_and_stays_as_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("image.raw");
        assert_eq!(make(&path, 3 << 20).unwrap(), 3 << 20);
        let bytes = std::fs::read(&path).unwrap();
        assert!(
            bytes[..1 << 20].iter().all(|byte| *byte == 0) && bytes[1 << 20..].iter().any(|byte| *byte != 0)
        );
        assert_eq!(make(&path, 5 << 20).unwrap(), 3 << 20);
    }
}
