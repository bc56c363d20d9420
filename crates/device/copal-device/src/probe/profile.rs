//! `DeviceProfile`: figures of one device, and the numbers of a store that follow from them.

use super::{DecimalRatio, ProbeConfidence, ProfileBackend};
use crate::ZonedModel;

/// Kind of a probed device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// A file of a file system.
    File,
    /// A block device.
    Block,
    /// A model in memory.
    Model,
}

/// Measured figures of a device. Its text form is the file format of profiles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceProfile {
    /// Kind of the device.
    pub kind: DeviceKind,
    /// The system says that it turns.
    pub rotational: bool,
    /// Rules of its zones.
    pub zoned: ZonedModel,
    /// Smallest unit in bytes that it writes atomically.
    pub logical_block: u32,
    /// Smallest random write in bytes that is not slower than twice its size.
    pub page_bytes: u32,
    /// Time of a write of half a page by that of a page; 1 without a cliff.
    pub rmw_ratio: DecimalRatio,
    /// Random reads of a page in a second, at the best depth.
    pub read_iops: u64,
    /// Random writes of a page in a second, at the best depth.
    pub write_iops: u64,
    /// Bytes of sequential reads in a second.
    pub read_bytes_per_s: u64,
    /// Bytes of sequential writes in a second.
    pub write_bytes_per_s: u64,
    /// Pages of sequential writes by pages of random writes, in the same time.
    pub sequential_ratio: DecimalRatio,
    /// Number of waiting reads up to which more of them gain a tenth.
    pub read_knee: u32,
    /// Number of waiting writes up to which more of them gain a tenth.
    pub write_knee: u32,
    /// Nanoseconds of a lone random read.
    pub read_ns: u64,
    /// Nanoseconds of a lone sequential write that may stay in a cache.
    pub write_ns: u64,
    /// Nanoseconds of a flush after one write.
    pub flush_ns: u64,
    /// Nanoseconds of a lone write that is durable when it ends.
    pub fua_ns: u64,
    /// Durable pages a second in groups of 16, by those one at a time.
    pub group_gain: DecimalRatio,
    /// Commands that reach the disk for one durable write.
    pub durable_write_commands: DecimalRatio,
    /// Distance in bytes that the device reads through in the time of another read.
    pub gap_bytes: u64,
    /// A write survives a power loss without a flush. Only a person says so; nothing measures it.
    pub plp: bool,
    /// Trust in the figures.
    pub confidence: ProbeConfidence,
    /// The backend for this device.
    pub backend: ProfileBackend,
    /// Figures that decide for it, in one line.
    pub reason: String,
}

/// A flush below this time is probably ignored by a layer below.
const HONEST_FLUSH_NS: u64 = 30_000;
const PAGE_SIZES: [u32; 3] = [4096, 8192, 16_384];
const MIB: u64 = 1 << 20;

impl DeviceProfile {
    /// Unit of allocation of a store on the device: its page, as far as a store has it.
    #[must_use]
    pub fn store_page_bytes(&self) -> u32 {
        PAGE_SIZES.into_iter().find(|size| *size >= self.page_bytes).unwrap_or(PAGE_SIZES[2])
    }

    /// Number of commands that a store keeps in flight: twice the larger knee, between 8 and 128.
    #[must_use]
    pub fn depth(&self) -> usize {
        (2 * self.read_knee.max(self.write_knee)).clamp(8, 128) as usize
    }

    /// Bytes of a segment: a power of two that takes at least ten accesses to transfer, between 1 and 64 MiB.
    #[must_use]
    pub fn segment_bytes(&self) -> u32 {
        let bytes = u128::from(self.read_ns) * u128::from(self.write_bytes_per_s) * 10 / 1_000_000_000;
        let bytes = bytes.clamp(u128::from(MIB), u128::from(64 * MIB)) as u32;
        if bytes.is_power_of_two() { bytes } else { 1 << (bytes.ilog2() + 1) }
    }

    /// Whether a flush is so short that a layer below probably ignores it.
    #[must_use]
    pub fn flush_may_be_ignored(&self) -> bool {
        self.flush_ns < HONEST_FLUSH_NS && !self.plp
    }

    /// Whether a write below the page is slower than one of a page.
    #[must_use]
    pub fn has_cliff(&self) -> bool {
        self.rmw_ratio > DecimalRatio(100)
    }
}
