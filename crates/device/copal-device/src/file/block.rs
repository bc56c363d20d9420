//! Commands of block devices without a safe wrapper: length, discard, write zeroes.
#![expect(unsafe_code, reason = "ioctls of block devices")]

use rustix::fd::{AsFd, AsRawFd};
use std::io;

/// `_IOR(0x12, 114, size_t)`: length in bytes.
const BLKGETSIZE64: libc::Ioctl = 0x8008_1272;
/// `_IO(0x12, 119)`: discard {start, length}.
const BLKDISCARD: libc::Ioctl = 0x1277;
/// `_IO(0x12, 127)`: write zeroes to {start, length}, provisioned.
const BLKZEROOUT: libc::Ioctl = 0x127f;

/// Bytes of the device.
pub(super) fn size(device: impl AsFd) -> io::Result<u64> {
    let mut size = 0u64;
    let fd = device.as_fd().as_raw_fd();
    // SAFETY: the descriptor is open; the kernel writes eight bytes to `size`, which lives on this stack.
    let result = unsafe { libc::ioctl(fd, BLKGETSIZE64, &raw mut size) };
    if result == 0 { Ok(size) } else { Err(io::Error::last_os_error()) }
}

/// Discards a range; it reads as anything afterwards.
pub(super) fn discard(device: impl AsFd, at: u64, len: u64) -> io::Result<()> {
    on_range(device, BLKDISCARD, at, len)
}

/// Writes zeros, with the device's own command where it has one. Blocks.
pub(super) fn zero_out(device: impl AsFd, at: u64, len: u64) -> io::Result<()> {
    on_range(device, BLKZEROOUT, at, len)
}

fn on_range(device: impl AsFd, command: libc::Ioctl, at: u64, len: u64) -> io::Result<()> {
    let range = [at, len];
    let fd = device.as_fd().as_raw_fd();
    // SAFETY: the descriptor is open; both commands read two u64 from `range`, which lives on this stack.
    let result = unsafe { libc::ioctl(fd, command, range.as_ptr()) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
