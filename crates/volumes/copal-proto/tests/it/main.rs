//! The bytes of docs/protocols/client.md, against the real encoder.

use bytes::Bytes;
use copal_codec::crc32c;
use copal_proto::{
    Method, WireFrame,
    messages::{
        Accepted, Disk, Failure, FileHead, GetRanges, GetRangesReply, Id, Map, Member, Put, RangeBytes,
        Resolve, Resolved, Role, View, WatchMap, failure::Code,
    },
};
use prost::Message;
use std::path::Path;

const TRACE: u64 = 0x0102_0304_0506_0708;
const VOLUME: u64 = (1 << 44) | 7;

/// A frame with its length before it.
fn sent(id: u64, method: Method, trace: u64, message: &impl Message) -> Vec<u8> {
    frame(id, method, trace, false, false, message)
}

fn reply(id: u64, method: Method, is_failure: bool, message: &impl Message) -> Vec<u8> {
    frame(id, method, 0, true, is_failure, message)
}

fn frame(
    id: u64,
    method: Method,
    trace: u64,
    is_reply: bool,
    is_failure: bool,
    message: &impl Message,
) -> Vec<u8> {
    let frame = WireFrame {
        permit: Bytes::new(),
        id,
        method: method as u16,
        is_reply,
        is_failure,
        is_more: false,
        trace,
        left_ms: (!is_reply).then_some(30_000),
        message: message.encode_to_vec().into(),
    };
    let bytes = frame.encode();
    [&(bytes.len() as u32).to_be_bytes()[..], &bytes].concat()
}

/// The example of the page, by the names of its blocks.
fn example() -> Vec<(&'static str, Vec<u8>)> {
    let members =
        [1, 2, 3].map(|disk| Member { disk, role: Role::Normal.into(), missed: 0, ..Member::default() });
    let view = View { group: 1, epoch: 9, members: members.to_vec(), replicas: 3, min_ack: 2 };
    let disk = Disk {
        disk: 1,
        server: "data1".to_owned(),
        address: "10.0.0.2:7400".to_owned(),
        server_uuid: Bytes::from_static(&[0x11; 16]),
        version: 4,
    };
    let map = Map {
        version: 9,
        term: 1,
        views: vec![view],
        disks: vec![disk],
        whole: true,
        now_ms: 1_800_000_000_000,
        ..Map::default()
    };
    // 48 bits of milliseconds, 16 of a counter; then the client's incarnation.
    let id = |counter: u64| Id { high: (1_800_000_000_000 << 16) | counter, low: 0xa1b2_c3d4_e5f6_0718 };
    let put = Put {
        group: 1,
        epoch: 9,
        volume: VOLUME,
        name: Bytes::from_static(b"m1"),
        head: Some(FileHead {
            fid: Some(id(1)),
            op: Some(id(2)),
            size: 5,
            crc32c: crc32c(0, b"hello"),
            metadata: Bytes::new(),
        }),
        body: Bytes::from_static(b"hello"),
        staged: false,
    };
    let held = Accepted { role: Role::Normal.into() };
    let taken = Failure {
        code: Code::Exists.into(),
        text: "taken".to_owned(),
        fid: Some(id(9)),
        ..Failure::default()
    };
    let watch = WatchMap { since: 0, wait_ms: 0 };
    let resolve = Resolve { path: "mail".to_owned() };
    let resolved = Resolved { volume: VOLUME, options: None };
    let ranges = GetRanges {
        group: 1,
        epoch: 9,
        volume: VOLUME,
        name: Bytes::from_static(b"m1"),
        if_file: Some(id(1)),
        starts: vec![3, 0],
        lengths: vec![2, 1],
    };
    let parts = GetRangesReply {
        head: put.head.clone(),
        role: Role::Normal.into(),
        ranges: [&b"lo"[..], b"h"]
            .map(|part| RangeBytes { bytes: Bytes::from_static(part), corrupt: false })
            .to_vec(),
    };
    vec![
        ("watch", sent(1, Method::WatchMap, 0, &watch)),
        ("map", reply(1, Method::WatchMap, false, &map)),
        ("resolve", sent(2, Method::Resolve, TRACE, &resolve)),
        ("resolved", reply(2, Method::Resolve, false, &resolved)),
        ("put", sent(1, Method::Put, TRACE, &put)),
        ("held", reply(1, Method::Put, false, &held)),
        ("ranges", sent(2, Method::GetRanges, 0, &ranges)),
        ("parts", reply(2, Method::GetRanges, false, &parts)),
        ("exists", reply(1, Method::Put, true, &taken)),
    ]
}

fn as_hex(bytes: &[u8]) -> String {
    let rows = bytes.chunks(16).map(|row| {
        let digits: Vec<String> = row.iter().map(|byte| format!("{byte:02x}")).collect();
        digits.join(" ")
    });
    rows.collect::<Vec<_>>().join("\n")
}

fn page() -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/protocols/client.md");
    std::fs::read_to_string(page).unwrap()
}

#[test]
fn the_bytes_of_the_page_are_those_that_are_sent() {
    let page = page();
    let expected = example();
    let missing: Vec<String> = expected
        .iter()
        .map(|(name, bytes)| format!("```hex {name}\n{}\n```", as_hex(bytes)))
        .filter(|block| !page.contains(block))
        .collect();
    assert!(missing.is_empty(), "not on the page:\n{}", missing.join("\n"));
    assert_eq!(page.matches("```hex ").count(), expected.len());
}

#[test]
fn every_call_and_every_error_is_on_the_page() {
    let page = page();
    for method in Method::ALL {
        let row = format!("| {} | `{}` |", *method as u16, method.name());
        assert!(page.contains(&row), "{row}");
    }
    for code in (1..).map_while(|code| Code::try_from(code).ok()) {
        let row = format!("| {} | `{}` |", code as i32, code.as_str_name());
        assert!(page.contains(&row), "{row}");
    }
}
