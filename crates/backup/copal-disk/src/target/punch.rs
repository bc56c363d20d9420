//! Zeroing of a range: punches a hole where possible.

use rustix::{fs::FallocateFlags, io::Errno};
use std::{fs::File, io, os::unix::fs::FileExt};

static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

/// Punches a hole; writes zeroes where the file system or device cannot.
pub(super) fn zero_range(file: &File, offset: u64, length: u64) -> io::Result<()> {
    if length == 0 {
        return Ok(());
    }
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    match rustix::fs::fallocate(file, flags, offset, length) {
        Ok(()) => Ok(()),
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL | Errno::NODEV) => {
            write_zeroes(file, offset, length)
        }
        Err(error) => Err(error.into()),
    }
}

pub(super) fn write_zeroes(file: &File, offset: u64, length: u64) -> io::Result<()> {
    let mut done = 0;
    while done < length {
        let piece = (length - done).min(ZEROES.len() as u64);
        file.write_all_at(&ZEROES[..piece as usize], offset + done)?;
        done += piece;
    }
    Ok(())
}
