//! Read-ahead of one cursor, in both directions.
//!
//! Invariants
//! - One window of one partition is held at a time, at most the scan's window or one block. A merge also
//!   reads the next window meanwhile, if it fits.
//! - A window is charged before it is read; if it does not fit, it is made smaller, down to one block.
//! - A scan begins with the average size of the table's earlier scans, usually in one read. Later windows
//!   grow while blocks are taken in order, across partitions too; any jump starts again.
//! - The block after a jump and the blocks of the next small windows are cached, since short scans tend to be
//!   repeated. Blocks of long scans are not cached.
//! - Blocks share the window's memory only in scans of whole tables. In other scans a caller may keep a
//!   value, which must not keep its window.

use super::{reader::Table, scan::Scan, typical_scan::KEPT_SCAN_BYTES};
use crate::format::{block::DataBlock, error::TableError, fences::PartitionPlace, index::BlockAt};
use crate::memory::{budget::MemoryCharge, cache::Page};
use bytes::Bytes;
use copal_device::Completion;
use copal_object::StoreError;

/// Direction of a cursor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ReadWay {
    #[default]
    Forward,
    Backward,
}

/// Bytes of one partition that were read ahead, and the last block taken.
#[derive(Default)]
pub(super) struct ReadAhead {
    bytes: Bytes,
    partition: u32,
    /// Offset of the first byte in the partition.
    start: u64,
    size: u64,
    /// Size of the last window beyond the expected length; 0: none yet.
    grown: u64,
    /// Bytes taken since the last jump or turn, and the expected bytes of this scan.
    taken: u64,
    expected: u64,
    last: Option<(u32, BlockAt)>,
    way: ReadWay,
    charge: Option<MemoryCharge>,
    coming: Option<ComingWindow>,
}

/// The next window, which is being read.
struct ComingWindow {
    start: u64,
    end: u64,
    bytes: Option<Completion<Result<Bytes, StoreError>>>,
    charge: Option<MemoryCharge>,
}

impl ComingWindow {
    /// Waits for the window. `None`: the read failed.
    fn arrive(&mut self) -> Option<(Bytes, Option<MemoryCharge>)> {
        let bytes = self.bytes.take()?.wait().ok()?;
        Some((bytes, self.charge.take()))
    }
}

/// Waits for the read, since the device fills the buffer until the read is done. Until then the buffer is
/// charged, and closing the store waits for it.
impl Drop for ComingWindow {
    fn drop(&mut self) {
        if let Some(bytes) = self.bytes.take()
            && !std::thread::panicking()
        {
            drop(bytes.wait());
        }
    }
}

/// End of a window from `start` on, as an offset in the partition: at a unit of reads, so that no byte is
/// read twice.
fn window_end(place: &PartitionPlace, start: u64, size: u64, unit: u64) -> u64 {
    let end = (place.offset + start + size) / unit * unit;
    let end = end.saturating_sub(place.offset);
    if end <= start { start + size } else { end }.min(place.data_len)
}

impl ReadAhead {
    /// Takes a block from the cache, the window, or the device. `way`: direction of the cursor, which came to
    /// the block or continues from it.
    pub(super) fn take(
        &mut self,
        table: &Table,
        scan: Scan,
        partition: u32,
        at: BlockAt,
        way: ReadWay,
    ) -> Result<DataBlock, TableError> {
        let begins = way != self.way || !self.is_next(table, partition, at, way);
        (self.last, self.way) = (Some((partition, at)), way);
        if begins {
            self.end_scan(table, scan);
        }
        let before = self.taken;
        self.taken += at.len;
        if let Some(Page::Block(block)) = table.cache.get(table.block_key(partition, at.number)) {
            return Ok(block);
        }
        let mut stored = self.cut(partition, at);
        if stored.is_none() {
            stored = self.turn(table, scan, partition, at);
        }
        if stored.is_none() {
            let expected = self.expected.saturating_sub(before);
            // A small rest of the expected bytes is better read as the next window.
            let sizes = table.read_sizes();
            let window = scan.window(sizes);
            let least = if begins { at.len } else { sizes.second_window() };
            self.size = if scan.whole {
                window
            } else if expected > least {
                expected.min(window)
            } else if begins {
                return table.block(partition, at, scan.class);
            } else {
                self.grown = (self.grown * 2).max(sizes.second_window()).min(window);
                self.grown
            };
            match self.fill(table, scan, partition, at) {
                // The block itself may be intact; if not, reading it alone names it.
                Err(error) if error.is_corruption() => {}
                filled => filled?,
            }
            stored = self.cut(partition, at);
        }
        if let Some(stored) = stored {
            let uid = table.partition(partition).uid;
            let block = match scan.whole {
                true => DataBlock::decode_shared(&stored, uid, at.number),
                false => DataBlock::decode(&stored, uid, at.number),
            };
            if let Ok(block) = block {
                if !scan.whole && self.size <= KEPT_SCAN_BYTES {
                    let key = table.block_key(partition, at.number);
                    table.cache.insert(key, Page::Block(block.clone()));
                }
                return Ok(block);
            }
        }
        table.read_block(partition, at, scan.class)
    }

    /// Records the length of this scan for the table, and begins the next scan.
    pub(super) fn end_scan(&mut self, table: &Table, scan: Scan) {
        if scan.whole {
            return;
        }
        if self.taken > 0 {
            table.typical_scan.note(self.taken);
        }
        (self.taken, self.expected, self.grown) = (0, table.typical_scan.bytes(), 0);
    }

    /// The stored block, if the window contains it.
    fn cut(&self, partition: u32, at: BlockAt) -> Option<Bytes> {
        let from = at.offset.checked_sub(self.start)? as usize;
        let to = from.checked_add(at.len as usize)?;
        (self.partition == partition && to <= self.bytes.len()).then(|| self.bytes.slice(from..to))
    }

    /// The stored block, if the coming window contains its end; that window then becomes the current one.
    fn turn(&mut self, table: &Table, scan: Scan, partition: u32, at: BlockAt) -> Option<Bytes> {
        let mut coming = self.coming.take()?;
        let reaches = self.partition == partition && at.offset >= self.start && at.range().end <= coming.end;
        if !reaches {
            return None;
        }
        // A failed block is read again by itself, so that the error names it.
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

    /// Starts to read the next window, if it fits the memory.
    fn ask(&mut self, table: &Table, scan: Scan) {
        let place = table.partition(self.partition);
        let start = self.start + self.bytes.len() as u64;
        if start >= place.data_len {
            return;
        }
        let sizes = table.read_sizes();
        let end = window_end(place, start, scan.window(sizes), sizes.unit);
        let charge = table.cache.budget().try_charge(scan.memory(), end - start);
        self.coming = charge.map(|charge| ComingWindow {
            start,
            end,
            bytes: Some(table.read_soon(place.offset + start..place.offset + end, scan.class)),
            charge: Some(charge),
        });
    }

    /// Reads a window that begins with the block, or backward ends with it.
    fn fill(&mut self, table: &Table, scan: Scan, partition: u32, at: BlockAt) -> Result<(), TableError> {
        let place = table.partition(partition);
        self.bytes = Bytes::new();
        self.coming = None;
        let size = self.pay(table, scan, at.len);
        let (start, end) = match self.way {
            ReadWay::Backward => (at.range().end.saturating_sub(size).min(at.offset), at.range().end),
            ReadWay::Forward if size <= at.len => (at.offset, at.range().end),
            ReadWay::Forward => {
                let end = window_end(place, at.offset, size, table.read_sizes().unit);
                (at.offset, end.max(at.range().end))
            }
        };
        self.bytes = table.read(place.offset + start..place.offset + end, scan.class)?;
        (self.partition, self.start) = (partition, start);
        if scan.ahead && self.way == ReadWay::Forward {
            self.ask(table, scan);
        }
        Ok(())
    }

    /// Charges as much of the wanted window as fits; at least one block.
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

    /// Whether the block follows the last one taken.
    fn is_next(&self, table: &Table, partition: u32, at: BlockAt, way: ReadWay) -> bool {
        let Some(last) = self.last else { return false };
        let (before, after) = match way {
            ReadWay::Forward => (last, (partition, at)),
            ReadWay::Backward => ((partition, at), last),
        };
        let end = before.1.range().end;
        if before.0 == after.0 {
            return end == after.1.offset;
        }
        let last_of_its = end == table.partition(before.0).data_len;
        before.0 + 1 == after.0 && last_of_its && after.1.offset == 0
    }
}
