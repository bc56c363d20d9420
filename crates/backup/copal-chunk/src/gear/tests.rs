use super::*;
use proptest::prelude::*;

fn noise(seed: u64, length: usize) -> Vec<u8> {
    copal_testkit::Random::new(seed).bytes(length)
}

#[test]
fn average_of_the_default_profile_is_near_its_name() {
    let chunker = Chunker::new(ChunkProfile::Default, &[7; 32]);
    let data = noise(3, 8 << 20);
    let mut at = 0;
    let mut chunks = 0;
    while at < data.len() {
        let cut = chunker.cut(at, &data[at..], true).unwrap();
        assert!((1..=64 << 10).contains(&cut));
        assert!(cut > 4 << 10 || at + cut == data.len());
        at += cut;
        chunks += 1;
    }
    let average = data.len() / chunks;
    assert!((14 << 10..22 << 10).contains(&average), "{average}");
}

#[test]
fn another_key_cuts_elsewhere() {
    let data = noise(9, 1 << 20);
    let cuts = |key: u8| Chunker::new(ChunkProfile::Default, &[key; 32]).cut(0, &data, true);
    assert_ne!(cuts(1), cuts(2));
}

#[test]
fn fixed_profiles_keep_to_the_grid_of_the_segment() {
    let chunker = Chunker::new(ChunkProfile::Clone, &[0; 32]);
    let data = noise(1, 200_000);
    assert_eq!(chunker.cut(0, &data, true), Some(65_536));
    assert_eq!(chunker.cut(4096, &data, true), Some(61_440));
    assert_eq!(chunker.cut(0, &data[..10], true), Some(10));
    assert_eq!(chunker.cut(0, &data[..10], false), None);
}

proptest! {
    #[test]
    fn fast_and_plain_cut_agree(seed: u64, length in 0usize..150_000, sparse: bool, profile in 0usize..6) {
        let mut data = noise(seed, length);
        if sparse {
            // Long stretches of equal bytes reach the maximum.
            for byte in data.iter_mut() { if *byte < 250 { *byte = 1 } }
        }
        let chunker = Chunker::new(ChunkProfile::ALL[profile], &[5; 32]);
        prop_assert_eq!(chunker.cut(0, &data, true), Some(chunker.cut_plainly(0, &data)));
    }

    #[test]
    fn a_cut_found_early_is_the_final_one(seed: u64, length in 0usize..80_000, given in 0usize..80_000) {
        let data = noise(seed, length);
        let chunker = Chunker::new(ChunkProfile::Default, &[5; 32]);
        if let Some(cut) = chunker.cut(0, &data[..given.min(length)], false) {
            prop_assert_eq!(Some(cut), chunker.cut(0, &data, true));
        }
    }
}
