//! Cached writes through a shared mapping of a file or device range.
//!
//! A buffered write takes the lock of its file. On ext4 and XFS a direct write holds the same lock until the
//! device has answered. So the buffered write waits for direct writes, and later direct writes wait for it.
//! Measured beside durable direct writes of 70 us: 8 ms at the 99th percentile. A store to a mapped page
//! takes no such lock: 3 us.
//!
//! Invariants
//! - This process never touches the mapped bytes itself. The kernel copies them there out of a pipe, so a
//!   page that cannot be read is an error of that copy instead of a SIGBUS that ends the process.
//! - The pipe is empty between two writes; after an error nothing more is written.
#![expect(unsafe_code, reason = "maps a range of a file")]

use rustix::{
    fd::{AsFd, AsRawFd, OwnedFd},
    io::Errno,
    mm::{Advice, MapFlags, ProtFlags},
    pipe::PipeFlags,
};
use std::{ffi::c_void, io, ptr::NonNull};

/// Longest transfer through the pipe; the pipe takes as much as fits.
const PIECE: usize = 64 << 10;

/// See the module's text.
#[derive(Debug)]
pub(super) struct MappedFile {
    start: NonNull<c_void>,
    /// Place of the first byte in the file.
    at: u64,
    len: usize,
    out_of: OwnedFd,
    into: OwnedFd,
}

// SAFETY: the mapping belongs to this value alone and is bound to no thread.
unsafe impl Send for MappedFile {}

impl MappedFile {
    /// Maps whole pages of `file` and brings them into memory. Blocks for reading them.
    pub(super) fn new(file: impl AsFd, at: u64, len: usize) -> io::Result<MappedFile> {
        // Non-blocking: the pipe takes as much as it holds.
        let (out_of, into) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let both = ProtFlags::READ | ProtFlags::WRITE;
        let hint = std::ptr::null_mut();
        // SAFETY: a new mapping at an address that the kernel chooses; no Rust reference to it is ever made.
        let start = unsafe { rustix::mm::mmap(hint, len, both, MapFlags::SHARED, file, at) }?;
        let start = NonNull::new(start).ok_or(io::ErrorKind::AddrNotAvailable)?;
        let mapped = MappedFile { start, at, len, out_of, into };
        // A hint: the first write to a missing page reads it in.
        // SAFETY: the range is the mapping, and its contents stay.
        let read_in = unsafe { rustix::mm::madvise(start.as_ptr(), len, Advice::LinuxPopulateRead) };
        if let Err(error) = read_in {
            tracing::debug!(%error, "mapped pages could not be read in advance");
        }
        Ok(mapped)
    }

    /// File offset behind the last mapped byte.
    pub(super) fn end(&self) -> u64 {
        self.at + self.len as u64
    }

    /// Offset in the mapping of `len` bytes at `at` of the file, if all of them are mapped.
    fn offset(&self, at: u64, len: usize) -> Option<usize> {
        let offset = usize::try_from(at.checked_sub(self.at)?).ok()?;
        (offset.checked_add(len)? <= self.len).then_some(offset)
    }

    /// Writes `bytes` at `at` of the file. `None`: not all of them are mapped.
    /// # Errors
    /// A page cannot be read; nothing more is written through this mapping.
    pub(super) fn write(&mut self, at: u64, bytes: &[u8]) -> Option<io::Result<()>> {
        let offset = self.offset(at, bytes.len())?;
        Some(self.write_at(offset, bytes))
    }

    fn write_at(&mut self, mut offset: usize, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let piece = &bytes[..bytes.len().min(PIECE)];
            let sent = again(|| Ok(rustix::io::write(&self.into, piece)?))?;
            let mut received = 0;
            while received < sent {
                received += again(|| self.receive(offset + received, sent - received))?;
            }
            offset += sent;
            bytes = &bytes[sent..];
        }
        Ok(())
    }

    /// Lets the kernel copy up to `len` bytes out of the pipe to `offset` of the mapping.
    fn receive(&self, offset: usize, len: usize) -> io::Result<usize> {
        assert!(offset + len <= self.len, "{len} bytes at {offset} of {}", self.len);
        // SAFETY: within the mapping, by the assertion above.
        let to = unsafe { self.start.byte_add(offset) };
        // SAFETY: `len` bytes from there on are mapped for as long as `self` lives, and only the kernel
        // accesses them.
        let received = unsafe { libc::read(self.out_of.as_raw_fd(), to.as_ptr(), len) };
        match usize::try_from(received) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(received) => Ok(received),
            Err(_) => Err(io::Error::last_os_error()),
        }
    }
}

/// Repeats a call that a signal interrupted.
fn again(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(error) if error.raw_os_error() == Some(Errno::INTR.raw_os_error()) => {}
            result => return result,
        }
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        // SAFETY: nothing refers to the mapping any more.
        if let Err(error) = unsafe { rustix::mm::munmap(self.start.as_ptr(), self.len) } {
            tracing::debug!(%error, "a mapping could not be unmapped");
        }
    }
}
