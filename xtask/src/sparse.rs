//! Disk images as sparse files: their data ranges, their hash, their differences.
//!
//! Holes are skipped by the kernel's map of the file (`SEEK_DATA`, `SEEK_HOLE`), so a 100 GB image with
//! little data costs little. A hole and a block of zeros are the same content.
//!
//! Invariant: windows are at most `WINDOW_BYTES` for images of every size.

use crate::changes::{Change, Extent};
use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};
use std::{
    fmt::Write as _,
    fs::File,
    ops::Range,
    os::unix::fs::{FileExt, MetadataExt},
    path::Path,
};

const WINDOW_BYTES: u64 = 1 << 20;

/// Opens an image or a block device and returns its size.
///
/// # Errors
/// It cannot be opened or has no size.
pub fn open(path: &Path) -> Result<(File, u64)> {
    let file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
    let size = rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0))
        .with_context(|| format!("finding the size of {}", path.display()))?;
    Ok((file, size))
}

/// The ranges of `file` that may hold data, ascending and disjoint; the rest reads as zeros.
///
/// # Errors
/// The file system answers neither `SEEK_DATA` nor reads.
pub fn data_ranges(file: &File, size: u64) -> Result<Vec<Range<u64>>> {
    use rustix::fs::{SeekFrom, seek};
    let mut ranges = Vec::new();
    let mut at = 0;
    while at < size {
        let start = match seek(file, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(rustix::io::Errno::NXIO) => break,
            // The file system keeps no map of this file: everything may be data.
            Err(rustix::io::Errno::INVAL) if ranges.is_empty() => {
                ranges.push(0..size);
                break;
            }
            Err(error) => return Err(error).context("looking for data in an image"),
        };
        let end = seek(file, SeekFrom::Hole(start)).context("looking for a hole in an image")?;
        ranges.push(start..end.min(size));
        at = end;
    }
    Ok(ranges)
}

/// Bytes the file occupies on its file system.
///
/// # Errors
/// The file cannot be examined.
pub fn allocated_bytes(path: &Path) -> Result<u64> {
    let metadata = std::fs::metadata(path).with_context(|| format!("looking at {}", path.display()))?;
    Ok(metadata.blocks() * 512)
}

/// Calls `visit` with each window of `ranges`: offset and bytes. Windows are aligned to their size.
///
/// # Errors
/// Reading fails, or `visit` does.
pub fn for_each_window(
    file: &File,
    ranges: &[Range<u64>],
    mut visit: impl FnMut(u64, &[u8]) -> Result<()>,
) -> Result<()> {
    let mut buffer = vec![0; WINDOW_BYTES as usize];
    for range in ranges {
        let mut at = range.start;
        while at < range.end {
            let end = ((at / WINDOW_BYTES + 1) * WINDOW_BYTES).min(range.end);
            let window = &mut buffer[..(end - at) as usize];
            file.read_exact_at(window, at).context("reading an image")?;
            visit(at, window)?;
            at = end;
        }
    }
    Ok(())
}

/// SHA-256 of the whole image with holes as zeros, equal to the output of `sha256sum`.
///
/// # Errors
/// Reading fails.
pub fn sha256(path: &Path) -> Result<String> {
    let (file, size) = open(path)?;
    let zeros = vec![0; WINDOW_BYTES as usize];
    let mut hash = Sha256::new();
    let mut done = 0;
    let fill = |hash: &mut Sha256, from: u64, to: u64| {
        let mut left = to - from;
        while left > 0 {
            let step = left.min(WINDOW_BYTES);
            hash.update(&zeros[..step as usize]);
            left -= step;
        }
    };
    for_each_window(&file, &data_ranges(&file, size)?, |at, bytes| {
        fill(&mut hash, done, at);
        hash.update(bytes);
        done = at + bytes.len() as u64;
        Ok(())
    })?;
    fill(&mut hash, done, size);
    Ok(hash.finalize().iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    }))
}

/// Differences of `new` from `old` in whole blocks of `block_bytes`, adjacent ones joined. A differing block
/// that is all zeros in `new` is a `Change::Zero`.
///
/// # Errors
/// The images differ in size, or reading fails.
pub fn changes(old: &Path, new: &Path, block_bytes: u64) -> Result<Vec<Extent>> {
    if block_bytes == 0 || !WINDOW_BYTES.is_multiple_of(block_bytes) {
        bail!("blocks of {block_bytes} bytes do not divide a window");
    }
    let (old_file, old_size) = open(old)?;
    let (new_file, size) = open(new)?;
    if old_size != size {
        bail!("{} has {old_size} bytes and {} has {size}", old.display(), new.display());
    }
    let touched = windows(&[data_ranges(&old_file, size)?, data_ranges(&new_file, size)?].concat());
    let mut extents: Vec<Extent> = Vec::new();
    let mut old_bytes = vec![0; WINDOW_BYTES as usize];
    let mut new_bytes = vec![0; WINDOW_BYTES as usize];
    for window in touched {
        let start = window * WINDOW_BYTES;
        let length = WINDOW_BYTES.min(size - start) as usize;
        old_file.read_exact_at(&mut old_bytes[..length], start).context("reading the older image")?;
        new_file.read_exact_at(&mut new_bytes[..length], start).context("reading the newer image")?;
        if old_bytes[..length] == new_bytes[..length] {
            continue;
        }
        for block in (0..length).step_by(block_bytes as usize) {
            let range = block..(block + block_bytes as usize).min(length);
            if old_bytes[range.clone()] != new_bytes[range.clone()] {
                let zero = new_bytes[range.clone()].iter().all(|byte| *byte == 0);
                let change = if zero { Change::Zero } else { Change::Dirty };
                push(&mut extents, start + block as u64, range.len() as u64, change);
            }
        }
    }
    Ok(extents)
}

fn push(extents: &mut Vec<Extent>, offset: u64, length: u64, change: Change) {
    match extents.last_mut() {
        Some(last) if last.change == change && last.offset + last.length == offset => last.length += length,
        _ => extents.push(Extent { offset, length, change }),
    }
}

/// Numbers of the windows that overlap any of `ranges`, ascending.
fn windows(ranges: &[Range<u64>]) -> std::collections::BTreeSet<u64> {
    ranges
        .iter()
        .filter(|range| !range.is_empty())
        .flat_map(|range| range.start / WINDOW_BYTES..=(range.end - 1) / WINDOW_BYTES)
        .collect()
}

/// First difference of the two images; `None` when they are equal byte for byte.
///
/// # Errors
/// Reading fails.
pub fn first_difference(left: &Path, right: &Path) -> Result<Option<String>> {
    let (left_size, right_size) = (open(left)?.1, open(right)?.1);
    if left_size != right_size {
        return Ok(Some(format!("{left_size} bytes against {right_size}")));
    }
    Ok(changes(left, right, 512)?.first().map(|extent| format!("first at byte {}", extent.offset)))
}

/// Copies an image and keeps its holes. The target must not exist.
///
/// # Errors
/// Reading or writing fails, or the target exists.
pub fn copy(from: &Path, to: &Path) -> Result<()> {
    let (source, size) = open(from)?;
    let target = File::create_new(to).with_context(|| format!("creating {}", to.display()))?;
    target.set_len(size).context("setting the size of a copy")?;
    for_each_window(&source, &data_ranges(&source, size)?, |at, bytes| {
        for (index, block) in bytes.chunks(4096).enumerate() {
            if block.iter().any(|byte| *byte != 0) {
                target.write_all_at(block, at + index as u64 * 4096).context("writing a copy")?;
            }
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn image(directory: &Path, name: &str, size: u64, writes: &[(u64, &[u8])]) -> PathBuf {
        let path = directory.join(name);
        let file = File::create_new(&path).expect("a fresh file");
        file.set_len(size).expect("a size");
        for (at, bytes) in writes {
            file.write_all_at(bytes, *at).expect("a write");
        }
        path
    }

    #[test]
    fn changes_are_whole_blocks_and_tell_zeros_from_data() {
        let scratch = tempfile::tempdir().expect("scratch");
        let size = 5 << 20;
        let old = image(scratch.path(), "old", size, &[(8192, b"same"), (3 << 20, &[7; 8192])]);
        let writes: [(u64, &[u8]); 4] =
            [(8192, b"same"), (3 << 20, &[0; 4096]), ((3 << 20) + 4096, &[7; 4096]), (size - 1, b"x")];
        let new = image(scratch.path(), "new", size, &writes);
        let found = changes(&old, &new, 4096).expect("comparable");
        let expected = [
            Extent { offset: 3 << 20, length: 4096, change: Change::Zero },
            Extent { offset: size - 4096, length: 4096, change: Change::Dirty },
        ];
        assert_eq!(found, expected);
        assert!(first_difference(&old, &new).expect("comparable").is_some());
        assert_eq!(first_difference(&old, &old).expect("comparable"), None);
    }

    #[test]
    fn a_hole_equals_a_block_of_zeros() {
        let scratch = tempfile::tempdir().expect("scratch");
        let sparse = image(scratch.path(), "sparse", 1 << 21, &[]);
        let dense = image(scratch.path(), "dense", 1 << 21, &[(0, &[0; 1 << 21])]);
        assert_eq!(changes(&sparse, &dense, 4096).expect("comparable"), []);
        assert_eq!(sha256(&sparse).expect("readable"), sha256(&dense).expect("readable"));
    }

    #[test]
    fn a_copy_is_equal_and_stays_sparse() {
        let scratch = tempfile::tempdir().expect("scratch");
        let size = 64 << 20;
        let from = image(scratch.path(), "from", size, &[(10 << 20, &[1; 100_000]), (size - 3, b"end")]);
        let to = scratch.path().join("to");
        copy(&from, &to).expect("copied");
        assert_eq!(first_difference(&from, &to).expect("comparable"), None);
        assert!(allocated_bytes(&to).expect("there") < 1 << 20);
        assert!(copy(&from, &to).is_err(), "an existing file is not overwritten");
    }

    #[test]
    fn the_hash_equals_the_one_of_sha256sum() {
        let scratch = tempfile::tempdir().expect("scratch");
        let abc = image(scratch.path(), "abc", 3, &[(0, b"abc")]);
        let known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(sha256(&abc).expect("readable"), known);
    }
}
