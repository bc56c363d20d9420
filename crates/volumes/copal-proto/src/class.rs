//! Classes of calls: what may not stand in each other's way, on a connection or in a server's memory.
//!
//! A small read does not wait behind a body of 4 MiB, and copies that members take from each other take no
//! room from clients. Rule: VOL-31, docs/design/cluster.md

use crate::{Method, messages};
use bytes::Bytes;
use prost::Message;

/// A call of more bytes than this, question and answer together, is bulk.
pub const SMALL_BYTES: usize = 64 << 10;
/// Longest part of a file in one message.
const PIECE_BYTES: u64 = 4 << 20;
/// What a page of heads, or of operations, has at most, nearly always.
const PAGE_BYTES: usize = 1 << 20;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CallClass {
    /// To and from masters, and whether somebody answers.
    Control,
    /// Reads and changes of few bytes.
    Small,
    /// Bodies.
    Bulk,
    /// What members take over from each other.
    Recovery,
}

impl CallClass {
    /// All of them.
    pub const ALL: [CallClass; 4] =
        [CallClass::Control, CallClass::Small, CallClass::Bulk, CallClass::Recovery];

    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            CallClass::Control => "control",
            CallClass::Small => "small",
            CallClass::Bulk => "bulk",
            CallClass::Recovery => "recovery",
        }
    }
}

/// What a call takes of a server's memory while it is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallCost {
    /// Beside what others.
    pub class: CallClass,
    /// Bytes of question and answer, as far as the question tells.
    pub bytes: usize,
}

impl CallCost {
    /// Of a call with this message.
    pub fn of(method: Method, message: &Bytes) -> CallCost {
        let bytes = message.len() + answer_bytes(method, message);
        let class = match method {
            Method::PutPiece
            | Method::Put
            | Method::Confirm
            | Method::Delete
            | Method::Get
            | Method::Stat
            | Method::List
            | Method::Find
            | Method::Totals
            | Method::GetPiece
            | Method::AgentAsk
            | Method::Verify => of_client(bytes),
            // Waits for answers; their bytes count where they wait.
            Method::AgentMark | Method::AgentTake => CallClass::Small,
            Method::PutChain | Method::ChainData | Method::ChainCommit => CallClass::Bulk,
            Method::SyncOpen
            | Method::SyncNext
            | Method::SyncFetch
            | Method::SyncClose
            | Method::SyncJournal
            | Method::SyncName
            | Method::JournalOf => CallClass::Recovery,
            _ => CallClass::Control,
        };
        CallCost { class, bytes }
    }

    /// Of a call of which no more is known than its length.
    pub fn of_length(method: Option<Method>, bytes: usize) -> CallCost {
        let class = method.map_or(CallClass::Bulk, |method| CallCost::of(method, &Bytes::new()).class);
        let class = if class == CallClass::Small { of_client(bytes) } else { class };
        CallCost { class, bytes }
    }
}

fn of_client(bytes: usize) -> CallClass {
    match bytes <= SMALL_BYTES {
        true => CallClass::Small,
        false => CallClass::Bulk,
    }
}

fn answer_bytes(method: Method, message: &Bytes) -> usize {
    match method {
        Method::Get => messages::Get::decode(message.clone())
            .map_or(0, |get| get.end.saturating_sub(get.start).min(PIECE_BYTES) as usize),
        Method::PutChain => {
            let chain = messages::PutChain::decode(message.clone());
            // Once whole, and once in the parts that go on.
            chain.map_or(0, |chain| 2 * chain.len.min(PIECE_BYTES) as usize)
        }
        Method::GetPiece | Method::SyncFetch => PIECE_BYTES as usize,
        Method::List | Method::SyncNext | Method::SyncJournal | Method::JournalOf => PAGE_BYTES,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_bulk_and_what_is_asked_about_them_is_not() {
        let of = |method, message: &[u8]| CallCost::of(method, &Bytes::copy_from_slice(message));
        let get = |end| messages::Get { end, ..messages::Get::default() }.encode_to_vec();
        assert_eq!(of(Method::Get, &get(100)).class, CallClass::Small);
        assert_eq!(of(Method::Get, &get(u64::MAX)).class, CallClass::Bulk);
        assert!(of(Method::Get, &get(u64::MAX)).bytes < (4 << 20) + 100);
        assert_eq!(of(Method::Get, b"no message \xff").class, CallClass::Small);
        assert_eq!(of(Method::Put, &[0; 5000]).class, CallClass::Small);
        assert_eq!(of(Method::Put, &[0; SMALL_BYTES + 1]).class, CallClass::Bulk);
        assert_eq!(of(Method::Stat, b"").class, CallClass::Small);
        assert_eq!(of(Method::SyncFetch, b"").class, CallClass::Recovery);
        assert_eq!(of(Method::WatchMap, b"").class, CallClass::Control);
        assert_eq!(CallCost::of_length(Some(Method::Put), 1 << 20).class, CallClass::Bulk);
        assert_eq!(CallCost::of_length(Some(Method::ShowStatus), 1 << 20).class, CallClass::Control);
        assert_eq!(CallCost::of_length(None, 70_000).class, CallClass::Bulk);
    }
}
