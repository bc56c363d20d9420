//! Conversations with correct and faulty servers, one rule each.

use crate::script::{Script, against, greeting, handshake, handshake_in_blocks, plain_handshake};
use copal_nbd::{BASE_ALLOCATION, MapExtent, NbdError};

fn data(offset: u64, bytes: &[u8]) -> Vec<u8> {
    Script::default().u64(offset).raw(bytes).bytes
}

fn hole(offset: u64, len: u32) -> Vec<u8> {
    Script::default().u64(offset).u32(len).bytes
}

fn status(context: u32, extents: &[(u32, u32)]) -> Vec<u8> {
    extents.iter().fold(Script::default().u32(context), |s, (len, flags)| s.u32(*len).u32(*flags)).bytes
}

fn error(errno: u32, words: &str) -> Vec<u8> {
    Script::default().u32(errno).u16(words.len() as u16).raw(words.as_bytes()).bytes
}

#[test]
fn data_and_holes_may_arrive_in_any_order() {
    let script = handshake(8192)
        .chunk(false, 2, 1, &hole(2048, 2048))
        .chunk(false, 1, 1, &data(1024, &[2; 1024]))
        .chunk(false, 1, 1, &data(0, &[1; 1024]))
        .chunk(true, 0, 1, &[]);
    against(&script, |client| {
        let read = client.unwrap().start_read(0, 4096).unwrap().wait().unwrap();
        assert_eq!(read.holes, vec![2048..4096]);
        assert!(read.data[..1024].iter().all(|b| *b == 1) && read.data[1024..2048].iter().all(|b| *b == 2));
        assert!(read.data[2048..].iter().all(|b| *b == 0));
    });
}

#[test]
fn replies_out_of_order_reach_their_requests() {
    let script = handshake(8192)
        .wait()
        .chunk(false, 1, 1, &data(0, &[1; 2048]))
        .chunk(true, 1, 2, &data(4096, &[2; 4096]))
        .chunk(true, 1, 1, &data(2048, &[3; 2048]));
    against(&script, |client| {
        let client = client.unwrap();
        let first = client.start_read(0, 4096).unwrap();
        let second = client.start_read(4096, 4096).unwrap();
        assert_eq!(second.wait().unwrap().data, [2; 4096]);
        let first = first.wait().unwrap().data;
        assert_eq!((first[0], first[2047], first[2048]), (1, 1, 3));
    });
}

#[test]
fn a_block_status_may_be_shorter_or_longer_than_requested() {
    let short = handshake(1 << 20).chunk(true, 5, 1, &status(7, &[(4096, 3)]));
    let extents = against(&short, |client| client.unwrap().block_status(0, 1 << 20).unwrap());
    assert_eq!(extents, vec![(7, vec![(4096, 3)])]);

    let long = handshake(1 << 20).chunk(true, 5, 1, &status(7, &[(4096, 3), (4096, 3), (u32::MAX, 0)]));
    let map = against(&long, |client| {
        let client = client.unwrap();
        client.map(BASE_ALLOCATION, 0..1 << 20).unwrap().collect::<Result<Vec<_>, _>>().unwrap()
    });
    let rest = MapExtent { offset: 8192, len: (1 << 20) - 8192, flags: 0 };
    assert_eq!(map, vec![MapExtent { offset: 0, len: 8192, flags: 3 }, rest]);
}

#[test]
fn an_error_of_one_request_leaves_the_connection_alive() {
    let script = handshake(8192).chunk(false, 1, 1, &data(0, &[1; 512])).chunk(
        true,
        0x8001,
        1,
        &error(5, "bad sector"),
    );
    against(&script, |client| {
        let failed = client.unwrap().start_read(0, 4096).unwrap().wait().unwrap_err();
        assert_eq!(failed.to_string(), "the NBD server failed read of 4096 bytes at 0: error 5: bad sector");
        assert!(!failed.is_connection_lost());
    });
}

#[test]
fn a_server_without_structured_replies_still_serves_reads() {
    against(&plain_handshake(4096).simple(0, 1, &[9; 4096]).wait().simple(5, 2, &[]), |client| {
        let client = client.unwrap();
        assert!(client.contexts().is_empty());
        assert_eq!(client.start_read(0, 4096).unwrap().wait().unwrap().data, [9; 4096]);
        let failed = client.start_read(0, 512).unwrap().wait().unwrap_err();
        assert!(matches!(failed, NbdError::Request { errno: 5, .. }), "{failed}");
    });
}

#[test]
fn broken_rules_end_the_connection() {
    let cases: Vec<(&str, Script)> = vec![
        ("gap", handshake(8192).chunk(true, 1, 1, &data(0, &[1; 100]))),
        (
            "overlap",
            handshake(8192).chunk(false, 1, 1, &data(0, &[1; 4000])).chunk(true, 2, 1, &hole(0, 4096)),
        ),
        ("before the request", handshake(8192).chunk(true, 1, 1, &data(u64::MAX - 7, &[1; 4096]))),
        ("after the request", handshake(8192).chunk(true, 2, 1, &hole(4096, 4096))),
        ("too long", handshake(8192).chunk(true, 1, 1, &data(0, &[1; 4097]))),
        ("length of 4 GiB", handshake(8192).u32(0x668e_33ef).u16(1).u16(1).u64(1).u32(u32::MAX)),
        ("hole of 4 GiB", handshake(8192).chunk(true, 2, 1, &hole(0, u32::MAX))),
        ("empty hole", handshake(8192).chunk(true, 2, 1, &hole(0, 0))),
        ("shorter than its offset", handshake(8192).chunk(true, 1, 1, &[0; 3])),
        ("unknown cookie", handshake(8192).chunk(true, 0, 99, &[])),
        ("unknown flags", handshake(8192).u32(0x668e_33ef).u16(2).u16(0).u64(1).u32(0)),
        ("unknown kind", handshake(8192).chunk(true, 77, 1, &[])),
        ("bad magic", handshake(8192).u32(1).raw(&[0; 64])),
        ("simple reply to a read", handshake(8192).simple(0, 1, &[0; 4096])),
        ("status to a read", handshake(8192).chunk(true, 5, 1, &status(7, &[(4096, 0)]))),
        ("error without number", handshake(8192).chunk(true, 0x8001, 1, &error(0, ""))),
        ("error longer than its chunk", handshake(8192).chunk(true, 0x8001, 1, &[0, 0, 0, 5, 0, 200])),
        ("huge error", handshake(8192).u32(0x668e_33ef).u16(1).u16(0x8001).u64(1).u32(1 << 20)),
        ("hang-up", handshake(8192).u32(0x668e_33ef)),
    ];
    for (name, script) in cases {
        against(&script, |client| {
            let client = client.unwrap();
            let error = client.start_read(0, 4096).unwrap().wait().unwrap_err();
            assert!(error.is_connection_lost() || name == "gap", "{name}: {error}");
        });
    }
    let cases = vec![
        ("empty", status(7, &[])),
        ("empty extent", status(7, &[(0, 0)])),
        ("half an extent", vec![0, 0, 0, 7, 0, 0, 0, 1, 0]),
        ("other context", status(8, &[(4096, 0)])),
    ];
    for (name, payload) in cases {
        against(&handshake(8192).chunk(true, 5, 1, &payload), |client| {
            let client = client.unwrap();
            let map: Result<Vec<_>, _> = client.map(BASE_ALLOCATION, 0..8192).unwrap().collect();
            assert!(matches!(map, Err(NbdError::Protocol { .. })), "{name}: {map:?}");
        });
    }
}

/// Symptom: one block status reply could take a GiB of memory, and its extents could be single bytes.
/// Cause: it could describe a thousand contexts that were not requested, extents were kept as sent, and none
/// was compared with the block size.
/// Fix: unrequested contexts and extents below the block size are protocol errors; adjacent extents with
/// equal flags are merged.
#[test]
fn a_block_status_has_only_negotiated_contexts_and_whole_blocks() {
    let foreign = handshake(8192).chunk(false, 5, 1, &status(7, &[(8192, 0)])).chunk(
        true,
        5,
        1,
        &status(9, &[(8192, 0)]),
    );
    let below = handshake_in_blocks(8192, 512).chunk(true, 5, 1, &status(7, &[(512, 0), (100, 3), (412, 0)]));
    for (name, script) in [("foreign context", foreign), ("below a block", below)] {
        against(&script, |client| {
            let client = client.unwrap();
            let map: Result<Vec<_>, _> = client.map(BASE_ALLOCATION, 0..8192).unwrap().collect();
            assert!(matches!(map, Err(NbdError::Protocol { .. })), "{name}: {map:?}");
        });
    }
    // The last extent of the export may be shorter than a block.
    let end = handshake_in_blocks(8192, 512).chunk(true, 5, 1, &status(7, &[(8000, 0), (192, 0)]));
    against(&end, |client| {
        let map: Result<Vec<_>, _> = client.unwrap().map(BASE_ALLOCATION, 0..8192).unwrap().collect();
        let whole = MapExtent { offset: 0, len: 8192, flags: 0 };
        assert_eq!(map.unwrap(), [whole]);
    });
    let pieces = [&[(1, 3); 1000][..], &[(u32::MAX, 0), (1, 0)]].concat();
    against(&handshake(1 << 20).chunk(true, 5, 1, &status(7, &pieces)), |client| {
        let reply = client.unwrap().block_status(0, 1 << 20).unwrap();
        assert_eq!(reply, [(7, vec![(1000, 3), (u32::MAX, 0), (1, 0)])]);
    });
}

#[test]
fn broken_handshakes_are_refused() {
    let info = |size| Script::default().u16(0).u64(size).u16(3).bytes;
    let blocks = |min, max| Script::default().u16(3).u32(min).u32(4096).u32(max).bytes;
    let begun = || greeting().option_reply(8, 1, &[]).option_reply(10, 1, &[]);
    for (name, script) in [
        ("no NBD", Script::default().raw(b"HTTP/1.1 400 Bad request")),
        ("oldstyle", Script::default().raw(b"NBDMAGIC").u64(0x0000_4202_8186_1253).u64(4096).raw(&[0; 128])),
        ("not fixed", Script::default().raw(b"NBDMAGICIHAVEOPT").u16(0)),
        ("wrong option", greeting().option_reply(9, 1, &[])),
        ("huge reply", greeting().u64(0x0003_e889_0455_65a9).u32(8).u32(1).u32(u32::MAX)),
        ("no size", begun().option_reply(7, 1, &[])),
        ("negative size", begun().option_reply(7, 3, &info(u64::MAX)).option_reply(7, 1, &[])),
        ("block of 3", begun().option_reply(7, 3, &blocks(3, 4096)).option_reply(7, 1, &[])),
        ("block of 0", begun().option_reply(7, 3, &blocks(0, 4096)).option_reply(7, 1, &[])),
        ("max under min", begun().option_reply(7, 3, &blocks(4096, 512)).option_reply(7, 1, &[])),
        ("short info", begun().option_reply(7, 3, &[0, 0, 1])),
        (
            "context not asked for",
            greeting()
                .option_reply(8, 1, &[])
                .option_reply(10, 4, b"\0\0\0\x08qemu:dirty-bitmap:b")
                .option_reply(10, 1, &[])
                .option_reply(7, 3, &info(4096))
                .option_reply(7, 1, &[]),
        ),
        ("context not UTF-8", greeting().option_reply(8, 1, &[]).option_reply(10, 4, &[0, 0, 0, 1, 0xff])),
    ] {
        against(&script, |client| {
            let error = client.unwrap_err();
            assert!(!matches!(error, NbdError::Connect { .. }), "{name}: {error}");
        });
    }
}
