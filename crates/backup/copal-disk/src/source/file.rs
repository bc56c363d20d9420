//! Raw source: a disk image file or a block device, read with direct I/O.
//!
//! Invariants
//! - Holes (`SEEK_HOLE`) are never read.
//! - Reading leaves the page cache as it was, so a backup evicts no page that a guest needs. Cached pages are
//!   read from the cache, all others with `O_DIRECT`. On a file system without `O_DIRECT`, pages are read
//!   through the cache and dropped again.
//! - A hole at the end counts only while the file has the size it had when it was opened.
//! - Memory is a few bounce buffers of 1 MiB, for an image of any size.
//!
//! Not here: formats other than raw (`qcow2`), choosing the format (`open`).

use super::{Extent, ExtentKind, Source, SourceError, identity::FileIdentity};
use parking_lot::Mutex;
use rustix::{
    fs::{Advice, Mode, OFlags, SeekFrom},
    io::{Errno, ReadWriteFlags},
};
use std::{
    fs::{File, OpenOptions},
    io::IoSliceMut,
    num::NonZeroU64,
    os::unix::fs::{FileExt, FileTypeExt},
    path::{Path, PathBuf},
};

/// Alignment of addresses, offsets and lengths for `O_DIRECT`. Linux block devices have blocks of at most 4
/// KiB.
const ALIGN: u64 = 4096;
const BOUNCE_BYTES: usize = 1 << 20;
/// Maximum number of idle bounce buffers.
const MAX_IDLE_BOUNCES: usize = 8;

/// A regular file or a block device.
#[derive(Debug)]
pub struct FileSource {
    path: PathBuf,
    identity: FileIdentity,
    file: File,
    /// The same file, opened with `O_DIRECT`; `None` if the file system refuses that.
    direct: Option<File>,
    size_bytes: u64,
    has_map: bool,
    /// The last extent found. To answer, a file system walks all extents up to the next hole. Asking again
    /// for every segment of a full disk would take quadratic time.
    last_extent: Mutex<Option<Extent>>,
    bounces: Mutex<Vec<Vec<u8>>>,
}

impl FileSource {
    /// Opens a raw image or a block device for reading.
    ///
    /// # Errors
    /// The path does not exist, may not be read, or is neither a file nor a block device.
    pub fn open(path: &Path) -> Result<FileSource, SourceError> {
        let failed =
            |action| move |error| SourceError::Io { action, what: path.display().to_string(), error };
        let file = OpenOptions::new().read(true).open(path).map_err(failed("open"))?;
        let meta = file.metadata().map_err(failed("open"))?;
        let kind = meta.file_type();
        let identity = FileIdentity::new(path, &meta);
        if !kind.is_file() && !kind.is_block_device() {
            let what = if kind.is_dir() { "a directory" } else { "not a disk image" };
            return Err(SourceError::Unusable {
                reason: format!(
                    "{} is {what}; name an image file or a block device, or - for standard input",
                    path.display()
                ),
            });
        }
        // The metadata of a block device reports size 0, so the end is found by seeking.
        let size_bytes =
            rustix::fs::seek(&file, SeekFrom::End(0)).map_err(|e| failed("measure")(e.into()))?;
        let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC;
        let direct = rustix::fs::open(path, flags, Mode::empty()).ok().map(File::from);
        // The name may lead to another file by now; the two must not be mixed.
        let direct = direct.filter(|direct| identity.is_of(direct));
        Ok(FileSource {
            path: path.to_owned(),
            identity,
            file,
            direct,
            size_bytes,
            has_map: kind.is_file(),
            last_extent: Mutex::new(None),
            bounces: Mutex::new(Vec::new()),
        })
    }

    fn failed(&self, action: &'static str) -> impl Fn(std::io::Error) -> SourceError {
        move |error| SourceError::Io { action, what: self.path.display().to_string(), error }
    }

    /// Fails if the size differs from the size at the opening.
    fn expect_same_size(&self) -> Result<(), SourceError> {
        let found = rustix::fs::seek(&self.file, SeekFrom::End(0))
            .map_err(|error| self.failed("measure")(error.into()))?;
        self.identity.expect_size(self.size_bytes, found)
    }

    /// Asks the file system for the extent at `offset`.
    fn find_extent(&self, offset: u64) -> Result<Extent, SourceError> {
        let extent = |end: u64, kind| Extent { offset, length: end.min(self.size_bytes) - offset, kind };
        if !self.has_map {
            return Ok(extent(self.size_bytes, ExtentKind::Data));
        }
        let data = match rustix::fs::seek(&self.file, SeekFrom::Data(offset)) {
            Ok(data) => data,
            // No data from here to the end, or the file has become shorter than `offset`.
            Err(Errno::NXIO) => {
                self.expect_same_size()?;
                return Ok(extent(self.size_bytes, ExtentKind::Zero));
            }
            // The file system has no map: treat everything as data.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(extent(self.size_bytes, ExtentKind::Data)),
            Err(error) => return Err(self.failed("map")(error.into())),
        };
        if data > offset {
            return Ok(extent(data, ExtentKind::Zero));
        }
        let hole = rustix::fs::seek(&self.file, SeekFrom::Hole(offset))
            .map_err(|error| self.failed("map")(error.into()))?;
        // A hole where `SEEK_DATA` has just found data: the file is being written, so read it.
        Ok(extent(if hole > offset { hole } else { self.size_bytes }, ExtentKind::Data))
    }

    /// Reads the cached front part of the range; returns its length.
    fn read_cached(&self, offset: u64, buf: &mut [u8]) -> usize {
        let mut done = 0;
        while done < buf.len() {
            let mut slices = [IoSliceMut::new(&mut buf[done..])];
            match rustix::io::preadv2(&self.file, &mut slices, offset + done as u64, ReadWriteFlags::NOWAIT) {
                Ok(0) | Err(_) => break,
                Ok(read) => done += read,
            }
        }
        done
    }

    /// Reads with `O_DIRECT`, through an aligned bounce buffer.
    fn read_direct(&self, direct: &File, offset: u64, buf: &mut [u8]) -> Result<usize, Errno> {
        let mut bounce = self.bounces.lock().pop().unwrap_or_else(|| vec![0; BOUNCE_BYTES + ALIGN as usize]);
        let shift = bounce.as_ptr().align_offset(ALIGN as usize);
        let aligned = &mut bounce[shift..shift + BOUNCE_BYTES];
        let mut done = 0;
        let mut result = Ok(());
        while done < buf.len() {
            let at = offset + done as u64;
            let skip = (at % ALIGN) as usize;
            let want = (skip + buf.len() - done).next_multiple_of(ALIGN as usize).min(BOUNCE_BYTES);
            match rustix::io::pread(direct, &mut aligned[..want], at - skip as u64) {
                Ok(read) => {
                    let fresh = read.saturating_sub(skip).min(buf.len() - done);
                    buf[done..done + fresh].copy_from_slice(&aligned[skip..skip + fresh]);
                    done += fresh;
                    if fresh == 0 {
                        break;
                    }
                }
                Err(Errno::INTR) => {}
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        let mut bounces = self.bounces.lock();
        if bounces.len() < MAX_IDLE_BOUNCES {
            bounces.push(bounce);
        }
        result.map(|()| done)
    }

    /// Reads through the page cache and drops the pages that were read.
    fn read_buffered(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            match self.file.read_at(&mut buf[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(read) => done += read,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if let Some(len) = NonZeroU64::new(done as u64) {
            // Only a hint: if it is refused, pages stay in the cache.
            let _ = rustix::fs::fadvise(&self.file, offset, Some(len), Advice::DontNeed);
        }
        Ok(done)
    }
}

impl Source for FileSource {
    fn size_bytes(&self) -> Option<u64> {
        Some(self.size_bytes)
    }

    fn extent_at(&self, offset: u64) -> Result<Extent, SourceError> {
        let mut last_extent = self.last_extent.lock();
        match *last_extent {
            Some(extent) if (extent.offset..extent.end()).contains(&offset) => Ok(extent),
            _ => Ok(*last_extent.insert(self.find_extent(offset)?)),
        }
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize, SourceError> {
        let len =
            buf.len().min(usize::try_from(self.size_bytes.saturating_sub(offset)).unwrap_or(usize::MAX));
        let buf = &mut buf[..len];
        let mut done = self.read_cached(offset, buf);
        if done < len
            && let Some(direct) = &self.direct
        {
            match self.read_direct(direct, offset + done as u64, &mut buf[done..]) {
                Ok(read) => done += read,
                // The device requires another alignment: read through the cache.
                Err(Errno::INVAL) => {}
                Err(error) => return Err(self.failed("read")(error.into())),
            }
        }
        if done < len {
            let rest = self.read_buffered(offset + done as u64, &mut buf[done..]);
            done += rest.map_err(self.failed("read"))?;
        }
        if done < len {
            let (what, at) = (self.path.display().to_string(), offset + done as u64);
            return Err(SourceError::Short { what, at, expected: self.size_bytes });
        }
        Ok(done)
    }
    fn confirm(&self) -> Result<Option<String>, SourceError> {
        self.expect_same_size()?;
        self.identity.confirm(&self.file)
    }
}
