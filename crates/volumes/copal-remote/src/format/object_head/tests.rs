//! Heads and tails come back, and damage of any byte is noticed.

use super::*;

const KEY: &str = "f/0000000000000007/61";

fn info(size: u64, metadata: usize) -> FileInfo {
    FileInfo {
        fid: FileId::new(1_700_000_000_000, 3, 0x1234),
        size,
        crc32c: 0xdead_beef,
        created_ms: 1_700_000_000_123,
        metadata: Bytes::from(vec![7; metadata]),
    }
}

#[test]
fn an_object_has_its_parts_at_the_places_of_its_head() {
    for (size, metadata) in [(0, 0), (1, 3), (70_000, 500), (200_000, 1024)] {
        let body: Vec<u8> = (0..size).map(|i| i as u8).collect();
        let info = info(size as u64, metadata);
        let object = file_object(KEY, &info, &body);
        let head = ObjectHead::decode(KEY, &object).unwrap().unwrap();
        assert_eq!(head.info, info);
        let places = head.places();
        assert_eq!(places.total, object.len() as u64);
        assert!(places.total >= FRONT_BYTES);
        assert_eq!(object[places.body as usize..], body);
        let sums = &object[places.sums as usize..places.body as usize];
        assert!(crate::format::block_sums::agree(&body, sums));
    }
}

#[test]
fn a_long_head_needs_more_than_the_front() {
    let object = file_object(KEY, &info(5, 1000), b"12345");
    assert_eq!(ObjectHead::decode(KEY, &object[..512]), Ok(None));
    assert!(ObjectHead::decode(KEY, &object[..1536]).unwrap().is_some());
    assert!(ObjectHead::decode(KEY, &object[..100]).is_err());
}

#[test]
fn a_streamed_object_has_size_and_checksum_in_its_tail() {
    let expected = info(3, 10);
    let mut object = stream_front(KEY, expected.fid, &expected.metadata);
    object.extend_from_slice(b"abc");
    let mut sums = BlockSums::default();
    sums.add(b"abc");
    object.extend_from_slice(&stream_tail(&expected, sums));
    let mut head = ObjectHead::decode(KEY, &object).unwrap().unwrap();
    assert_eq!((head.sums, head.info.size), (SumsPlace::Behind, 0));
    let tail = object.len() - TAIL_BYTES as usize;
    head.add_tail(&object[tail..]).unwrap();
    assert_eq!(head.info, expected);
    assert_eq!(head.places().total, object.len() as u64);
    let other = FileInfo { fid: FileId(1), ..expected };
    let foreign = stream_tail(&other, BlockSums::default());
    assert!(head.add_tail(&foreign[foreign.len() - TAIL_BYTES as usize..]).is_err());
}

#[test]
fn every_flipped_bit_of_a_head_is_noticed() {
    let object = file_object(KEY, &info(5, 9), b"12345");
    for at in 0..FRONT_BYTES as usize {
        for bit in 0..8 {
            let mut other = object.clone();
            other[at] ^= 1 << bit;
            let read = ObjectHead::decode(KEY, &other);
            assert!(!matches!(read, Ok(Some(_))), "byte {at}, bit {bit}: {read:?}");
        }
    }
    assert!(ObjectHead::decode("f/0000000000000007/62", &object).is_err(), "another name");
}

#[test]
fn a_tombstone_object_is_no_file() {
    let object = tombstone_object(KEY, FileId(5), 77);
    let head = ObjectHead::decode(KEY, &object).unwrap().unwrap();
    assert_eq!((head.kind, head.info.fid), (ObjectKind::Tombstone, FileId(5)));
    assert_eq!(head.places().total, object.len() as u64);
}

#[test]
fn a_head_that_claims_more_than_any_file_is_refused() {
    let fat = file_object(KEY, &FileInfo { size: u64::MAX, ..info(0, 0) }, b"");
    assert!(ObjectHead::decode(KEY, &fat[..512]).is_err());
}
