//! Enumeration of subsets of the open changes, in a fixed order.
//!
//! - At most `limits.exhaustive` open blocks: every subset of blocks, so every tear too.
//! - Otherwise, at most that many open changes: every subset of whole changes.
//! - Otherwise: none, all, each alone, each missing, each prefix.
//!
//! The second and third case add tears of each change (with and without the others) and seeded random
//! subsets. Of 26 known crash bugs of file systems 24 needed at most three operations, so small cuts matter
//! most.
//!
//! Invariants
//! - State `n` of a cut is the same in every run, so a failure is identified by step and number.

use super::cut::HistoryCut;
use crate::fault::FaultDevice;
use crate::random::DeviceRandom;
use crate::{Device, Image, MemoryDevice};
use std::sync::Arc;

/// Number of states tried per cut.
#[derive(Clone, Copy, Debug)]
pub struct StateLimits {
    /// Up to this many open blocks (or changes) all subsets are tried. At most 20.
    pub exhaustive: u32,
    /// Number of random subsets beyond that.
    pub samples: u32,
    /// Seed of the random subsets.
    pub seed: u64,
}

impl Default for StateLimits {
    fn default() -> StateLimits {
        StateLimits { exhaustive: 12, samples: 256, seed: 0 }
    }
}

/// A family of subsets; its members are numbered from 0.
#[derive(Clone, Copy, Debug)]
enum SubsetFamily {
    AllBlocks,
    AllChanges,
    NoneOrAll,
    Only,
    Missing,
    Prefix,
    /// Change `c` torn in one of [`TEARS`] ways, with all other changes lost or all kept.
    Torn,
    Sampled,
}

/// Ways to tear a change of several blocks: only first, only last, first lost, last lost, first half, every
/// other.
const TEARS: u64 = 6;

/// The states of one cut, in a fixed order.
#[derive(Clone, Debug)]
pub struct CrashStates {
    cut: HistoryCut,
    families: Vec<(SubsetFamily, u64)>,
    /// Index of each change's first block, and the total at the end.
    first_block: Vec<usize>,
    seed: u64,
    next: u64,
}

impl CrashStates {
    pub(super) fn new(cut: HistoryCut, limits: &StateLimits) -> CrashStates {
        let exhaustive = limits.exhaustive.min(20) as usize;
        let mut first_block = vec![0];
        for open in cut.open.iter() {
            first_block.push(first_block[first_block.len() - 1] + open.units.len());
        }
        let changes = cut.open.len();
        let blocks = first_block[changes];
        let mut families = Vec::new();
        if blocks <= exhaustive {
            families.push((SubsetFamily::AllBlocks, 1 << blocks));
        } else {
            if changes <= exhaustive {
                families.push((SubsetFamily::AllChanges, 1 << changes));
            } else {
                let n = changes as u64;
                let fixed = [SubsetFamily::Only, SubsetFamily::Missing, SubsetFamily::Prefix]
                    .map(|family| (family, n));
                families.push((SubsetFamily::NoneOrAll, 2));
                families.extend(fixed);
            }
            families.push((SubsetFamily::Torn, changes as u64 * TEARS * 2));
            families.push((SubsetFamily::Sampled, u64::from(limits.samples)));
        }
        CrashStates { cut, families, first_block, seed: limits.seed, next: 0 }
    }

    /// Number of states. Some may be equal.
    #[must_use]
    pub fn count_all(&self) -> u64 {
        self.families.iter().map(|(_, members)| members).sum()
    }

    /// State number `index`, or `None` beyond the last.
    #[must_use]
    pub fn get(&self, index: u64) -> Option<CrashState> {
        let mut member = index;
        for (family, members) in &self.families {
            if member < *members {
                let kept = self.choose(*family, member, index);
                return Some(self.build(index, kept));
            }
            member -= members;
        }
        None
    }

    fn choose(&self, family: SubsetFamily, member: u64, index: u64) -> Vec<bool> {
        let changes = self.cut.open.len();
        let blocks = self.first_block[changes];
        let by_change = |keep: &dyn Fn(usize) -> bool| -> Vec<bool> {
            (0..changes)
                .flat_map(|change| {
                    let width = self.first_block[change + 1] - self.first_block[change];
                    std::iter::repeat_n(keep(change), width)
                })
                .collect()
        };
        match family {
            SubsetFamily::AllBlocks => (0..blocks).map(|block| member >> block & 1 == 1).collect(),
            SubsetFamily::AllChanges => by_change(&|change| member >> change & 1 == 1),
            SubsetFamily::NoneOrAll => by_change(&|_| member == 1),
            SubsetFamily::Only => by_change(&|change| change as u64 == member),
            SubsetFamily::Missing => by_change(&|change| change as u64 != member),
            SubsetFamily::Prefix => by_change(&|change| change as u64 <= member),
            SubsetFamily::Torn => self.torn(member),
            SubsetFamily::Sampled => {
                let mut random = DeviceRandom::new(
                    self.seed ^ index.wrapping_mul(0x9e37_79b9) ^ (self.cut.step as u64) << 32,
                );
                // Density from nearly none to nearly all; whole changes as often as single blocks.
                let density = random.below(17);
                let whole = random.one_in(2);
                let mut keep = || random.below(16) < density;
                if whole {
                    let kept: Vec<bool> = (0..changes).map(|_| keep()).collect();
                    by_change(&|change| kept[change])
                } else {
                    (0..blocks).map(|_| keep()).collect()
                }
            }
        }
    }

    fn torn(&self, member: u64) -> Vec<bool> {
        let changes = self.cut.open.len();
        let (change, way) = ((member / (TEARS * 2)) as usize, member % (TEARS * 2));
        let (others, tear) = (way >= TEARS, way % TEARS);
        let mut kept = vec![others; self.first_block[changes]];
        let range = self.first_block[change]..self.first_block[change + 1];
        let width = range.len();
        for (place, slot) in kept[range].iter_mut().enumerate() {
            *slot = match tear {
                0 => place == 0,
                1 => place + 1 == width,
                2 => place != 0,
                3 => place + 1 != width,
                4 => place < width / 2,
                _ => place % 2 == 0,
            };
        }
        kept
    }

    fn build(&self, index: u64, kept: Vec<bool>) -> CrashState {
        let mut image = self.cut.durable.clone();
        let units = self.cut.open.iter().flat_map(|open| &open.units);
        units.zip(&kept).filter(|(_, kept)| **kept).for_each(|(unit, _)| unit.apply(&mut image));
        CrashState { cut: self.cut.clone(), index, image, kept }
    }
}

impl Iterator for CrashStates {
    type Item = CrashState;

    fn next(&mut self) -> Option<CrashState> {
        let state = self.get(self.next)?;
        self.next += 1;
        Some(state)
    }
}

/// Device content that a crash may leave.
#[derive(Clone, Debug)]
pub struct CrashState {
    cut: HistoryCut,
    index: u64,
    image: Image,
    kept: Vec<bool>,
}

impl CrashState {
    /// Number of events before the crash.
    #[must_use]
    pub fn step(&self) -> usize {
        self.cut.step
    }

    /// Number of this state among those of its cut, for [`CrashStates::get`].
    #[must_use]
    pub fn index(&self) -> u64 {
        self.index
    }

    /// Content of the device.
    #[must_use]
    pub fn image(&self) -> &Image {
        &self.image
    }

    /// A memory device with this content.
    #[must_use]
    pub fn device(&self) -> Arc<dyn Device> {
        MemoryDevice::from_image(self.image.clone(), u64::MAX)
    }

    /// A fault device that holds this content durably and records from here on: for crashes during recovery.
    #[must_use]
    pub fn fault_device(&self, seed: u64) -> Arc<FaultDevice> {
        FaultDevice::from_image(self.image.clone(), seed)
    }

    /// Surviving and lost changes, for the report of a failed test.
    #[must_use]
    pub fn describe(&self) -> String {
        use std::fmt::Write;
        let mut out = format!("crash after {} events, state {}:", self.cut.step, self.index);
        let mut kept = self.kept.iter();
        for open in self.cut.open.iter() {
            let marks: String =
                open.units.iter().zip(&mut kept).map(|(_, kept)| if *kept { '+' } else { '-' }).collect();
            let at = open.units.first().map_or(0, |unit| unit.at);
            // Writing to a String cannot fail.
            let _ = write!(out, " {}@{at}[{marks}]", open.id);
        }
        out
    }
}
