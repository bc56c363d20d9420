//! What a backup asks other hosts about chunks that its VM has not, and what they say.
//!
//! Paper: low-profile-dedup §3. Not here: the hosts (`copal-agent`).

use std::io;
use uuid::Uuid;

/// First half of a chunk's id: what requests and indexes carry.
pub type ShortId = [u8; 16];

/// What is said of one chunk, in 4 bytes: millions of them wait at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer(u32);

impl Answer {
    /// Nobody is known to have it, or too few do: store it as the VM's own.
    pub const NEW: Answer = Answer(u32::MAX);
    /// Store it where all find it: others have it, too.
    pub const STORE_POPULAR: Answer = Answer(u32::MAX - 1);
    /// Somebody is storing it where all find it: ask again.
    pub const CARRY: Answer = Answer(u32::MAX - 2);
    /// Nobody answered in time.
    pub const UNANSWERED: Answer = Answer(u32::MAX - 3);
    /// Several VMs have it, and as many chunks are popular as may be: store it as the VM's own.
    pub const FRACTION_USED: Answer = Answer(u32::MAX - 4);
    /// Ordinals are below.
    pub const FIRST_CODE: u32 = u32::MAX - 15;

    /// It is the popular frame of this ordinal; `None`: no frame can have that one.
    pub fn hit(ordinal: u32) -> Option<Answer> {
        (ordinal < Answer::FIRST_CODE).then_some(Answer(ordinal))
    }

    /// The answer of this code; `None` for one that says nothing.
    pub fn from_code(code: u32) -> Option<Answer> {
        (!(Answer::FIRST_CODE..u32::MAX - 4).contains(&code)).then_some(Answer(code))
    }

    /// What is sent.
    pub fn code(self) -> u32 {
        self.0
    }

    /// Whether it says that the VM stores the chunk as its own, and nobody else does so for all.
    pub fn leaves_it_to_the_vm(self) -> bool {
        self == Answer::NEW || self == Answer::FRACTION_USED
    }

    /// The ordinal of a hit.
    pub fn ordinal(self) -> Option<u32> {
        (self.0 < Answer::FIRST_CODE).then_some(self.0)
    }
}

/// Ids in the order in which they are to be answered.
pub type Ids<'a> = &'a mut dyn Iterator<Item = io::Result<ShortId>>;

/// What a backup is about to do, which takes the host's disk and network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Read what may have changed of the part of this number, and name its chunks.
    Read(u32),
    /// Read what nobody has once more, and store it.
    Store(u32),
}

/// Who knows what other VMs have, and says when a backup may go on.
///
/// For each part of a VM, in this order: a turn to read, `send`, `receive`, turns to store, and in between
/// `ask_again`.
pub trait Peers: Sync {
    /// Blocks until it is this VM's turn. Whoever has one ends it before asking for the next.
    /// # Errors
    /// The backup has to end: a sentence that says why.
    fn begin(&self, vm: Uuid, turn: Turn) -> Result<(), String>;

    /// Ends a turn.
    fn end(&self, vm: Uuid, turn: Turn);

    /// Sends the ids of a part. Blocks for no longer than sending takes. Returns what [`Peers::receive`]
    /// takes.
    /// # Errors
    /// Those of `ids` alone: who cannot be reached does not answer.
    fn send(&self, vm: Uuid, ids: Ids<'_>) -> io::Result<u64>;

    /// Waits for the answers to what was sent, in the order of the ids, until the deadline.
    fn receive(&self, sent: u64) -> Vec<Answer>;

    /// Asks about what was to be carried, and waits. Called again and again until nothing is, or this answers
    /// `None`: the time is over.
    /// # Errors
    /// Those of `ids` alone.
    fn ask_again(&self, vm: Uuid, ids: Ids<'_>) -> io::Result<Option<Vec<Answer>>>;

    /// A pack of popular chunks was stored, and waits for somebody to open it.
    fn stored(&self);
}

/// The public half of the key with which a host signs what it says of popular packs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostKey(pub(crate) [u8; 32]);

impl std::fmt::Debug for HostKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [a, b, c, d, ..] = self.0;
        write!(f, "HostKey({a:02x}{b:02x}{c:02x}{d:02x})")
    }
}

/// Which host wrote a popular pack, by its name: any host may say any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Writer(pub(crate) u64);

impl Writer {
    /// The host of this name.
    pub fn of(name: &str) -> Writer {
        let hash = blake3::hash(name.as_bytes());
        Writer(hash.as_bytes().first_chunk().map_or(0, |first| u64::from_le_bytes(*first)))
    }
}
