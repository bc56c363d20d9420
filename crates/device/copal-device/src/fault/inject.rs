//! Faults of a [`FaultDevice`](super::FaultDevice), and a budget for random ones.

use crate::random::DeviceRandom;

/// Failure of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteFault {
    /// Reports an error; any part of it may have been written. Poisons the handle.
    Error,
    /// Reports that the host has no space; any part of it may have been written. Poisons the handle.
    HostFull,
    /// Reports success and writes nothing.
    Lost,
    /// Reports success and writes elsewhere.
    Misdirected {
        /// Destination in bytes; a multiple of the logical block.
        to: u64,
    },
}

/// Failure of a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushFault {
    /// Reports an error. Poisons the handle; writes that were not durable may be lost.
    Error,
    /// Reports that the host has no space. Poisons the handle; writes that were not durable may be lost.
    HostFull,
    /// Reports success and makes nothing durable.
    Lie,
}

/// One future fault. Counts skip that many commands of the kind first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A latent sector error: reads of this range fail until it is written.
    ReadError {
        /// First byte.
        at: u64,
        /// Bytes.
        len: u64,
    },
    /// One bit on the medium flips, now.
    BitFlip {
        /// The byte.
        at: u64,
        /// The bit in it, 0 to 7.
        bit: u8,
    },
    /// Reads of this range return its current content, also after later writes.
    StaleRead {
        /// First byte.
        at: u64,
        /// Bytes.
        len: u64,
    },
    /// A later write fails.
    Write {
        /// Number of successful writes before it.
        skip: u32,
        /// Kind of the failure.
        fault: WriteFault,
    },
    /// A later flush fails.
    Flush {
        /// Number of successful flushes before it.
        skip: u32,
        /// Kind of the failure.
        fault: FlushFault,
    },
    /// A later growth is refused.
    Grow {
        /// Number of successful growths before it.
        skip: u32,
    },
}

/// Number of random faults per kind. A test allows at most the faults that the tested layer claims to
/// tolerate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultBudget {
    /// Latent sector errors of one logical block.
    pub read_errors: u32,
    /// Single flipped bits in written space.
    pub bit_flips: u32,
    /// Ranges of one logical block that read stale.
    pub stale_reads: u32,
    /// Writes that report success and have no effect.
    pub lost_writes: u32,
    /// Writes that report success and write elsewhere.
    pub misdirected_writes: u32,
    /// Writes that fail.
    pub write_errors: u32,
    /// Flushes that fail.
    pub flush_errors: u32,
    /// Growths that are refused.
    pub grow_errors: u32,
    /// On average one command in this many meets a fault, while the budget lasts; 0: no faults.
    pub one_in: u64,
}

impl FaultBudget {
    /// Draws a fault for a write to a device of `blocks` blocks of `block` bytes.
    pub(super) fn write(&mut self, random: &mut DeviceRandom, blocks: u64, block: u64) -> Option<WriteFault> {
        if !random.one_in(self.one_in) {
            return None;
        }
        match random.below(3) {
            0 => take(&mut self.write_errors).then_some(WriteFault::Error),
            1 => take(&mut self.lost_writes).then_some(WriteFault::Lost),
            _ => take(&mut self.misdirected_writes)
                .then(|| WriteFault::Misdirected { to: random.below(blocks) * block }),
        }
    }

    pub(super) fn flush(&mut self, random: &mut DeviceRandom) -> Option<FlushFault> {
        (random.one_in(self.one_in) && take(&mut self.flush_errors)).then_some(FlushFault::Error)
    }

    pub(super) fn grow(&mut self, random: &mut DeviceRandom) -> bool {
        random.one_in(self.one_in) && take(&mut self.grow_errors)
    }

    /// Draws a fault for a read of `blocks` blocks of `block` bytes at `at`; it strikes inside that range.
    pub(super) fn read(
        &mut self,
        random: &mut DeviceRandom,
        at: u64,
        blocks: u64,
        block: u64,
    ) -> Option<Fault> {
        if !random.one_in(self.one_in) {
            return None;
        }
        let struck = at + random.below(blocks) * block;
        match random.below(3) {
            0 => take(&mut self.read_errors).then_some(Fault::ReadError { at: struck, len: block }),
            1 => take(&mut self.stale_reads).then_some(Fault::StaleRead { at: struck, len: block }),
            _ => take(&mut self.bit_flips)
                .then(|| Fault::BitFlip { at: struck + random.below(block), bit: random.below(8) as u8 }),
        }
    }
}

fn take(left: &mut u32) -> bool {
    let any = *left > 0;
    *left -= u32::from(any);
    any
}
