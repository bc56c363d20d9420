//! The writer produces the example of docs/formats/kv-filter-page.md, and the reader accepts it.

use crate::{FilterPage, KeyHash, Kind, PartitionFilterBuilder};
use copal_codec::crc32c;

const DOCUMENT: &str = include_str!("../../../../../docs/formats/kv-filter-page.md");
const EXAMPLE_SEED: u64 = 1;
const EXAMPLE_UID: u64 = 0x1122_3344_5566_7788;

fn keys() -> [KeyHash; 3] {
    [b"apple".as_slice(), b"banana", b"cherry"].map(|key| KeyHash::new(key, EXAMPLE_SEED))
}

fn example() -> Vec<u8> {
    let mut builder = PartitionFilterBuilder::new(Kind::Ribbon, EXAMPLE_SEED);
    for key in keys() {
        builder.add(key);
    }
    builder.finish(EXAMPLE_UID).unwrap().as_bytes().to_vec()
}

/// The lines `offset byte byte ...` of the document's hex blocks.
fn documented() -> Vec<(usize, Vec<u8>)> {
    let blocks = DOCUMENT.split("```hex\n").skip(1).filter_map(|rest| rest.split("```").next());
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        let offset = usize::from_str_radix(words.next().unwrap(), 16).unwrap();
        (offset, words.map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect())
    };
    blocks.flat_map(|block| block.lines().map(line).collect::<Vec<_>>()).collect()
}

#[test]
fn the_example_of_the_document_equals_our_bytes() {
    let bytes = example();
    let lines = documented();
    assert!(lines.len() >= 6);
    for (offset, expected) in lines {
        assert_eq!(bytes[offset..offset + expected.len()], expected, "at {offset:04x}");
    }
    let whole = format!("{} bytes, CRC32C {:08x}", bytes.len(), crc32c(0, &bytes));
    assert!(DOCUMENT.contains(&whole), "the example is {whole}");
}

#[test]
fn the_example_of_the_document_can_be_queried() {
    let units = FilterPage::load(&example(), 15, EXAMPLE_UID, EXAMPLE_SEED).unwrap();
    assert!(keys().iter().all(|&key| units.may_contain(key)));
    let absent = (0..100u32).filter(|i| units.may_contain(KeyHash::new(&i.to_le_bytes(), EXAMPLE_SEED)));
    assert_eq!(absent.count(), 0, "15 columns pass one absent key in 32768");
}

#[test]
fn the_example_hash_of_the_document_is_ours() {
    let hash = format!("{:032x}", keys()[0].0);
    assert!(DOCUMENT.contains(&hash), "XXH3-128 of `apple` under seed 1 is {hash}");
}
