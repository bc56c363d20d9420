//! Messages between agents: one byte that says which, then its fields, little-endian.
//!
//! Format: docs/formats/agent-message.md v2
//! Invariants
//! - Nothing that a peer sends is trusted: counts and lengths are bounded before they size anything, and what
//!   is left over at the end refuses the message.
//! - [`Hello`] is the first message of each side, and its version stands where every version has it.
//!
//! Not here: frames and seals (`channel`), whether an answer belongs to anything that was asked (`asker`).

mod decode;
mod encode;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
#[cfg(test)]
mod tests;

use copal_backup::peers::ShortId;

pub use decode::WireError;

/// Version of the messages that this build speaks.
pub const VERSION: u16 = 2;
/// Most ids of one [`Ask`], and most codes of one [`Answers`].
pub const BATCH_IDS: usize = 4096;
/// Most bits of an id that choose its partition.
pub const PARTITION_BITS: u8 = 24;
/// Longest name of a member.
pub const NAME_BYTES: usize = 64;
/// Longest reason of a refusal.
pub const REASON_BYTES: usize = 1024;
/// Longest JSON of a control message.
pub const JSON_BYTES: usize = crate::channel::MESSAGE_BYTES - 16;

/// Says who one is; the first message of each side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Name of the member.
    pub name: String,
    /// Random, and new for each asker: connections of one asker have the same, so that answers find their way
    /// after one has broken.
    pub instance: [u8; 16],
}

/// What does its partition's owner know of these ids?
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// The job.
    pub job: [u8; 16],
    /// Round of the job.
    pub round: u32,
    /// Number of the VM in the job.
    pub vm: u32,
    /// Number that the asker gave this batch: the answers carry it. An ask that comes again has the same.
    pub batch: u64,
    /// Bits of an id that choose its partition.
    pub partition_bits: u8,
    /// The partition that all the ids are in.
    pub partition: u32,
    /// The ids, at most [`BATCH_IDS`].
    pub ids: Vec<ShortId>,
}

/// The sender has asked all it will ask in this round. May come twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marker {
    /// The job.
    pub job: [u8; 16],
    /// The round that is over for the sender.
    pub round: u32,
    /// Hosts that send this marker.
    pub participants: u32,
    /// How long the sender waits for others from now on, in milliseconds.
    pub patience_ms: u32,
}

/// What is known of the ids of one batch, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answers {
    /// The job.
    pub job: [u8; 16],
    /// Round of the ask.
    pub round: u32,
    /// Number of the ask.
    pub batch: u64,
    /// Partition of the ask.
    pub partition: u32,
    /// Generation of the popular index that answered.
    pub generation: u64,
    /// One code per id: [`copal_backup::peers::Answer::from_code`].
    pub codes: Vec<u32>,
}

/// The batch is not going to be answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Number of the ask.
    pub batch: u64,
    /// A sentence; cut at [`REASON_BYTES`] when sent.
    pub reason: String,
}

/// All that is said between agents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Who one is.
    Hello(Hello),
    /// A question.
    Ask(Ask),
    /// No more questions in this round.
    Marker(Marker),
    /// Answers.
    Answers(Answers),
    /// No answers.
    Refused(Refused),
    /// A command, as JSON of at most [`JSON_BYTES`].
    Control(Vec<u8>),
    /// What came of it, as JSON of at most [`JSON_BYTES`].
    ControlReply(Vec<u8>),
}

const HELLO: u8 = 1;
const ASK: u8 = 2;
const MARKER: u8 = 3;
const ANSWERS: u8 = 4;
const REFUSED: u8 = 5;
const CONTROL: u8 = 6;
const CONTROL_REPLY: u8 = 7;
