//! Read-ahead of one cursor, both ways.
//!
//! Invariants
//! - One window of one partition is held at a time, at most what the scan allows or one block. A merge with room for
//!   it has the next one on its way meanwhile.
//! - The window is charged before it is read; where there is no room it is smaller, at last one block.
//! - The window grows while blocks are taken in order, across partitions too; any jump starts it anew.
//! - The block after a jump and the blocks of the first windows behind it go into the cache, for short scans come again;
//!   those of long ones do not. They share the window's memory only in scans of whole tables: elsewhere a caller may
//!   keep a value, and it must not keep 256 KiB.

use super::{block::Block, cursor::Scan, error::TableError, fences::Partition, index::BlockAt, read::Table};
use crate::{budget::Charge, cache::Page};
use bytes::Bytes;
use copal_device::Completion;
use copal_object::StoreError;

/// Read-ahead of a short scan, after its first block.
const FIRST_WINDOW_BYTES: u64 = 16 << 10;
/// Longest window whose blocks are worth keeping: a scan that had one before is a short scan so far.
const KEPT_WINDOW_BYTES: u64 = 64 << 10;
/// A window ends where one of these does: reads of objects are rounded to them, or to less.
pub(super) const PAGE_BYTES: u64 = 4096;
/// Read-ahead of a long one, where there is room for it.
pub(super) const LAST_WINDOW_BYTES: u64 = 256 << 10;

/// How a block lies to the one taken before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Travel {
    Jump,
    Forward,
    Backward,
}

/// Bytes of one partition read ahead, and the block taken last.
#[derive(Default)]
pub(super) struct ReadAhead {
    bytes: Bytes,
    partition: u32,
    /// Place of the first byte in the partition.
    start: u64,
    size: u64,
    last: Option<(u32, BlockAt)>,
    charge: Option<Charge>,
    coming: Option<Coming>,
}

/// The window behind the current one, on its way.
struct Coming {
    start: u64,
    end: u64,
    bytes: Option<Completion<Result<Bytes, StoreError>>>,
    charge: Option<Charge>,
}

impl Coming {
    /// Waits for it. `None`: it could not be read.
    fn arrive(&mut self) -> Option<(Bytes, Option<Charge>)> {
        let bytes = self.bytes.take()?.wait().ok()?;
        Some((bytes, self.charge.take()))
    }
}

/// The device fills the buffer until the read is done, wanted or not: till then it is charged, and whoever closes the
/// store waits for it.
impl Drop for Coming {
    fn drop(&mut self) {
        if let Some(bytes) = self.bytes.take()
            && !std::thread::panicking()
        {
            drop(bytes.wait());
        }
    }
}

/// Where a window from `start` on ends, in the partition: at a page of the object, so that no page is read twice.
fn window_end(place: &Partition, start: u64, size: u64) -> u64 {
    let end = (place.offset + start + size) / PAGE_BYTES * PAGE_BYTES;
    let end = end.saturating_sub(place.offset);
    if end <= start { start + size } else { end }.min(place.data_len)
}

impl ReadAhead {
    /// Takes a block: from the cache, the window, or the device.
    pub(super) fn take(
        &mut self,
        table: &Table,
        scan: Scan,
        partition: u32,
        at: BlockAt,
    ) -> Result<Block, TableError> {
        let travel = self.travel(table, partition, at);
        self.last = Some((partition, at));
        if let Some(Page::Block(block)) = table.cache.get(table.block_key(partition, at.number)) {
            return Ok(block);
        }
        let mut stored = self.cut(partition, at);
        if stored.is_none() {
            stored = self.turn(table, scan, partition, at);
        }
        if stored.is_none() {
            match travel {
                Travel::Jump if !scan.whole => {
                    // Most likely a short scan, so the block is worth keeping.
                    self.size = 0;
                    return table.block(partition, at, scan.class);
                }
                Travel::Jump => self.size = scan.window,
                _ if scan.whole => self.size = scan.window,
                _ => self.size = (self.size * 2).max(FIRST_WINDOW_BYTES).min(scan.window),
            }
            match self.fill(table, scan, partition, at, travel) {
                // The block alone may be whole; if not, it is named.
                Err(error) if error.is_corruption() => {}
                filled => filled?,
            }
            stored = self.cut(partition, at);
        }
        if let Some(stored) = stored {
            let uid = table.partition(partition).uid;
            let block = match scan.whole {
                true => Block::decode_shared(&stored, uid, at.number),
                false => Block::decode(&stored, uid, at.number),
            };
            if let Ok(block) = block {
                if !scan.whole && self.size <= KEPT_WINDOW_BYTES {
                    let key = table.block_key(partition, at.number);
                    table.cache.insert(key, Page::Block(block.clone()));
                }
                return Ok(block);
            }
        }
        table.read_block(partition, at, scan.class)
    }

    /// The block as it is stored, if the window has it.
    fn cut(&self, partition: u32, at: BlockAt) -> Option<Bytes> {
        let from = at.offset.checked_sub(self.start)? as usize;
        let to = from.checked_add(at.len as usize)?;
        (self.partition == partition && to <= self.bytes.len()).then(|| self.bytes.slice(from..to))
    }

    /// The block as it is stored, if the window that is on its way has its end; that one is the current one then.
    fn turn(&mut self, table: &Table, scan: Scan, partition: u32, at: BlockAt) -> Option<Bytes> {
        let mut coming = self.coming.take()?;
        let reaches = self.partition == partition && at.offset >= self.start && at.range().end <= coming.end;
        if !reaches {
            return None;
        }
        // What fails here is read again for itself, and named.
        let (bytes, charge) = coming.arrive()?;
        let begun = match coming.start.checked_sub(at.offset) {
            None | Some(0) => None,
            Some(head) => {
                let head = self.bytes.get(self.bytes.len().checked_sub(head as usize)?..)?;
                let tail = bytes.get(..(at.len as usize).checked_sub(head.len())?)?;
                Some(Bytes::from([head, tail].concat()))
            }
        };
        (self.bytes, self.start) = (bytes, coming.start);
        self.charge = charge;
        self.ask(table, scan);
        begun.or_else(|| self.cut(partition, at))
    }

    /// Asks for what follows the window, where there is room for it.
    fn ask(&mut self, table: &Table, scan: Scan) {
        let place = table.partition(self.partition);
        let start = self.start + self.bytes.len() as u64;
        if start >= place.data_len {
            return;
        }
        let end = window_end(place, start, scan.window);
        let charge = table.cache.budget().try_charge(scan.memory(), end - start);
        self.coming = charge.map(|charge| Coming {
            start,
            end,
            bytes: Some(table.read_soon(place.offset + start..place.offset + end, scan.class)),
            charge: Some(charge),
        });
    }

    /// Reads a window that begins with the block, or ends with it when going backward.
    fn fill(
        &mut self,
        table: &Table,
        scan: Scan,
        partition: u32,
        at: BlockAt,
        travel: Travel,
    ) -> Result<(), TableError> {
        let place = table.partition(partition);
        self.bytes = Bytes::new();
        self.coming = None;
        let size = self.pay(table, scan, at.len);
        let (start, end) = match travel {
            Travel::Backward => (at.range().end.saturating_sub(size), at.range().end),
            _ if size <= at.len => (at.offset, at.range().end),
            _ => (at.offset, window_end(place, at.offset, size).max(at.range().end)),
        };
        self.bytes = table.read(place.offset + start..place.offset + end, scan.class)?;
        (self.partition, self.start) = (partition, start);
        if scan.ahead && travel != Travel::Backward {
            self.ask(table, scan);
        }
        Ok(())
    }

    /// Charges as much of the wanted window as there is room for; at least one block.
    fn pay(&mut self, table: &Table, scan: Scan, least: u64) -> u64 {
        let (budget, memory) = (table.cache.budget(), scan.memory());
        self.charge = None;
        let mut size = self.size;
        while size > least && self.charge.is_none() {
            self.charge = budget.try_charge(memory, size);
            if self.charge.is_none() {
                size /= 2;
            }
        }
        if self.charge.is_none() {
            size = least;
            self.charge = Some(budget.charge(memory, size));
        }
        size
    }

    fn travel(&self, table: &Table, partition: u32, at: BlockAt) -> Travel {
        let Some((last_partition, last)) = self.last else {
            return Travel::Jump;
        };
        let ends = |partition: u32, at: BlockAt| at.range().end == table.partition(partition).data_len;
        let forward = if partition == last_partition {
            at.offset == last.range().end
        } else {
            partition == last_partition + 1 && at.offset == 0 && ends(last_partition, last)
        };
        let backward = if partition == last_partition {
            at.range().end == last.offset
        } else {
            partition + 1 == last_partition && last.offset == 0 && ends(partition, at)
        };
        match (forward, backward) {
            (true, _) => Travel::Forward,
            (_, true) => Travel::Backward,
            _ => Travel::Jump,
        }
    }
}
