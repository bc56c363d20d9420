//! Frames of the log: a round trip, damage, and groups without an end.

use crate::write::log::*;

fn ops() -> Vec<LogOp> {
    let key = |k: &[u8]| crate::format::entry::KeyspaceId(1).key(k);
    vec![
        LogOp::Put { key: key(b"a"), value: Bytes::from_static(b"one") },
        LogOp::Delete { key: key(b"b") },
        LogOp::DeleteRange { start: key(b"c"), end: key(b"d") },
    ]
}

fn encode(ops: &[LogOp]) -> Vec<u8> {
    let mut out = Vec::new();
    for op in ops {
        op.encode(&mut out);
    }
    out
}

/// The worked example of docs/formats/kv-log.md.
#[test]
fn golden_frame() {
    let frames = frames(3, 7, 42, 3, &encode(&ops()));
    assert_eq!(frames.len(), 1);
    let hex: String = frames[0].iter().map(|byte| format!("{byte:02x}")).collect();
    let head = "4b564c47 01 03 0000 0300000000000000 2a00000000000000 03000000 1f000000 00000000 ad72205f";
    let put = "01 05 0000000161 03 6f6e65";
    let delete = "02 05 0000000162";
    let delete_range = "04 05 0000000163 05 0000000164";
    assert_eq!(hex, [head, put, delete, delete_range].concat().replace(' ', ""));
    let mut assembler = GroupAssembler::new(3);
    let group = assembler.push(7, &frames[0]).unwrap().unwrap();
    assert_eq!(group, LogGroup { first_seq: 42, ops: ops() });
}

#[test]
fn a_long_group_takes_several_frames_and_counts_only_whole() {
    let big = vec![
        LogOp::Put {
            key: crate::format::entry::KeyspaceId(1).key(b"k"),
            value: Bytes::from(vec![5u8; 3 << 20]),
        };
        2
    ];
    let frames = frames(1, 0, 10, 2, &encode(&big));
    assert!(frames.len() > 6);
    let mut assembler = GroupAssembler::new(1);
    let (last, parts) = frames.split_last().unwrap();
    for (position, frame) in parts.iter().enumerate() {
        assert_eq!(assembler.push(position as u64, frame).unwrap(), None);
    }
    assert_eq!(assembler.push(parts.len() as u64, last).unwrap().unwrap().ops, big);
}

/// Where a store has no long run of pages, frames become shorter, also in the middle of a group.
#[test]
fn a_group_may_be_cut_into_shorter_frames_anywhere() {
    let big = vec![LogOp::Put {
        key: crate::format::entry::KeyspaceId(1).key(b"k"),
        value: Bytes::from(vec![5u8; 3 << 20]),
    }];
    let ops = encode(&big);
    let mut cut = GroupFrames::new(1, 10, 1, &ops);
    let (mut assembler, mut lengths, mut whole) = (GroupAssembler::new(1), Vec::new(), None);
    while whole.is_none() {
        let position = lengths.len() as u64;
        if position == 1 || position == 4 {
            assert!(cut.shorten());
        }
        let (payload, is_last) = cut.next_frame(position);
        lengths.push(payload.len());
        cut.advance();
        whole = assembler.push(position, &payload).unwrap();
        assert_eq!(whole.is_some(), is_last);
    }
    assert_eq!(whole.unwrap().ops, big);
    let (first, shorter, shortest) = ((1 << 20) - 4096, (512 << 10) - 4096, (256 << 10) - 4096);
    assert_eq!(lengths[..6], [first, shorter, shorter, shorter, shortest, shortest]);
    let mut cut = GroupFrames::new(1, 10, 1, &ops);
    let times = std::iter::repeat_with(|| cut.shorten()).take_while(|can_be| *can_be).count();
    assert_eq!((times, cut.next_frame(0).0.len()), (6, LEAST_FRAME));
    // A short group is one frame.
    let short = encode(&self::ops());
    assert!(!GroupFrames::new(1, 10, 3, &short).shorten());
}

#[test]
fn an_unfinished_group_is_dropped_by_the_next_one() {
    let long = vec![0u8; 2 << 20];
    let torn = frames(1, 0, 10, 1, &long);
    let next = frames(1, 1, 10, 3, &encode(&ops()));
    let mut assembler = GroupAssembler::new(1);
    assert_eq!(assembler.push(0, &torn[0]).unwrap(), None);
    assert_eq!(assembler.push(1, &next[0]).unwrap().unwrap().ops, ops());
}

#[test]
fn every_flipped_bit_and_every_cut_is_noticed() {
    let frame = &frames(3, 7, 42, 3, &encode(&ops()))[0];
    for bit in 0..frame.len() * 8 {
        let mut bytes = frame.to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(
            GroupAssembler::new(3).push(7, &Bytes::from(bytes)).unwrap_err().is_corruption(),
            "bit {bit}"
        );
    }
    for cut in 0..frame.len() {
        assert!(
            GroupAssembler::new(3).push(7, &frame.slice(..cut)).unwrap_err().is_corruption(),
            "cut {cut}"
        );
    }
}

#[test]
fn a_frame_out_of_its_place_does_not_verify() {
    let frame = &frames(3, 7, 42, 3, &encode(&ops()))[0];
    assert!(GroupAssembler::new(3).push(8, frame).is_err());
    assert!(GroupAssembler::new(4).push(7, frame).is_err());
}
