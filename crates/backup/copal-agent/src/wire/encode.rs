//! Messages to bytes.

use super::{
    ANSWERS, ASK, Answers, Ask, BATCH_IDS, CONTROL, CONTROL_REPLY, HELLO, Hello, JSON_BYTES, MARKER, Marker,
    Message, NAME_BYTES, REASON_BYTES, REFUSED, Refused, VERSION,
};
use copal_codec::Put;

impl Message {
    /// The bytes that are sent.
    ///
    /// # Panics
    /// When the message is larger than its bounds: our own bug, since no peer would read it.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Message::Hello(hello) => put_hello(&mut out, hello),
            Message::Ask(ask) => put_ask(&mut out, ask),
            Message::Marker(marker) => put_marker(&mut out, marker),
            Message::Answers(answers) => put_answers(&mut out, answers),
            Message::Refused(refused) => put_refused(&mut out, refused),
            Message::Control(json) => put_json(&mut out, CONTROL, json),
            Message::ControlReply(json) => put_json(&mut out, CONTROL_REPLY, json),
        }
        out
    }
}

fn put_hello(out: &mut Vec<u8>, hello: &Hello) {
    assert!(hello.name.len() <= NAME_BYTES, "the name of a member is checked");
    out.put_u8(HELLO);
    out.put_u16(VERSION);
    out.put_bytes(&hello.instance);
    out.put_prefixed(hello.name.as_bytes());
}

fn put_ask(out: &mut Vec<u8>, ask: &Ask) {
    assert!(ask.ids.len() <= BATCH_IDS, "a batch of {} ids", ask.ids.len());
    out.reserve(64 + 16 * ask.ids.len());
    out.put_u8(ASK);
    out.put_bytes(&ask.job);
    out.put_u32(ask.round);
    out.put_u32(ask.vm);
    out.put_u64(ask.batch);
    out.put_u8(ask.partition_bits);
    out.put_u32(ask.partition);
    out.put_varint(ask.ids.len() as u64);
    ask.ids.iter().for_each(|id| out.put_bytes(id));
}

fn put_marker(out: &mut Vec<u8>, marker: &Marker) {
    out.put_u8(MARKER);
    out.put_bytes(&marker.job);
    out.put_u32(marker.round);
    out.put_u32(marker.participants);
    out.put_u32(marker.patience_ms);
}

fn put_answers(out: &mut Vec<u8>, answers: &Answers) {
    let count = answers.codes.len();
    assert!(count <= BATCH_IDS, "answers for {count} ids");
    out.reserve(64 + 4 * count);
    out.put_u8(ANSWERS);
    out.put_bytes(&answers.job);
    out.put_u32(answers.round);
    out.put_u64(answers.batch);
    out.put_u32(answers.partition);
    out.put_u64(answers.generation);
    out.put_varint(count as u64);
    answers.codes.iter().for_each(|&code| out.put_u32(code));
}

fn put_refused(out: &mut Vec<u8>, refused: &Refused) {
    let mut end = refused.reason.len().min(REASON_BYTES);
    while !refused.reason.is_char_boundary(end) {
        end -= 1;
    }
    out.put_u8(REFUSED);
    out.put_u64(refused.batch);
    out.put_prefixed(&refused.reason.as_bytes()[..end]);
}

fn put_json(out: &mut Vec<u8>, kind: u8, json: &[u8]) {
    assert!(json.len() <= JSON_BYTES, "JSON of {} bytes", json.len());
    out.put_u8(kind);
    out.put_prefixed(json);
}
