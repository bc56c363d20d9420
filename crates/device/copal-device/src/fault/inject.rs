//! The faults a [`FaultDevice`](super::FaultDevice) knows, and how many of them a run may have.

use crate::random::DeviceRandom;

/// What a write does instead of writing.
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
        /// Where it went, in bytes; a multiple of the logical block.
        to: u64,
    },
}

/// What a flush does instead of flushing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushFault {
    /// Reports an error. Poisons the handle; what was not durable may be lost.
    Error,
    /// Reports that the host has no space. Poisons the handle; writes that were not durable may be lost.
    HostFull,
    /// Reports success and makes nothing durable.
    Lie,
}

/// One fault to come. Counts skip that many commands of the kind first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A latent sector error: reads of this range fail until it is written.
    ReadError {
        /// First byte.
        at: u64,
        /// Bytes.
        len: u64,
    },
    /// One bit changes on the medium, now.
    BitFlip {
        /// The byte.
        at: u64,
        /// The bit in it, 0 to 7.
        bit: u8,
    },
    /// Reads of this range return what it holds now, also after later writes.
    StaleRead {
        /// First byte.
        at: u64,
        /// Bytes.
        len: u64,
    },
    /// A later write goes wrong.
    Write {
        /// Writes that go right before it.
        skip: u32,
        /// How it goes wrong.
        fault: WriteFault,
    },
    /// A later flush goes wrong.
    Flush {
        /// Flushes that go right before it.
        skip: u32,
        /// How it goes wrong.
        fault: FlushFault,
    },
    /// A later growth is refused.
    Grow {
        /// Growths that go right before it.
        skip: u32,
    },
}

/// How many faults of each kind chance may inject. A test gives no more than the layer claims to stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultBudget {
    /// Latent sector errors of one logical block.
    pub read_errors: u32,
    /// Single flipped bits in written space.
    pub bit_flips: u32,
    /// Ranges of one logical block that read stale.
    pub stale_reads: u32,
    /// Writes that report success and do nothing.
    pub lost_writes: u32,
    /// Writes that report success and go elsewhere.
    pub misdirected_writes: u32,
    /// Writes that fail.
    pub write_errors: u32,
    /// Flushes that fail.
    pub flush_errors: u32,
    /// Growths that are refused.
    pub grow_errors: u32,
    /// On average one command in this many meets a fault, while the budget lasts; 0: none do.
    pub one_in: u64,
}

impl FaultBudget {
    /// Rolls the dice for a write of a device of `blocks` blocks of `block` bytes.
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

    /// Rolls the dice for a read of `blocks` blocks of `block` bytes at `at`: the fault strikes inside it.
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
