//! NBD target: an export of a VM about to be started, of `qemu-nbd`, or of a storage appliance.
//!
//! Writes go over as many connections as the server offers, up to [`CONNECTIONS`]. If the block size of an
//! export is larger than a byte, whole blocks are written, and the rest of a block is read first, by one thread
//! at a time: two threads may write parts of one block.
//! Not here: starting a server for an image (the user runs `qemu-nbd`).

use super::{Target, TargetError};
use copal_chunk::SEGMENT_BYTES;
use copal_nbd::{
    BASE_ALLOCATION, Client, ConnectOptions, ConnectionPool, ExportInfo, NbdError, STATE_ZERO, Uri,
};
use parking_lot::Mutex;

/// Maximum number of connections to one export.
const CONNECTIONS: usize = 4;
/// Maximum length of one write.
const WRITE_BYTES: usize = 1 << 20;
/// Maximum number of zero extents that are checked before a write; an export with more counts as holding
/// data.
const MAX_CHECKED_EXTENTS: usize = 4096;

static ZEROES: [u8; 256 << 10] = [0; 256 << 10];

/// An export that takes writes.
#[derive(Debug)]
pub struct NbdTarget {
    what: String,
    connections: ConnectionPool,
    /// Held while a block is read, changed and written.
    part_of_block: Mutex<()>,
}

impl NbdTarget {
    /// Connects to an export for overwriting. Unless `overwrite`, an export that holds data by its own map is
    /// refused.
    ///
    /// # Errors
    /// `Unusable`: the address is malformed, no server listens there, or the export is read-only. `Exists`:
    /// the export holds data. Nothing was written.
    pub fn connect(spec: &str, overwrite: bool) -> Result<NbdTarget, TargetError> {
        let refused = |error: NbdError| TargetError::Unusable {
            reason: format!("{spec}: {error}, nothing was written"),
        };
        let uri = Uri::parse(spec).map_err(refused)?;
        let connections =
            ConnectionPool::open(&uri, &ConnectOptions::default(), CONNECTIONS).map_err(refused)?;
        let client = connections.first();
        if !client.export().can_write() {
            return Err(refused(NbdError::ReadOnly));
        }
        if !overwrite && holds_data(client).map_err(refused)? {
            return Err(TargetError::Exists {
                reason: format!("{spec} holds data; add --force to overwrite it"),
            });
        }
        Ok(NbdTarget { what: spec.to_owned(), connections, part_of_block: Mutex::new(()) })
    }

    fn failed(&self, error: &NbdError) -> TargetError {
        TargetError::Unusable {
            reason: format!(
                "{}: {error}; a part of the disk is written there, check the server and restore again with --force",
                self.what
            ),
        }
    }

    fn export(&self) -> &ExportInfo {
        self.connections.first().export()
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), NbdError> {
        let block = self.export().block_bytes as usize;
        let (head, tail) = (offset % block as u64, (offset + data.len() as u64) % block as u64);
        if head == 0 && tail == 0 {
            return self.write_blocks(offset, data);
        }
        let _one_thread = self.part_of_block.lock();
        let end = (offset + data.len() as u64).next_multiple_of(block as u64);
        let start = offset - head;
        let mut whole = vec![0; (end - start) as usize];
        let client = self.connections.next();
        client.read(start, &mut whole[..block])?;
        if whole.len() > block {
            let last = whole.len() - block;
            client.read(start + last as u64, &mut whole[last..])?;
        }
        whole[head as usize..][..data.len()].copy_from_slice(data);
        self.write_blocks(start, &whole)
    }

    /// Writes whole blocks, all requests in flight at once.
    fn write_blocks(&self, offset: u64, data: &[u8]) -> Result<(), NbdError> {
        let piece = WRITE_BYTES.min(self.export().max_request_bytes as usize);
        let pieces = (offset..).step_by(piece).zip(data.chunks(piece));
        let sent: Result<Vec<_>, _> =
            pieces.map(|(at, part)| self.connections.next().start_write(at, part)).collect();
        sent?.into_iter().try_for_each(|pending| pending.wait())
    }

    fn zero(&self, offset: u64, length: u64) -> Result<(), NbdError> {
        let block = u64::from(self.export().block_bytes);
        let end = offset + length;
        let (first, last) = (offset.next_multiple_of(block), end - end % block);
        if !self.export().can_zero() || first >= last {
            return self.write_zeroes(offset, end);
        }
        self.write_zeroes(offset, first)?;
        let mut at = first;
        while at < last {
            let len = (last - at).min(u64::from(ExportInfo::MAX_ZERO_BYTES));
            self.connections.next().start_zero(at, len as u32)?.wait()?;
            at += len;
        }
        self.write_zeroes(last, end)
    }

    fn write_zeroes(&self, mut at: u64, end: u64) -> Result<(), NbdError> {
        while at < end {
            let len = (end - at).min(ZEROES.len() as u64);
            self.write(at, &ZEROES[..len as usize])?;
            at += len;
        }
        Ok(())
    }
}

/// Whether the map of the server has an extent that is not zero. An export without a map counts as empty.
fn holds_data(client: &Client) -> Result<bool, NbdError> {
    let has_map = client.contexts().iter().any(|context| context.name == BASE_ALLOCATION);
    if !has_map || client.size() == 0 {
        return Ok(false);
    }
    let map = client.map(BASE_ALLOCATION, 0..client.size())?;
    for (extent, checked) in map.zip(0..) {
        if extent?.flags & STATE_ZERO == 0 || checked == MAX_CHECKED_EXTENTS {
            return Ok(true);
        }
    }
    Ok(false)
}

impl Target for NbdTarget {
    fn begin(&self, size_bytes: u64) -> Result<(), TargetError> {
        let has = self.export().size;
        let block = u64::from(self.export().block_bytes);
        // A last block that ends past the export could not be written.
        let needs = size_bytes.next_multiple_of(block);
        if has < needs {
            return Err(TargetError::Unusable {
                reason: format!(
                    "{} has {has} bytes, the disk needs {needs}; nothing was written, use a larger export",
                    self.what
                ),
            });
        }
        debug_assert!(SEGMENT_BYTES as u64 >= block);
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), TargetError> {
        self.write(offset, data).map_err(|error| self.failed(&error))
    }

    fn hole(&self, offset: u64, length: u64) -> Result<(), TargetError> {
        self.zero(offset, length).map_err(|error| self.failed(&error))
    }

    fn finish(&self) -> Result<(), TargetError> {
        self.connections.first().flush().map_err(|error| self.failed(&error))
    }
}
