//! Cursor over the entries of one data block, in both directions.
//!
//! Format: docs/formats/kv-table.md v1, "Data block"
//! Invariants
//! - Entries are checked as they are read, so crafted bytes give an error, never a panic.
//! - Moving back means moving forward from the restart before: at most 16 entries.

use super::{block::DataBlock, error::Damage};
use crate::format::entry::{Entry, EntryKind, MAX_KEY_BYTES, compare};
use bytes::Bytes;
use std::cmp::Ordering;

/// Cursor over one block.
pub(crate) struct BlockCursor {
    block: DataBlock,
    key: Vec<u8>,
    /// Offset of the current entry; the cursor is valid when `here` is set.
    at: usize,
    here: Option<CursorPosition>,
}

#[derive(Clone, Copy)]
struct CursorPosition {
    seq: u64,
    kind: EntryKind,
    value: usize,
    end: usize,
}

impl BlockCursor {
    pub(crate) fn new(block: DataBlock) -> BlockCursor {
        BlockCursor { block, key: Vec::new(), at: 0, here: None }
    }

    pub(crate) fn entry(&self) -> Option<Entry<'_>> {
        self.here.map(|here| Entry {
            key: &self.key,
            seq: here.seq,
            kind: here.kind,
            value: &self.block.raw[here.value..here.end],
        })
    }

    pub(crate) fn valid(&self) -> bool {
        self.here.is_some()
    }

    /// The current value, sharing the block's memory.
    pub(crate) fn value(&self) -> Bytes {
        self.here.map_or_else(Bytes::new, |here| self.block.raw.slice(here.value..here.end))
    }

    pub(crate) fn first(&mut self) -> Result<(), Damage> {
        self.restart(0)
    }

    pub(crate) fn last(&mut self) -> Result<(), Damage> {
        self.restart(self.block.restarts - 1)?;
        self.run_until(self.block.entries_end)
    }

    pub(crate) fn next(&mut self) -> Result<(), Damage> {
        match self.here {
            Some(here) if here.end < self.block.entries_end => self.read(here.end),
            _ => {
                self.here = None;
                Ok(())
            }
        }
    }

    pub(crate) fn prev(&mut self) -> Result<(), Damage> {
        if self.here.is_none() || self.at == 0 {
            self.here = None;
            return Ok(());
        }
        let here = self.at;
        let restart = self.partition_restarts(|block, i| Ok(block.restart(i) < here))?;
        self.restart(restart)?;
        self.run_until(here)
    }

    /// Moves to the first entry at or after `(key, seq)`.
    pub(crate) fn seek(&mut self, key: &[u8], seq: u64) -> Result<(), Damage> {
        self.restart_before(key, seq)?;
        while let Some(entry) = self.entry() {
            if compare(entry.position(), (key, seq)) != Ordering::Less {
                break;
            }
            self.next()?;
        }
        Ok(())
    }

    /// Moves to the last entry at or before `(key, seq)`.
    pub(crate) fn seek_for_prev(&mut self, key: &[u8], seq: u64) -> Result<(), Damage> {
        self.seek(key, seq)?;
        match self.entry() {
            None => self.last(),
            Some(entry) if compare(entry.position(), (key, seq)) == Ordering::Greater => self.prev(),
            Some(_) => Ok(()),
        }
    }

    /// Moves to the last restart whose entry is before `(key, seq)`, or to the first restart.
    fn restart_before(&mut self, key: &[u8], seq: u64) -> Result<(), Damage> {
        let restart = self.partition_restarts(|block, i| {
            let parts = block.parts_at(block.restart(i))?;
            if parts.shared != 0 {
                return Err(Damage::Field("restart key"));
            }
            let at = (&block.raw[parts.rest..parts.value], parts.seq);
            Ok(compare(at, (key, seq)) == Ordering::Less)
        })?;
        self.restart(restart)
    }

    /// The last restart for which `before` holds (it holds for a prefix of them), or 0.
    fn partition_restarts(
        &self,
        before: impl Fn(&DataBlock, usize) -> Result<bool, Damage>,
    ) -> Result<usize, Damage> {
        let (mut low, mut high) = (0, self.block.restarts);
        while low < high {
            let middle = low + (high - low) / 2;
            if before(&self.block, middle)? {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(low.saturating_sub(1))
    }

    fn restart(&mut self, i: usize) -> Result<(), Damage> {
        self.key.clear();
        self.read(self.block.restart(i))
    }

    /// Moves forward to the entry that ends at `end`.
    fn run_until(&mut self, end: usize) -> Result<(), Damage> {
        while let Some(here) = self.here {
            if here.end == end {
                return Ok(());
            }
            if here.end > end {
                return self.fail(Damage::Field("entry length"));
            }
            self.read(here.end)?;
        }
        Ok(())
    }

    /// Reads the entry at `at`, whose shared prefix is in `self.key`.
    fn read(&mut self, at: usize) -> Result<(), Damage> {
        let parts = match self.block.parts_at(at) {
            Ok(parts) => parts,
            Err(damage) => return self.fail(damage),
        };
        if parts.shared > self.key.len() || parts.shared + (parts.value - parts.rest) > MAX_KEY_BYTES {
            return self.fail(Damage::Field("shared length"));
        }
        self.key.truncate(parts.shared);
        self.key.extend_from_slice(&self.block.raw[parts.rest..parts.value]);
        self.at = at;
        self.here =
            Some(CursorPosition { seq: parts.seq, kind: parts.kind, value: parts.value, end: parts.end });
        Ok(())
    }

    fn fail(&mut self, damage: Damage) -> Result<(), Damage> {
        self.here = None;
        Err(damage)
    }
}
