use super::*;
use crate::profile::ChunkProfile;

fn chunker() -> Chunker {
    Chunker::new(ChunkProfile::Default, &[1; 32])
}

#[test]
fn an_empty_segment_has_no_pieces() {
    assert_eq!(split(&chunker(), &[]), vec![]);
}

#[test]
fn zero_blocks_are_one_hole_even_when_the_last_is_short() {
    let segment = vec![0; 3 * BLOCK_BYTES + 100];
    assert_eq!(split(&chunker(), &segment), vec![piece(0, segment.len(), true)]);
}

#[test]
fn an_unaligned_run_of_zeros_is_data() {
    let mut segment = vec![0; 2 * BLOCK_BYTES];
    segment[0] = 1;
    segment[2 * BLOCK_BYTES - 1] = 1;
    assert_eq!(split(&chunker(), &segment), vec![piece(0, segment.len(), false)]);
}

#[test]
fn data_between_holes_is_chunked_on_its_own() {
    let mut segment = vec![0; 16 * BLOCK_BYTES];
    segment[5 * BLOCK_BYTES + 17] = 9;
    let pieces = split(&chunker(), &segment);
    let expected = vec![
        piece(0, 5 * BLOCK_BYTES, true),
        piece(5 * BLOCK_BYTES, 6 * BLOCK_BYTES, false),
        piece(6 * BLOCK_BYTES, 16 * BLOCK_BYTES, true),
    ];
    assert_eq!(pieces, expected);
    assert_eq!(chunks_of(&pieces).count(), 1);
}
