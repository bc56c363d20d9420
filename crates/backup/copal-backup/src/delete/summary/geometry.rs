//! Geometry of a summary vector: number of bits, of blocks, and of bits per id.

/// Most words of a block, which is held in memory while vectors are merged: 8 MiB.
const MAX_BLOCK_WORDS: u64 = 1 << 20;
/// Least words of a block: fewer would make the error rate of tiny VMs random.
const MIN_BLOCK_WORDS: u64 = 16;
/// Most blocks: 2 TiB of vector.
const MAX_BLOCKS: u64 = 1 << 18;
const MAX_HASHES: u8 = 32;
/// Spare capacity, since answers come from the merged vectors of several snapshots: half more.
const ROOM: f64 = 1.5;
/// Share of false answers at the size for which a vector is made.
const ERROR_RATE: f64 = 0.001;

/// Size and number of hashes. Only vectors of one geometry can be merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Geometry {
    /// Blocks of the vector, chosen by the first bits of an id.
    pub(crate) blocks: u32,
    /// Words of 64 bits in each block.
    pub(crate) block_words: u32,
    /// Bits that an id sets.
    pub(crate) hashes: u8,
}

impl Geometry {
    /// For a VM whose snapshot has `references` references, with spare capacity for half more: one false
    /// answer in a thousand.
    pub fn for_references(references: u64) -> Geometry {
        Geometry::with_error_rate((references as f64 * ROOM) as u64, ERROR_RATE)
    }

    /// For this number of references and this share of false answers, without spare capacity.
    pub fn with_error_rate(references: u64, error_rate: f64) -> Geometry {
        let ln2 = std::f64::consts::LN_2;
        let bits_each = -error_rate.clamp(1e-9, 0.5).ln() / (ln2 * ln2);
        let words = ((references.max(1) as f64 * bits_each) / 64.0).ceil() as u64;
        let blocks = words.div_ceil(MAX_BLOCK_WORDS).clamp(1, MAX_BLOCKS);
        let block_words = words.div_ceil(blocks).clamp(MIN_BLOCK_WORDS, MAX_BLOCK_WORDS);
        let hashes = (bits_each * ln2).round().clamp(1.0, f64::from(MAX_HASHES));
        Geometry { blocks: blocks as u32, block_words: block_words as u32, hashes: hashes as u8 }
    }

    /// The geometry with these numbers, if it is valid.
    pub(crate) fn checked(blocks: u32, block_words: u32, hashes: u8) -> Option<Geometry> {
        let fits = (1..=MAX_BLOCKS).contains(&u64::from(blocks))
            && (MIN_BLOCK_WORDS..=MAX_BLOCK_WORDS).contains(&u64::from(block_words))
            && (1..=MAX_HASHES).contains(&hashes);
        fits.then_some(Geometry { blocks, block_words, hashes })
    }

    /// References with which half of the bits are set; beyond, the error rate rises.
    pub fn capacity(self) -> u64 {
        (self.bits() as f64 * std::f64::consts::LN_2 / f64::from(self.hashes)) as u64
    }

    /// Bits of the whole vector.
    pub fn bits(self) -> u64 {
        u64::from(self.blocks) * u64::from(self.block_words) * 64
    }

    /// Blocks of the vector.
    pub fn blocks(self) -> u32 {
        self.blocks
    }

    /// The block of an id.
    pub fn block_of(self, id: &[u8; 16]) -> u32 {
        ((u128::from(first(id)) * u128::from(self.blocks)) >> 64) as u32
    }

    /// Bits of its block that an id sets.
    pub(crate) fn positions(self, id: &[u8; 16]) -> impl Iterator<Item = u64> {
        let bits = u64::from(self.block_words) * 64;
        // The first bits of all ids of a block are equal, so others determine the step.
        let step = first(id).rotate_left(32) | 1;
        let begin = last(id);
        (0..u64::from(self.hashes)).map(move |number| {
            let place = begin.wrapping_add(step.wrapping_mul(number));
            ((u128::from(place) * u128::from(bits)) >> 64) as u64
        })
    }
}

fn first(id: &[u8; 16]) -> u64 {
    u64::from_be_bytes([id[0], id[1], id[2], id[3], id[4], id[5], id[6], id[7]])
}

fn last(id: &[u8; 16]) -> u64 {
    u64::from_be_bytes([id[8], id[9], id[10], id[11], id[12], id[13], id[14], id[15]])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delete::summary::Block;
    use copal_testkit::Random;

    fn ids(seed: u64, count: usize) -> Vec<[u8; 16]> {
        let mut random = Random::new(seed);
        let mut id = || {
            let mut id = [0; 16];
            random.fill(&mut id);
            id
        };
        (0..count).map(|_| id()).collect()
    }

    /// A vector with all its blocks.
    fn vector(geometry: Geometry, ids: &[[u8; 16]]) -> Vec<Block> {
        let mut blocks: Vec<Block> = (0..geometry.blocks).map(|_| Block::new(geometry)).collect();
        ids.iter().for_each(|id| blocks[geometry.block_of(id) as usize].insert(id));
        blocks
    }

    fn wrong(geometry: Geometry, blocks: &[Block], others: &[[u8; 16]]) -> f64 {
        let has = |id: &&[u8; 16]| blocks[geometry.block_of(id) as usize].has(id);
        others.iter().filter(has).count() as f64 / others.len() as f64
    }

    #[test]
    fn added_ids_are_found_and_others_at_the_chosen_error_rate() {
        for (count, rate) in [(2_000, 0.01), (20_000, 0.01), (20_000, 0.001)] {
            let mut geometry = Geometry::with_error_rate(count as u64, rate);
            // The same bits in several blocks.
            geometry.blocks = 3;
            geometry.block_words = geometry.block_words.div_ceil(3);
            let entered = ids(count as u64, count);
            let blocks = vector(geometry, &entered);
            assert!(wrong(geometry, &blocks, &entered) == 1.0, "every added id is found");
            let seen = wrong(geometry, &blocks, &ids(7, 200_000));
            assert!((rate * 0.7..rate * 1.4).contains(&seen), "{count} at {rate}: {seen}");
        }
    }

    #[test]
    fn a_vector_of_a_large_vm_has_blocks_of_bounded_size() {
        let geometry = Geometry::for_references(100_000_000);
        assert!(geometry.blocks > 20 && u64::from(geometry.block_words) <= MAX_BLOCK_WORDS);
        assert!(geometry.capacity() > 145_000_000, "{}", geometry.capacity());
        let per_reference = geometry.bits() as f64 / 100e6;
        assert!((21.0..22.0).contains(&per_reference), "{per_reference}");
        assert_eq!(geometry.hashes, 10);
        let shown = Geometry::checked(geometry.blocks, geometry.block_words, geometry.hashes);
        assert_eq!(shown, Some(geometry));
        assert_eq!(Geometry::checked(0, 16, 1), None);
        assert_eq!(Geometry::checked(1, 1 << 21, 1), None);
        assert_eq!(Geometry::checked(1, 16, 33), None);
    }
}
