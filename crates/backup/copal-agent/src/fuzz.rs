//! Decoders of bytes from other sources, by name: for the fuzz target, and a short run of each here.
//!
//! If a checksum guards a structure, the decoder behind it is listed too: random bytes do not pass a
//! checksum. Built for tests and fuzzing only.

use crate::detect::format::{self, BatchHead, FilePartition, RunHead, RunKind};
use crate::fleet::messages::{AnswerMessage, AskMessage, MarkerMessage};
use crate::fleet::network::check_hello;
use crate::plan::plan_file::BackupPlan;
use copal_codec::Put;
use copal_proto::messages;
use prost::Message;
use std::path::Path;

/// Takes any bytes, returns nothing, and must not panic.
pub type Decoder = fn(&[u8]);

/// Names and decoders.
pub const DECODERS: &[(&str, Decoder)] = &[
    ("popular run", |bytes| {
        let _ = RunHead::decode(RunKind::Popular, bytes).map(|head| head.file_len());
    }),
    ("candidate run", |bytes| {
        let _ = RunHead::decode(RunKind::Candidates, bytes).map(|head| head.file_len());
    }),
    ("run behind its sum", |bytes| {
        let Some(body) = bytes.first_chunk::<32>() else {
            return;
        };
        let mut input = copal_codec::Reader::new(body);
        let (Ok(bits), Ok(partition), Ok(rows)) = (input.u8(), input.u32(), input.u64()) else {
            return;
        };
        let head =
            RunHead { belongs: FilePartition { bits, partition }, rows, complete_to: rows, rows_sum: rows };
        let back = RunHead::decode(RunKind::Popular, &head.encode(RunKind::Popular));
        assert_eq!(back.ok(), Some(head), "what is written is read");
        let _ = head.file_len();
    }),
    ("spool head", |bytes| {
        let _ = format::decode_spool_head(bytes);
    }),
    ("batch", |bytes| {
        let _ = bytes.first_chunk().map(|head| BatchHead::decode(0, head));
    }),
    ("batch of a possible length", |bytes| {
        let Some(mut head) = bytes.first_chunk().copied() else {
            return;
        };
        let mut ids = Vec::new();
        ids.put_u32(1 + u32::from(head[48]));
        head[48..52].copy_from_slice(&ids);
        assert!(BatchHead::decode(0, &head).is_ok(), "all else may be any bytes");
    }),
    ("hello", |bytes| {
        let _ = messages::AgentHello::decode(bytes).map(|hello| check_hello(&hello));
    }),
    ("ask", |bytes| {
        if let Ok(Ok((instance, ask))) =
            messages::AgentAsk::decode(bytes).map(|ask| AskMessage::of_message(&ask))
        {
            let again = AskMessage::of_message(&ask.to_message(&instance));
            assert_eq!(again, Ok((instance, ask)), "what is read is sent the same");
        }
    }),
    ("marker", |bytes| {
        let _ = messages::AgentMarker::decode(bytes).map(|marker| MarkerMessage::of_message(&marker));
    }),
    ("answers", |bytes| {
        let page = messages::AgentAnswers::decode(bytes).map(|page| page.answers).unwrap_or_default();
        page.into_iter().for_each(|answers| drop(AnswerMessage::of_message(answers)));
    }),
    ("plan file", |bytes| {
        let _ = BackupPlan::parse(Path::new("plan.json"), bytes);
    }),
    ("VM of a plan file", |bytes| {
        let text = String::from_utf8_lossy(bytes);
        let json = format!(r#"{{"v":1,"vms":[{{"vm":"a",{text}}}]}}"#);
        let _ = BackupPlan::parse(Path::new("plan.json"), json.as_bytes());
    }),
];

#[cfg(test)]
mod tests {
    #[test]
    fn no_decoder_panics_on_any_bytes() {
        copal_testkit::decoders_survive(super::DECODERS, 4000);
    }
}
