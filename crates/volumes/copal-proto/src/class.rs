//! Classes of calls: each class has its own connections and its own share of a server's memory.
//!
//! So a small read does not wait behind a body of 4 MiB, and resync between replicas takes no memory from clients.
//! Rule: VOL-31, docs/design/cluster.md

use crate::{Method, messages};
use bytes::Bytes;
use prost::Message;

/// Calls with more bytes of request and reply together are bulk.
pub const SMALL_BYTES: usize = 64 << 10;
/// Most bytes of a file in one message.
const PIECE_BYTES: u64 = 4 << 20;
/// Estimated bytes of a page of heads or operations; few pages are larger.
const PAGE_BYTES: usize = 1 << 20;

/// Most ranges of a [`GetRanges`](messages::GetRanges).
pub const RANGES_MAX: usize = 1024;

/// Class of a call: see the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CallClass {
    /// Calls to and from masters, and pings.
    Control,
    /// Reads and writes of few bytes.
    Small,
    /// Bodies of files.
    Bulk,
    /// Copies between replicas.
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

/// Memory that a call takes in a server while it is in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallCost {
    /// Class whose share of the memory it takes.
    pub class: CallClass,
    /// Bytes of request and reply, as estimated from the request.
    pub bytes: usize,
}

impl CallCost {
    /// Cost of a call with this message.
    pub fn of(method: Method, message: &Bytes) -> CallCost {
        let bytes = message.len() + reply_bytes(method, message);
        let class = match method {
            Method::PutPiece
            | Method::Put
            | Method::Confirm
            | Method::Delete
            | Method::Get
            | Method::GetRanges
            | Method::Stat
            | Method::List
            | Method::Find
            | Method::Totals
            | Method::GetPiece
            | Method::AgentAsk
            | Method::Verify => client_class(bytes),
            // The bytes of these replies are counted in the agent's outbox.
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

    /// Cost of a call of which only the method and the length are known. `None`: an unknown method.
    pub fn of_length(method: Option<Method>, bytes: usize) -> CallCost {
        let class = method.map_or(CallClass::Bulk, |method| CallCost::of(method, &Bytes::new()).class);
        let class = if class == CallClass::Small { client_class(bytes) } else { class };
        CallCost { class, bytes }
    }
}

fn client_class(bytes: usize) -> CallClass {
    match bytes <= SMALL_BYTES {
        true => CallClass::Small,
        false => CallClass::Bulk,
    }
}

fn reply_bytes(method: Method, message: &Bytes) -> usize {
    match method {
        Method::Get => messages::Get::decode(message.clone())
            .map_or(0, |get| get.end.saturating_sub(get.start).min(PIECE_BYTES) as usize),
        Method::GetRanges => messages::GetRanges::decode(message.clone()).map_or(0, |get| {
            let bytes: u64 = get.lengths.iter().map(|length| u64::from(*length)).sum();
            bytes.min(PIECE_BYTES) as usize
        }),
        Method::PutChain => {
            let chain = messages::PutChain::decode(message.clone());
            // Once as the received body, and once as the parts that are passed on.
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
    fn bodies_are_bulk_and_questions_about_them_are_not() {
        let of = |method, message: &[u8]| CallCost::of(method, &Bytes::copy_from_slice(message));
        let get = |end| messages::Get { end, ..messages::Get::default() }.encode_to_vec();
        assert_eq!(of(Method::Get, &get(100)).class, CallClass::Small);
        assert_eq!(of(Method::Get, &get(u64::MAX)).class, CallClass::Bulk);
        assert!(of(Method::Get, &get(u64::MAX)).bytes < (4 << 20) + 100);
        assert_eq!(of(Method::Get, b"no message \xff").class, CallClass::Small);
        let ranges = |lengths: &[u32]| {
            let lengths = lengths.to_vec();
            messages::GetRanges { lengths, ..messages::GetRanges::default() }.encode_to_vec()
        };
        assert_eq!(of(Method::GetRanges, &ranges(&[100, 200])).class, CallClass::Small);
        assert_eq!(of(Method::GetRanges, &ranges(&[60 << 10, 60 << 10])).class, CallClass::Bulk);
        assert!(of(Method::GetRanges, &ranges(&[u32::MAX; 3])).bytes < (4 << 20) + 100);
        assert_eq!(of(Method::GetRanges, b"no message \xff").class, CallClass::Small);
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
