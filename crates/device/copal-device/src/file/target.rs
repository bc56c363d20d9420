//! An open file or block device, and the blocking commands on it. Both engines and the caller's own thread
//! use it.
//!
//! Invariants
//! - Every command transfers all bytes or is an error: short transfers and interrupted calls continue by
//!   themselves.
//! - Zeros are written, never merely promised: `FALLOC_FL_ZERO_RANGE` leaves unwritten extents whose first
//!   use would change file metadata inside a commit.

use super::block;
use super::filesystem::is_too_full;
use super::mapped::MappedFile;
use crate::{AlignedBuf, DeviceError, Geometry};
use parking_lot::Mutex;
use rustix::fd::OwnedFd;
use rustix::fs::{FallocateFlags, FlockOperation};
use rustix::io::{Errno, ReadWriteFlags};
use std::fs::File;
use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Longest single transfer in bytes.
pub(crate) const MAX_IO: usize = 1 << 20;

/// Kind of the open target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TargetKind {
    File { punch_holes: bool },
    Block,
}

/// See the module's text.
pub(crate) struct FileTarget {
    pub(crate) fd: OwnedFd,
    pub(crate) kind: TargetKind,
    /// The same file or device, opened a second time without direct I/O. It holds no lock.
    cached: Option<File>,
    /// The mapped range for repeated cached writes.
    mapped: Mutex<Option<MappedFile>>,
    /// Geometry without `size`, which has its own field.
    fixed: Geometry,
    size: AtomicU64,
    read_only: bool,
    /// The first failure of a write or flush.
    poisoned: OnceLock<DeviceError>,
    growing: Mutex<()>,
    /// Most bytes that the kernel moves at a time.
    #[cfg(test)]
    pub(crate) transfer_bytes_max: std::sync::atomic::AtomicUsize,
}

impl FileTarget {
    pub(crate) fn new(fd: OwnedFd, kind: TargetKind, geometry: Geometry, read_only: bool) -> FileTarget {
        let size = AtomicU64::new(geometry.size);
        FileTarget {
            fd,
            kind,
            cached: None,
            mapped: Mutex::new(None),
            fixed: geometry,
            size,
            read_only,
            poisoned: OnceLock::new(),
            growing: Mutex::new(()),
            #[cfg(test)]
            transfer_bytes_max: usize::MAX.into(),
        }
    }

    /// Bytes of the next transfer, of `left` that remain: all of them, outside of tests.
    pub(crate) fn transfer_bytes(&self, left: usize) -> usize {
        #[cfg(test)]
        let left = left.min(self.transfer_bytes_max.load(Ordering::Relaxed));
        left
    }

    /// Adds access through the page cache.
    pub(crate) fn with_cached(mut self, cached: Option<File>) -> FileTarget {
        self.cached = cached;
        self
    }

    pub(crate) fn has_page_cache(&self) -> bool {
        self.cached.is_some()
    }

    fn cached(&self) -> io::Result<&File> {
        self.cached.as_ref().ok_or_else(|| io::ErrorKind::Unsupported.into())
    }

    /// Maps a range for cached writes, which then wait for no other command. If mapping fails, they are
    /// ordinary writes.
    pub(crate) fn map(&self, at: u64, len: usize) -> io::Result<()> {
        *self.mapped.lock() = Some(MappedFile::new(self.cached()?, at, len)?);
        Ok(())
    }

    pub(crate) fn write_cached(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let mapped = self.mapped.lock().as_mut().and_then(|mapped| mapped.write(at, bytes));
        mapped.unwrap_or_else(|| self.cached()?.write_all_at(bytes, at))
    }

    pub(crate) fn read_cached(&self, at: u64, out: &mut [u8]) -> io::Result<()> {
        self.cached()?.read_exact_at(out, at)
    }

    pub(crate) fn geometry(&self) -> Geometry {
        Geometry { size: self.size.load(Ordering::Acquire), ..self.fixed }
    }

    /// `Err` if this handle may not write, or not any more.
    pub(crate) fn may_write(&self) -> Result<(), DeviceError> {
        self.may_flush()?;
        if self.read_only { Err(DeviceError::ReadOnly) } else { Ok(()) }
    }

    /// `Err` after a failed write or flush: the effect of a flush would be unknown.
    pub(crate) fn may_flush(&self) -> Result<(), DeviceError> {
        match self.poisoned.get() {
            None => Ok(()),
            // A concurrent command may be answered before the one that failed first; both name the same
            // cause.
            Some(error) if error.is_host_full() => Err(error.clone()),
            Some(_) => Err(DeviceError::Poisoned),
        }
    }

    /// Records a failed write or flush: this handle refuses both from now on. Only the first cause counts.
    pub(crate) fn poison(&self, error: &DeviceError) {
        self.poisoned.get_or_init(|| error.clone());
    }

    pub(crate) fn read(&self, at: u64, buf: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < buf.len() {
            let end = done + self.transfer_bytes(buf.len() - done);
            match rustix::io::pread(&self.fd, &mut buf[done..end], at + done as u64) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => done += read,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Writes on this thread; with `durable` the bytes are durable on return.
    pub(crate) fn write(&self, at: u64, buf: &[u8], durable: bool) -> io::Result<()> {
        let flags = if durable { ReadWriteFlags::DSYNC } else { ReadWriteFlags::empty() };
        let mut done = 0;
        while done < buf.len() {
            let part = IoSlice::new(&buf[done..done + self.transfer_bytes(buf.len() - done)]);
            match rustix::io::pwritev2(&self.fd, &[part], at + done as u64, flags) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => done += written,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// No retry after an interrupted or failed flush: the kernel may have dropped the dirty pages.
    pub(crate) fn flush(&self) -> io::Result<()> {
        Ok(rustix::fs::fdatasync(&self.fd)?)
    }

    /// A hint: the device or file system may keep the range.
    pub(crate) fn discard(&self, at: u64, len: u64) -> io::Result<()> {
        let result = match self.kind {
            TargetKind::File { punch_holes: false } => Ok(()),
            TargetKind::File { punch_holes: true } => {
                let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(&self.fd, mode, at, len).map_err(io::Error::from)
            }
            TargetKind::Block => block::discard(&self.fd, at, len),
        };
        match result {
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(()),
            other => other,
        }
    }

    pub(crate) fn write_zeroes(&self, at: u64, len: u64) -> io::Result<()> {
        if self.kind == TargetKind::Block {
            return block::zero_out(&self.fd, at, len);
        }
        let mut done = 0;
        while done < len {
            let step = (len - done).min(MAX_IO as u64);
            self.write(at + done, &zeros()[..step as usize], false)?;
            done += step;
        }
        Ok(())
    }

    /// Returns the end of a file to its file system; a block device keeps its length.
    pub(crate) fn cut(&self, wanted: u64) -> Result<u64, DeviceError> {
        let wanted = wanted.next_multiple_of(u64::from(self.fixed.logical_block).max(4096));
        let _one_at_a_time = self.growing.lock();
        let size = self.size.load(Ordering::Acquire);
        if self.kind == TargetKind::Block || wanted >= size {
            return Ok(size);
        }
        self.may_write()?;
        // Pages behind the end of a file do not exist.
        self.mapped.lock().take_if(|mapped| mapped.end() > wanted);
        rustix::fs::ftruncate(&self.fd, wanted)
            .map_err(|error| DeviceError::io("cut", wanted, size - wanted, error.into()))?;
        self.size.store(wanted, Ordering::Release);
        Ok(wanted)
    }

    /// Allocates space for a discarded range.
    pub(crate) fn reserve(&self, at: u64, len: u64) -> Result<(), DeviceError> {
        self.may_write()?;
        if self.kind == TargetKind::Block {
            return Ok(());
        }
        let size = self.size.load(Ordering::Acquire);
        let refused = |reason| Err(DeviceError::CannotGrow { size, wanted: size, reason });
        if is_too_full(&self.fd, len) {
            return refused("its file system is full");
        }
        match rustix::fs::fallocate(&self.fd, FallocateFlags::KEEP_SIZE, at, len) {
            Ok(()) | Err(Errno::OPNOTSUPP) => Ok(()),
            Err(Errno::NOSPC) => refused("its file system is full"),
            Err(Errno::DQUOT) => refused("the quota is used up"),
            Err(error) => Err(DeviceError::io("reserve", at, len, error.into())),
        }
    }

    pub(crate) fn can_grow(&self) -> bool {
        self.kind != TargetKind::Block
    }

    /// Reserves the space, so that a full host is detected here and not inside a commit.
    pub(crate) fn grow(&self, wanted: u64) -> Result<u64, DeviceError> {
        let wanted = wanted.next_multiple_of(u64::from(self.fixed.logical_block).max(4096));
        let _one_at_a_time = self.growing.lock();
        let size = self.size.load(Ordering::Acquire);
        if wanted <= size {
            return Ok(size);
        }
        self.may_write()?;
        let refused = |reason| Err(DeviceError::CannotGrow { size, wanted, reason });
        if self.kind == TargetKind::Block {
            return refused("a block device has a fixed size");
        }
        if is_too_full(&self.fd, wanted - size) {
            return refused("its file system is full");
        }
        match rustix::fs::fallocate(&self.fd, FallocateFlags::empty(), size, wanted - size) {
            Ok(()) => {}
            Err(Errno::OPNOTSUPP) => match rustix::fs::ftruncate(&self.fd, wanted) {
                Ok(()) => {}
                Err(Errno::FBIG) => return refused(TOO_LARGE),
                Err(error) => return Err(DeviceError::io("grow", size, wanted - size, error.into())),
            },
            Err(error) => {
                // Some space may have been added: return it. If that fails too, a longer file does no harm.
                if let Err(error) = rustix::fs::ftruncate(&self.fd, size) {
                    tracing::warn!(%error, "a file that failed to grow could not be shortened again");
                }
                return match error {
                    Errno::NOSPC => refused("its file system is full"),
                    Errno::DQUOT => refused("the quota is used up"),
                    Errno::FBIG => refused(TOO_LARGE),
                    other => Err(DeviceError::io("grow", size, wanted - size, other.into())),
                };
            }
        }
        self.size.store(wanted, Ordering::Release);
        Ok(wanted)
    }
}

impl Drop for FileTarget {
    /// Releases the lock at once: the kernel may hold the descriptor a little longer.
    fn drop(&mut self) {
        if let Err(error) = rustix::fs::flock(&self.fd, FlockOperation::Unlock) {
            tracing::debug!(%error, "a lock could not be released before closing its file");
        }
    }
}

/// Reason for either limit on the length of a file.
const TOO_LARGE: &str = "its file system or the limit of this process (ulimit -f) allows no larger file";

/// [`MAX_IO`] zero bytes, shared; allocated at the first use.
pub(crate) fn zeros() -> &'static AlignedBuf {
    static ZEROS: OnceLock<AlignedBuf> = OnceLock::new();
    ZEROS.get_or_init(|| AlignedBuf::zeroed(MAX_IO))
}
