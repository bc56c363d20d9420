//! `DiskContents`: the bytes of an emulated disk, in memory or in a file.

use crate::memory::DISCARDED;
use crate::{DeviceError, Image};
use rustix::fs::FallocateFlags;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Longest single write of zeros into a file.
const PIECE_BYTES: usize = 1 << 20;

/// Bytes of a disk. Every range lies inside them; the caller has checked it.
pub trait DiskContents: Send {
    /// Number of bytes, which never changes.
    /// # Errors
    /// The file cannot be examined.
    fn size_bytes(&self) -> Result<u64, DeviceError>;

    /// Copies bytes out. Blocks on the file.
    /// # Errors
    /// Those of the file.
    fn read_at(&self, at: u64, out: &mut [u8]) -> Result<(), DeviceError>;

    /// Copies bytes in. Blocks on the file.
    /// # Errors
    /// Those of the file; a part may be written.
    fn write_at(&mut self, at: u64, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Sets bytes to zero. Blocks on the file.
    /// # Errors
    /// Those of the file; a part may be zero.
    fn zero(&mut self, at: u64, len: u64) -> Result<(), DeviceError>;

    /// Frees the memory or the blocks of a range, which reads as anything from now on.
    /// # Errors
    /// Those of the file.
    fn discard(&mut self, at: u64, len: u64) -> Result<(), DeviceError>;
}

impl DiskContents for Image {
    fn size_bytes(&self) -> Result<u64, DeviceError> {
        Ok(self.size())
    }

    fn read_at(&self, at: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        self.read(at, out);
        Ok(())
    }

    fn write_at(&mut self, at: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.write(at, bytes);
        Ok(())
    }

    fn zero(&mut self, at: u64, len: u64) -> Result<(), DeviceError> {
        self.fill(at, len, 0);
        Ok(())
    }

    fn discard(&mut self, at: u64, len: u64) -> Result<(), DeviceError> {
        self.fill(at, len, DISCARDED);
        Ok(())
    }
}

impl DiskContents for Box<dyn DiskContents> {
    fn size_bytes(&self) -> Result<u64, DeviceError> {
        (**self).size_bytes()
    }

    fn read_at(&self, at: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        (**self).read_at(at, out)
    }

    fn write_at(&mut self, at: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        (**self).write_at(at, bytes)
    }

    fn zero(&mut self, at: u64, len: u64) -> Result<(), DeviceError> {
        (**self).zero(at, len)
    }

    fn discard(&mut self, at: u64, len: u64) -> Result<(), DeviceError> {
        (**self).discard(at, len)
    }
}

/// A file through the page cache. A flush of the disk does not sync it: bytes survive the process, and no power
/// loss of the machine.
impl DiskContents for File {
    fn size_bytes(&self) -> Result<u64, DeviceError> {
        let meta = self.metadata().map_err(|error| DeviceError::io("read", 0, 0, error))?;
        Ok(meta.len())
    }

    fn read_at(&self, at: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        let len = out.len() as u64;
        self.read_exact_at(out, at).map_err(|error| DeviceError::io("read", at, len, error))
    }

    fn write_at(&mut self, at: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let len = bytes.len() as u64;
        self.write_all_at(bytes, at).map_err(|error| DeviceError::io("write", at, len, error))
    }

    fn zero(&mut self, at: u64, len: u64) -> Result<(), DeviceError> {
        if punch(self, at, len).is_ok() {
            return Ok(());
        }
        let zeros = vec![0; PIECE_BYTES];
        let end = at + len;
        for from in (at..end).step_by(PIECE_BYTES) {
            let piece = usize::try_from(end - from).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
            self.write_all_at(&zeros[..piece], from)
                .map_err(|error| DeviceError::io("write zeroes", at, len, error))?;
        }
        Ok(())
    }

    fn discard(&mut self, at: u64, len: u64) -> Result<(), DeviceError> {
        // A hint: where the file system cannot free blocks, the bytes stay.
        let _ = punch(self, at, len);
        Ok(())
    }
}

fn punch(file: &File, at: u64, len: u64) -> rustix::io::Result<()> {
    rustix::fs::fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, at, len)
}
