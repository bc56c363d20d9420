use super::*;
use crate::format::entry::KeyspaceId;

fn put(key: &[u8], value: &'static [u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let key = KeyspaceId(1).key(key);
    let value = Bytes::from_static(value);
    LogOp::Put { key, value }.encode(&mut out);
    out
}

/// Writes records one after another into halves.
struct Writer {
    header: CacheLogHeader,
    copy: Vec<u8>,
    ends: [u64; HALVES],
}

impl Writer {
    fn new(session: u64) -> Writer {
        let header = CacheLogHeader::new(session, FRONT_BYTES + 2 * 8192);
        let mut copy = vec![0; (FRONT_BYTES + 2 * 8192) as usize];
        copy[..HEADER_LEN].copy_from_slice(&header.encode());
        Writer { header, copy, ends: [header.half(0), header.half(1)] }
    }

    fn write(&mut self, half: usize, first_seq: u64, count: u32, ops: &[u8]) {
        let at = self.ends[half];
        let record = [&head(self.header.session, at, first_seq, count, ops), ops].concat();
        self.copy[at as usize..][..record.len()].copy_from_slice(&record);
        self.ends[half] += record.len() as u64;
    }

    fn found(&self, last_seq: u64) -> Vec<u64> {
        let found = read_all(&self.copy, last_seq);
        found.iter().map(|found| found.first_seq).collect()
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The worked example of docs/formats/kv-page-cache-log.md.
#[test]
fn golden_room() {
    let mut writer = Writer::new(7);
    writer.write(0, 42, 1, &put(b"a", b"one"));
    let header = "4b565752 01 000000 0700000000000000 00200000 4dca603b";
    assert_eq!(hex(&writer.copy[..HEADER_LEN]), header.replace(' ', ""));
    let record =
        "4b565749 01000000 0700000000000000 2a00000000000000 0b000000 3d0a26d0 01 05 0000000161 03 6f6e65";
    assert_eq!(hex(&writer.copy[4096..4096 + 43]), record.replace(' ', ""));
    let found = read_all(&writer.copy, 41);
    assert_eq!(found[0].ops.len(), 1);
    assert_eq!((found[0].first_seq, &found[0].encoded[..]), (42, &put(b"a", b"one")[..]));
}

#[test]
fn records_of_both_bays_come_in_the_order_of_their_sequences() {
    let mut writer = Writer::new(7);
    let two = [put(b"a", b"1"), put(b"b", b"2")].concat();
    writer.write(0, 10, 2, &two);
    writer.write(0, 12, 1, &put(b"c", b"3"));
    writer.write(1, 13, 1, &put(b"d", b"4"));
    writer.write(0, 14, 1, &put(b"e", b"5"));
    assert_eq!(writer.found(9), [10, 12, 13, 14]);
    assert_eq!(writer.found(11), [12, 13, 14], "what the log holds is passed over");
    assert_eq!(writer.found(14), [0; 0]);
    assert_eq!(writer.found(8), [0; 0], "nothing is taken over a gap");
    assert_eq!(writer.found(10), [0; 0], "nor a part of a record");
}

#[test]
fn stale_frames_of_a_reused_bay_are_ignored() {
    let mut writer = Writer::new(7);
    for seq in 10..14 {
        writer.write(0, seq, 1, &put(b"a", b"1"));
    }
    writer.ends[0] = writer.header.half(0);
    writer.write(0, 20, 1, &put(b"a", b"1"));
    assert_eq!(writer.found(19), [20]);
    // Only a power loss that lost the log leads here, and then these records are the state of the store.
    assert_eq!(writer.found(9), [0; 0]);
}

#[test]
fn records_of_another_session_or_place_do_not_count() {
    let mut writer = Writer::new(7);
    writer.write(0, 10, 1, &put(b"a", b"1"));
    let other = CacheLogHeader::new(8, writer.copy.len() as u64);
    let mut copy = writer.copy.clone();
    copy[..HEADER_LEN].copy_from_slice(&other.encode());
    assert!(read_all(&copy, 9).is_empty());
    let mut copy = writer.copy.clone();
    let record = copy[4096..8192].to_vec();
    copy[4096 + 8192..][..4096].copy_from_slice(&record);
    copy[4096..8192].fill(0);
    assert!(read_all(&copy, 9).is_empty());
}

#[test]
fn every_flipped_bit_ends_the_room_before_it() {
    let mut writer = Writer::new(7);
    writer.write(0, 10, 1, &put(b"a", b"1"));
    writer.write(0, 11, 1, &put(b"b", b"2"));
    let end = (writer.ends[0] - 4096) as usize;
    let second = 4096 + end / 2;
    for bit in second * 8..(4096 + end) * 8 {
        writer.copy[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(writer.found(9), [10], "bit {bit}");
        writer.copy[bit / 8] ^= 1 << (bit % 8);
    }
    for bit in 0..HEADER_LEN * 8 {
        writer.copy[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(writer.found(9), [0; 0], "bit {bit} of the header");
        writer.copy[bit / 8] ^= 1 << (bit % 8);
    }
}

#[test]
fn a_room_of_a_later_version_is_refused_and_not_ignored() {
    let mut bytes = CacheLogHeader::new(7, 1 << 20).encode();
    bytes[4] = 2;
    let sum = crc32c(0, &bytes[..HEADER_LEN - 4]);
    bytes[HEADER_LEN - 4..].copy_from_slice(&sum.to_le_bytes());
    assert!(CacheLogHeader::decode(&bytes, 1 << 20).unwrap_err().is_corruption());
    // The same for halves that reach beyond the page-cache log.
    let bytes = CacheLogHeader::new(7, 1 << 20).encode();
    assert!(CacheLogHeader::decode(&bytes, 1 << 19).is_err());
}

#[test]
fn pointers_do_not_count() {
    let mut ops = Vec::new();
    let pointer = Bytes::from_static(b"any");
    let key = KeyspaceId(1).key(b"a");
    LogOp::Pointer { key, pointer }.encode(&mut ops);
    let mut writer = Writer::new(7);
    writer.write(0, 10, 1, &ops);
    assert_eq!(writer.found(9), [0; 0]);
}
