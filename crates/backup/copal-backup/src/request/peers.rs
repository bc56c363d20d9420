//! Interface of a backup to other hosts: questions about chunks that its VM does not have, and answers.
//!
//! Paper: low-profile-dedup §3.
//! Not here: the hosts (`copal-agent`).

use std::io;
use uuid::Uuid;

/// First half of a chunk's id, as requests and indexes use it.
pub type ShortId = [u8; 16];

/// Answer for one chunk, in 4 bytes, since millions of answers are in memory at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer(u32);

impl Answer {
    /// No other VM is known to have it, or too few: store it as the VM's own.
    pub const NEW: Answer = Answer(u32::MAX);
    /// Other VMs have it too: store it as a popular one.
    pub const STORE_POPULAR: Answer = Answer(u32::MAX - 1);
    /// Another host is storing it as a popular one: ask again.
    pub const CARRY: Answer = Answer(u32::MAX - 2);
    /// No answer came in time.
    pub const UNANSWERED: Answer = Answer(u32::MAX - 3);
    /// Several VMs have it, but the fraction of popular chunks is used up: store it as the VM's own.
    pub const FRACTION_USED: Answer = Answer(u32::MAX - 4);
    /// All ordinals are below this code.
    pub const FIRST_CODE: u32 = u32::MAX - 15;

    /// The answer for the popular frame with this ordinal; `None`: no frame can have it.
    pub fn hit(ordinal: u32) -> Option<Answer> {
        (ordinal < Answer::FIRST_CODE).then_some(Answer(ordinal))
    }

    /// The answer with this code; `None` for an undefined one.
    pub fn from_code(code: u32) -> Option<Answer> {
        (!(Answer::FIRST_CODE..u32::MAX - 4).contains(&code)).then_some(Answer(code))
    }

    /// The code on the wire.
    pub fn code(self) -> u32 {
        self.0
    }

    /// Whether the VM stores the chunk as its own, and no host stores it as a popular one.
    pub fn leaves_it_to_the_vm(self) -> bool {
        self == Answer::NEW || self == Answer::FRACTION_USED
    }

    /// The ordinal of a hit.
    pub fn ordinal(self) -> Option<u32> {
        (self.0 < Answer::FIRST_CODE).then_some(self.0)
    }
}

/// Ids in the order of the expected answers.
pub type Ids<'a> = &'a mut dyn Iterator<Item = io::Result<ShortId>>;

/// A phase of a backup that needs the host's disk and network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Read the changed blocks of the part with this number, and name its chunks.
    Read(u32),
    /// Read the new chunks of the part again, and store them.
    Store(u32),
}

/// The other hosts: answers questions about chunks, and schedules the turns of a backup.
///
/// For each part of a VM, in this order: a turn to read, `send`, `receive`, turns to store, and in between
/// `ask_again`.
pub trait Peers: Sync {
    /// Blocks until it is this VM's turn. A caller ends its turn before it asks for the next.
    /// # Errors
    /// The reason, as a sentence: the backup must end.
    fn begin(&self, vm: Uuid, turn: Turn) -> Result<(), String>;

    /// Ends a turn.
    fn end(&self, vm: Uuid, turn: Turn);

    /// Sends the ids of a part. Blocks only while sending. Returns the argument of [`Peers::receive`].
    /// # Errors
    /// Only those of `ids`: an unreachable host counts as one without an answer.
    fn send(&self, vm: Uuid, ids: Ids<'_>) -> io::Result<u64>;

    /// Waits for the answers to a request, in the order of the ids, until the deadline.
    fn receive(&self, sent: u64) -> Vec<Answer>;

    /// Asks again for chunks with the answer `CARRY`, and waits. Called repeatedly until none is left, or
    /// `None` signals the end of the time.
    /// # Errors
    /// Only those of `ids`.
    fn ask_again(&self, vm: Uuid, ids: Ids<'_>) -> io::Result<Option<Vec<Answer>>>;

    /// A pack of popular chunks was stored, and needs a check by another host.
    fn stored(&self);
}

/// Public key of a host, for its signatures of records about popular packs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostKey(pub(crate) [u8; 32]);

impl std::fmt::Debug for HostKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [a, b, c, d, ..] = self.0;
        write!(f, "HostKey({a:02x}{b:02x}{c:02x}{d:02x})")
    }
}

/// Writer of a popular pack, by its name, which any host may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Writer(pub(crate) u64);

impl Writer {
    /// The host with this name.
    pub fn of(name: &str) -> Writer {
        let hash = blake3::hash(name.as_bytes());
        Writer(hash.as_bytes().first_chunk().map_or(0, |first| u64::from_le_bytes(*first)))
    }
}
