//! Decoders of QEMU's replies, by name: for the fuzz target, and a short run of each here.
//!
//! Built for tests and fuzzing only.

use crate::{
    answers::{graph, graph::BlockGraph, nodes, schema::QemuFeatures},
    iothreads,
    launch::LaunchOptions,
    names::SessionName,
    qmp::{line::LineReader, message},
};
use serde_json::Value;

/// Decodes any bytes, discards the result, and must not panic.
pub type Decoder = fn(&[u8]);

fn json(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).unwrap_or(Value::Null)
}

/// Names and decoders.
pub const DECODERS: &[(&str, Decoder)] = &[
    ("nodes", |bytes| {
        let _ = nodes::parse(&json(bytes));
    }),
    ("graph", |bytes| {
        let graph = BlockGraph::parse(&json(bytes));
        let _ = (graph.parents_of("vm0"), graph.child_of("vm0", "file"), graph.connected("vm0"));
        let _ = (graph::devices_of(&json(bytes), "vm0"), graph::disks_of(&json(bytes)));
    }),
    ("schema", |bytes| {
        let _ = QemuFeatures::parse(&json(bytes)).missing();
    }),
    ("iothreads", |bytes| {
        let value = json(bytes);
        let _ = (iothreads::exports(&value), iothreads::named(&value));
        let _ = iothreads::with_parents(&String::from_utf8_lossy(bytes));
    }),
    ("launch", |bytes| {
        let options = LaunchOptions::parse(&String::from_utf8_lossy(bytes));
        let _ = options.export("guest0", &["guest0"]);
    }),
    ("names", |bytes| {
        let name = String::from_utf8_lossy(bytes);
        let _ = (SessionName::of(&name), SessionName::is_map(&name), SessionName::is_directory(&name));
        let name = format!("copal-{name}");
        let _ = SessionName::of(&name).map(|session| session.part_of(&name));
    }),
    ("message", |bytes| {
        let _ = message::parse(bytes);
    }),
    ("lines", |bytes| {
        let mut lines = LineReader::new(bytes);
        while let Ok(Some(line)) = lines.next_line() {
            let _ = message::parse(&line);
        }
    }),
];

#[test]
fn no_decoder_panics() {
    let mut random = copal_testkit::Random::new(1);
    let shapes = [
        r#"[{"node-name":"vm0","drv":7,"dirty-bitmaps":[{"count":-1}]}]"#,
        r#"{"nodes":[{"id":1,"name":"vm0","type":"block-driver"}],"edges":[{"parent":1,"child":1}]}"#,
        r#"[{"name":"blockdev-add","arg-type":"blockdev-add","variants":[{"case":"copy-before-write","type":"blockdev-add"}]}]"#,
        "[{\"qdev\":7}]",
        "0123abcd-cbw",
        "0123abcd-äcbw",
        "qemu\0-blockdev\0node-name=a,,b,discard=unmap\0--blockdev={\"node-name\":\"c\"}",
        "/machine/peripheral/ä0/virtio-backend",
        r#"[{"iothread":"/objects/io0"}]"#,
        r#"{"return":"#,
        r#"{"error":7}"#,
        r#"{"event":"A","data":"#,
        r#"{"QMP":{"version":{"qemu":{"major":"#,
    ];
    for (_, decode) in DECODERS {
        for length in 0..300 {
            decode(&random.bytes(length));
        }
        for shape in shapes {
            decode(shape.as_bytes());
            for at in 0..shape.len() {
                let mut bytes = shape.as_bytes().to_vec();
                bytes[at] = random.bytes(1)[0];
                decode(&bytes);
            }
        }
    }
}
