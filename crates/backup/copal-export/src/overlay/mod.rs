//! Overlay: a writable layer above a disk. Written blocks are in a file, all others in the disk below.
//!
//! Format: docs/formats/overlay.md v1
//! Invariants
//! - A bit becomes durable only after its block. A crash loses unflushed writes, and never exposes a block
//!   that was not written completely.
//! - After a failed flush every later flush fails too.
//!
//! One thread writes at a time, many read.
//!
//! Not here: the disk below; each call gets a function that reads it.

pub(crate) mod format;
#[cfg(test)]
mod tests;

use copal_nbd::server::DiskError;
use format::{BLOCK_BYTES, HEAD_BYTES, OverlayHeader, PAGE_BYTES};
use parking_lot::RwLock;
use rustix::{
    fs::{FallocateFlags, FlockOperation, fallocate, flock},
    io::Errno,
};
use std::{
    collections::BTreeSet,
    fs::File,
    io::ErrorKind,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
};

/// Error of an overlay.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OverlayError {
    /// The file cannot be used.
    #[error("cannot {action} {path}: {source}; name a file where there is room, nothing was served")]
    Io {
        /// The failed action.
        action: &'static str,
        /// The file.
        path: String,
        /// The error of the system.
        #[source]
        source: std::io::Error,
    },
    /// Another process exports with this overlay.
    #[error("{path} is in use by another export; end that one, or name another file")]
    InUse {
        /// The file.
        path: String,
    },
    /// The file is not an overlay, or is damaged.
    #[error(
        "{path} is not a readable overlay: {detail}; name another file, or remove it if its data is not needed"
    )]
    Unreadable {
        /// The file.
        path: String,
        /// The reason.
        detail: String,
    },
    /// The overlay belongs to another disk or snapshot, whose bytes its blocks contain.
    #[error("{path} was made for disk {disk} of snapshot {snapshot}; serve that one, or name another file")]
    OfAnother {
        /// The file.
        path: String,
        /// Name of its disk.
        disk: String,
        /// Id of its snapshot.
        snapshot: String,
    },
}

/// The writes above one disk.
pub struct Overlay {
    file: File,
    head: OverlayHeader,
    state: RwLock<OverlayState>,
}

struct OverlayState {
    /// One bit per block that the overlay has.
    bitmap: Vec<u8>,
    /// Bitmap pages that differ from the file.
    unwritten: BTreeSet<u64>,
    /// A flush failed: the durable state is unknown.
    is_poisoned: bool,
}

impl OverlayState {
    fn has(&self, block: u64) -> bool {
        self.bitmap[(block / 8) as usize] & (1 << (block % 8)) != 0
    }

    fn set(&mut self, block: u64) {
        let byte = block / 8;
        if !self.has(block) {
            self.bitmap[byte as usize] |= 1 << (block % 8);
            self.unwritten.insert(byte / PAGE_BYTES);
        }
    }
}

impl Drop for Overlay {
    /// A child process has a copy of the file between `fork` and `exec`: closing it would not release the lock.
    fn drop(&mut self) {
        let _ = self.file.unlock();
    }
}

impl Overlay {
    /// Opens the overlay in `path`, or creates one with mode 0600. Blocks on the file system.
    /// # Errors
    /// See [`OverlayError`]; a file of another kind is left unchanged.
    pub fn open(
        path: &Path,
        snapshot: [u8; 16],
        disk: &str,
        size_bytes: u64,
    ) -> Result<Overlay, OverlayError> {
        let name = || path.display().to_string();
        let failed =
            |action| move |source| OverlayError::Io { action, path: path.display().to_string(), source };
        let unreadable = |detail: String| OverlayError::Unreadable { path: name(), detail };
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(path).map_err(failed("open"))?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(OverlayError::InUse { path: name() });
        }
        let wanted = OverlayHeader { size_bytes, snapshot, disk: disk.to_owned() };
        let length = file.metadata().map_err(failed("look at"))?.len();
        if length == 0 {
            initialize(&file, &wanted).map_err(failed("make"))?;
        }
        let mut head = vec![0; HEAD_BYTES as usize];
        file.read_exact_at(&mut head, 0).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => unreadable("it is too short".to_owned()),
            _ => failed("read")(error),
        })?;
        let head = OverlayHeader::decode(&head).map_err(unreadable)?;
        if head != wanted {
            return Err(OverlayError::OfAnother {
                path: name(),
                disk: head.disk,
                snapshot: copal_backup::SnapshotId(head.snapshot).short(),
            });
        }
        let length = file.metadata().map_err(failed("look at"))?.len();
        if length < head.blocks_at() + size_bytes {
            return Err(unreadable("it was cut off".to_owned()));
        }
        let mut bitmap = vec![0; head.bitmap_bytes() as usize];
        file.read_exact_at(&mut bitmap, HEAD_BYTES).map_err(failed("read"))?;
        Ok(Overlay {
            file,
            head,
            state: RwLock::new(OverlayState { bitmap, unwritten: BTreeSet::new(), is_poisoned: false }),
        })
    }

    /// Whether the byte at `offset` was written, and the length of the run with the same state, at most
    /// `len`. The range is within the disk.
    pub fn run_at(&self, offset: u64, len: u64) -> (bool, u64) {
        Overlay::run(&self.state.read(), offset, len)
    }

    fn run(state: &OverlayState, offset: u64, len: u64) -> (bool, u64) {
        let end = offset + len;
        let written = state.has(offset / BLOCK_BYTES);
        let mut block = offset / BLOCK_BYTES + 1;
        while block * BLOCK_BYTES < end && state.has(block) == written {
            block += 1;
        }
        (written, (block * BLOCK_BYTES).min(end) - offset)
    }

    /// Fills `buf` from `offset`; `below` reads the blocks that were not written.
    /// # Errors
    /// Those of `below`. `Damaged`: the file cannot be read.
    pub fn read_at(
        &self,
        offset: u64,
        buf: &mut [u8],
        below: impl Fn(u64, &mut [u8]) -> Result<(), DiskError>,
    ) -> Result<(), DiskError> {
        let state = self.state.read();
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let (written, length) = Overlay::run(&state, at, (buf.len() - done) as u64);
            let part = &mut buf[done..done + length as usize];
            match written {
                true => self.file.read_exact_at(part, self.file_offset(at)).map_err(failed)?,
                false => below(at, part)?,
            }
            done += length as usize;
        }
        Ok(())
    }

    /// Writes `data` at `offset`. A block that is covered in part is first copied from `below`.
    /// # Errors
    /// Those of `below`. `NoSpace`. `Damaged`: the file cannot be written.
    pub fn write_at(
        &self,
        offset: u64,
        data: &[u8],
        below: impl Fn(u64, &mut [u8]) -> Result<(), DiskError>,
    ) -> Result<(), DiskError> {
        let state = &mut *self.state.write();
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            let block = at / BLOCK_BYTES;
            let end = self.block_end(block);
            let take = ((end - at) as usize).min(data.len() - done);
            let part = &data[done..done + take];
            let start = block * BLOCK_BYTES;
            let is_whole = at == start && at + take as u64 == end;
            if state.has(block) || is_whole {
                self.file.write_all_at(part, self.file_offset(at)).map_err(failed)?;
            } else {
                let mut whole = vec![0; (end - start) as usize];
                below(start, &mut whole)?;
                whole[(at - start) as usize..][..take].copy_from_slice(part);
                self.file.write_all_at(&whole, self.file_offset(start)).map_err(failed)?;
            }
            state.set(block);
            done += take;
        }
        Ok(())
    }

    /// Zeroes a range; complete blocks become holes of the file.
    /// # Errors
    /// As [`Overlay::write_at`].
    pub fn zero(
        &self,
        offset: u64,
        len: u64,
        below: impl Fn(u64, &mut [u8]) -> Result<(), DiskError>,
    ) -> Result<(), DiskError> {
        static ZEROES: [u8; BLOCK_BYTES as usize] = [0; BLOCK_BYTES as usize];
        let end = offset + len;
        let first = offset.next_multiple_of(BLOCK_BYTES).min(end);
        // The last block of the disk may be short and still be covered completely.
        let last = match end == self.head.size_bytes {
            true => end,
            false => (end - end % BLOCK_BYTES).max(first),
        };
        for (from, to) in [(offset, first), (last, end)] {
            if from < to {
                self.write_at(from, &ZEROES[..(to - from) as usize], &below)?;
            }
        }
        if first < last {
            let state = &mut *self.state.write();
            punch(&self.file, self.file_offset(first), last - first).map_err(failed)?;
            (first / BLOCK_BYTES..last.div_ceil(BLOCK_BYTES)).for_each(|block| state.set(block));
        }
        Ok(())
    }

    /// Makes all writes durable: first the blocks, then their bits.
    /// # Errors
    /// `Damaged`, also from every later flush: writes may be lost. `NoSpace`.
    pub fn flush(&self) -> Result<(), DiskError> {
        let state = &mut *self.state.write();
        if state.is_poisoned {
            return Err(DiskError::Damaged);
        }
        let flushed = flush_blocks_then_bits(&self.file, state);
        state.is_poisoned = flushed.is_err();
        flushed.map_err(failed)
    }

    fn file_offset(&self, offset: u64) -> u64 {
        self.head.blocks_at() + offset
    }

    fn block_end(&self, block: u64) -> u64 {
        ((block + 1) * BLOCK_BYTES).min(self.head.size_bytes)
    }
}

/// Operations of a flush on the overlay file, so that a test can record their order.
trait FlushedFile {
    /// Makes all earlier writes durable.
    fn sync(&self) -> std::io::Result<()>;
    /// Writes bits of durable blocks.
    fn write_bits(&self, bits: &[u8], at: u64) -> std::io::Result<()>;
}

impl FlushedFile for File {
    fn sync(&self) -> std::io::Result<()> {
        self.sync_data()
    }

    fn write_bits(&self, bits: &[u8], at: u64) -> std::io::Result<()> {
        self.write_all_at(bits, at)
    }
}

fn flush_blocks_then_bits(file: &impl FlushedFile, state: &mut OverlayState) -> std::io::Result<()> {
    file.sync()?;
    if state.unwritten.is_empty() {
        return Ok(());
    }
    for page in &state.unwritten {
        let at = page * PAGE_BYTES;
        let bits = &state.bitmap[at as usize..(at + PAGE_BYTES) as usize];
        file.write_bits(bits, HEAD_BYTES + at)?;
    }
    file.sync()?;
    state.unwritten.clear();
    Ok(())
}

/// Writes the header, extends the file to its full length, and makes both durable.
fn initialize(file: &File, head: &OverlayHeader) -> std::io::Result<()> {
    file.set_len(head.blocks_at() + head.size_bytes)?;
    file.write_all_at(&head.encode(), 0)?;
    file.sync_all()
}

fn punch(file: &File, offset: u64, len: u64) -> std::io::Result<()> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    match fallocate(file, flags, offset, len) {
        Ok(()) => Ok(()),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
            let zeroes = vec![0; BLOCK_BYTES as usize];
            let mut at = 0;
            while at < len {
                let piece = (len - at).min(BLOCK_BYTES);
                file.write_all_at(&zeroes[..piece as usize], offset + at)?;
                at += piece;
            }
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}

fn failed(error: std::io::Error) -> DiskError {
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => DiskError::NoSpace,
        _ => {
            tracing::error!(%error, "overlay file failed");
            DiskError::Damaged
        }
    }
}
