use super::*;
use crate::profile::ChunkProfile;
use crate::segment::split;
use proptest::prelude::*;
use std::convert::Infallible;

/// A change of some blocks of a segment.
#[derive(Clone, Debug)]
enum Change {
    Noise {
        block: usize,
        blocks: usize,
        seed: u8,
    },
    Zero {
        block: usize,
        blocks: usize,
        told: bool,
    },
    /// A few bytes, so that most of the block is unchanged.
    Poke {
        block: usize,
        at: usize,
        value: u8,
    },
    /// Reported as written although nothing changed.
    Rewrite {
        block: usize,
        blocks: usize,
    },
}

fn change(blocks: usize) -> impl Strategy<Value = Change> {
    prop_oneof![
        (0..blocks, 1..40usize, any::<u8>()).prop_map(|(block, blocks, seed)| Change::Noise {
            block,
            blocks,
            seed
        }),
        (0..blocks, 1..40usize, any::<bool>()).prop_map(|(block, blocks, told)| Change::Zero {
            block,
            blocks,
            told
        }),
        (0..blocks, 0..BLOCK_BYTES, any::<u8>()).prop_map(|(block, at, value)| Change::Poke {
            block,
            at,
            value
        }),
        (0..blocks, 1..20usize).prop_map(|(block, blocks)| Change::Rewrite { block, blocks }),
    ]
}

fn apply(data: &mut [u8], dirty: &mut [BlockChange], change: &Change) {
    let total = dirty.len();
    let clip = |block: usize, blocks: usize| block.min(total)..(block + blocks).min(total);
    let length = data.len();
    let bytes = |range: &std::ops::Range<usize>| {
        (range.start * BLOCK_BYTES).min(length)..(range.end * BLOCK_BYTES).min(length)
    };
    match *change {
        Change::Noise { block, blocks, seed } => {
            let range = clip(block, blocks);
            copal_testkit::Random::new(u64::from(seed)).fill(&mut data[bytes(&range)]);
            dirty[range].fill(BlockChange::Written);
        }
        Change::Zero { block, blocks, told } => {
            let range = clip(block, blocks);
            data[bytes(&range)].fill(0);
            dirty[range].fill(if told { BlockChange::Zeroed } else { BlockChange::Written });
        }
        Change::Poke { block, at, value } => {
            let range = clip(block, 1);
            if let Some(byte) = data[bytes(&range)].get_mut(at) {
                *byte = value;
            }
            dirty[range].fill(BlockChange::Written);
        }
        Change::Rewrite { block, blocks } => {
            for entry in &mut dirty[clip(block, blocks)] {
                if *entry == BlockChange::Clean {
                    *entry = BlockChange::Written;
                }
            }
        }
    }
}

fn check(profile: ChunkProfile, before: &[u8], after: &[u8], dirty: &[BlockChange]) -> usize {
    let chunker = Chunker::new(profile, &[3; 32]);
    let old = split(&chunker, before);
    let mut buffer = vec![0xEE; after.len()];
    let mut read_bytes = 0;
    let fresh = rechunk(&chunker, &old, dirty, &mut buffer, |at, bytes| {
        bytes.copy_from_slice(&after[at..at + bytes.len()]);
        read_bytes += bytes.len();
        Ok::<(), Infallible>(())
    })
    .unwrap();
    let pieces: Vec<SegmentPiece> = fresh
        .iter()
        .map(|fresh| match *fresh {
            NewPiece::Kept(index) => {
                let piece = old[index];
                assert_eq!(before[piece.range()], after[piece.range()], "a kept chunk is unchanged");
                piece
            }
            NewPiece::New(piece) => {
                if !piece.hole {
                    assert_eq!(buffer[piece.range()], after[piece.range()], "a fresh chunk was read");
                }
                piece
            }
        })
        .collect();
    assert_eq!(pieces, split(&chunker, after));
    read_bytes
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]
    #[test]
    fn rechunking_equals_chunking_from_scratch(
        seed: u8,
        length in 1usize..600_000,
        first in prop::collection::vec(change(150), 0..12),
        then in prop::collection::vec(change(150), 1..8),
        profile in 0usize..6,
    ) {
        let mut before = vec![0; length];
        copal_testkit::Random::new(u64::from(seed)).fill(&mut before);
        let mut dirty = vec![BlockChange::Clean; length.div_ceil(BLOCK_BYTES)];
        first.iter().for_each(|change| apply(&mut before, &mut dirty, change));
        dirty.fill(BlockChange::Clean);
        let mut after = before.clone();
        then.iter().for_each(|change| apply(&mut after, &mut dirty, change));
        check(ChunkProfile::ALL[profile], &before, &after, &dirty);
    }

    #[test]
    fn a_segment_that_grew_or_shrank_is_rechunked_at_its_end(seed: u8, old in 1usize..300_000, new in 1usize..300_000) {
        let mut before = vec![0; old.max(new)];
        copal_testkit::Random::new(u64::from(seed)).fill(&mut before);
        let after = before[..new].to_vec();
        before.truncate(old);
        let mut dirty = vec![BlockChange::Clean; new.div_ceil(BLOCK_BYTES)];
        let from = (old.min(new) / BLOCK_BYTES).min(dirty.len());
        dirty[from..].fill(BlockChange::Written);
        check(ChunkProfile::Default, &before, &after, &dirty);
    }
}

#[test]
fn one_dirty_run_reads_little_around_it() {
    let mut before = vec![0; SEGMENT_BYTES];
    copal_testkit::Random::new(77).fill(&mut before);
    let mut after = before.clone();
    let mut dirty = vec![BlockChange::Clean; SEGMENT_BYTES / BLOCK_BYTES];
    apply(&mut after, &mut dirty, &Change::Noise { block: 200, blocks: 64, seed: 5 });
    let read = check(ChunkProfile::Default, &before, &after, &dirty);
    let dirty_bytes = 64 * BLOCK_BYTES;
    assert!(read >= dirty_bytes && read < dirty_bytes + 3 * (64 << 10), "{read}");
}
