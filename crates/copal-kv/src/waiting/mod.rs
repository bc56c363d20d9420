//! The waiting room: where kill-safe writes stand, in the kernel's page cache, until the log has them.
//!
//! A kill-safe write is a deferred one that is copied here before it is acknowledged; the log takes it 100 ms or 1 MiB
//! later, without anybody waiting. After a kill the opening finds the log up to some sequence and goes on with the
//! records that stand here.
//!
//! Format: docs/formats/kv-waiting-room.md v1
//! Invariants
//! - Two bays take turns: one gathers, while what stood in the other is on its way into the log. A bay is used again
//!   only when everything that stood in it has reached the device (KV-9).
//! - A record is written only when everything in front of it survives a kill: it is in the log's finished frames, in the
//!   room, or belongs to a group that is answered first.
//! - Values of their own objects have no place here: nothing points to what a kill may lose.
//!
//! Not here: who goes through the room (`commit::enter`), reading it back (`recovery::take_in`).

pub(crate) mod format;

use crate::{
    budget::{Charge, Class as Memory, MemoryBudget},
    manifest::{Role, label},
};
use copal_device::Completion;
use copal_object::{
    Ack, Check, CreateOptions, FramePos, Lifetime, ObjectId, ObjectKind, Op, Place, Store as Objects,
    StoreError, Txn,
};
use format::{BAYS, FRONT_BYTES, HEADER_LEN, Header, RECORD_LEN};

/// Most bytes of a room.
const ROOM_BYTES: u64 = 2 << 20;
/// A room takes at most one byte in this many of the store.
const SHARE: u64 = 64;
/// Below this a store has none.
const LEAST_BYTES: u64 = 256 << 10;
/// Records up to this are put together for one write.
const JOINED_BYTES: usize = 16 << 10;

/// What keeps a bay from being used again.
pub(crate) enum Hold {
    /// Nothing.
    None,
    /// Until the frame that took its records is written; every frame before it is then written, too.
    Frame(Completion<Result<FramePos, StoreError>>),
    /// Until the group with this last sequence has landed.
    Group(u64),
    /// Its records are in frames that nobody watches, up to the next group that is answered by the log.
    Unwatched,
}

/// Whether a session uses a room.
#[derive(Default)]
pub(crate) enum Waiting {
    /// No kill-safe write has asked for it yet. The stream is there when an earlier session began one.
    #[default]
    Unasked,
    /// The store is too small or too full for one, or its device has no page cache.
    Absent,
    Open(Box<WaitingRoom>),
}

/// See the module.
pub(crate) struct WaitingRoom {
    place: Place,
    header: Header,
    /// The bay that gathers, and the bytes of it in use.
    current: usize,
    used: u64,
    holds: [Hold; BAYS],
    /// Log bytes and operations of the buffer of deferred writes that stand in the current bay.
    pub(crate) copied: usize,
    pub(crate) copied_count: u32,
    /// There are frames that nobody watches and that no bay covers.
    unwatched: bool,
    joined: Vec<u8>,
    _charge: Charge,
}

impl WaitingRoom {
    /// Begins a session in `place`: what stands there counts no more. `unwatched`: there may be frames on their way.
    /// Blocks for a flush.
    pub(crate) fn begin(
        place: Place,
        session: u64,
        budget: &MemoryBudget,
        unwatched: bool,
    ) -> Result<WaitingRoom, StoreError> {
        let header = Header::new(session, place.len_bytes());
        place.prepare();
        place.write(0, &header.encode())?;
        // Whatever a power loss leaves of this session is not to be read as the last one's.
        place.flush()?;
        let _charge = budget.charge(Memory::Log, JOINED_BYTES as u64);
        Ok(WaitingRoom {
            place,
            header,
            current: 0,
            used: 0,
            holds: [Hold::None, Hold::None],
            copied: 0,
            copied_count: 0,
            unwatched,
            joined: Vec::with_capacity(JOINED_BYTES),
            _charge,
        })
    }

    /// Whether everything in front of the buffer survives a kill, or is answered first.
    pub(crate) fn is_watched(&self) -> bool {
        !self.unwatched
    }

    /// Whether the current bay has room for what of the buffer, `buffered` bytes, does not stand in it yet, and for
    /// `bytes` more.
    pub(crate) fn fits(&self, buffered: usize, bytes: usize) -> bool {
        let more = RECORD_LEN + (buffered - self.copied) + bytes;
        self.used + more as u64 <= self.header.bay_bytes.into()
    }

    /// Whether all of the buffer stands in the current bay.
    pub(crate) fn covers(&self, buffered: usize) -> bool {
        self.copied == buffered
    }

    /// Whether the current bay may be written to; waits for the frame that has its records. `landed`: the last sequence
    /// whose group has landed.
    /// # Errors
    /// That frame could not be written.
    pub(crate) fn is_free(&mut self, landed: u64) -> Result<bool, StoreError> {
        let hold = &mut self.holds[self.current];
        match std::mem::replace(hold, Hold::None) {
            Hold::None => {}
            Hold::Frame(written) => drop(written.wait()?),
            Hold::Group(seq) if seq <= landed => {}
            held => {
                *hold = held;
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// A test's flaw: the bay is used again whatever holds it.
    pub(crate) fn forget_hold(&mut self) {
        self.holds[self.current] = Hold::None;
    }

    /// Writes what of `buffer` does not stand here yet: `count` operations from `first_seq` on. They survive a kill when
    /// this returns.
    /// # Errors
    /// The write failed: the store is poisoned.
    pub(crate) fn copy(&mut self, buffer: &[u8], first_seq: u64, count: u32) -> Result<(), StoreError> {
        let ops = &buffer[self.copied..];
        let at = self.header.bay(self.current) + self.used;
        let head = format::head(self.header.session, at, first_seq, count, ops);
        let len = RECORD_LEN + ops.len();
        if len <= JOINED_BYTES {
            self.joined.clear();
            self.joined.extend_from_slice(&head);
            self.joined.extend_from_slice(ops);
            self.place.write(at, &self.joined)?;
        } else {
            self.place.write(at, &head)?;
            self.place.write(at + RECORD_LEN as u64, ops)?;
        }
        self.used += len as u64;
        self.copied = buffer.len();
        self.copied_count += count;
        Ok(())
    }

    /// The buffer went into the log. The other bay gathers next, and this one waits for `hold`.
    pub(crate) fn logged(&mut self, hold: Hold) {
        match hold {
            Hold::Unwatched => self.unwatched = true,
            Hold::Group(seq) => {
                // It is answered when all frames in front of its own are written.
                self.unwatched = false;
                for hold in &mut self.holds {
                    if matches!(hold, Hold::Unwatched) {
                        *hold = Hold::Group(seq);
                    }
                }
            }
            Hold::Frame(_) | Hold::None => {}
        }
        (self.copied, self.copied_count) = (0, 0);
        if self.used > 0 {
            self.holds[self.current] = hold;
            self.current = (self.current + 1) % BAYS;
            self.used = 0;
        }
    }

    /// Everything in the log has reached the device.
    pub(crate) fn log_written(&mut self) {
        self.holds = [Hold::None, Hold::None];
        self.unwatched = false;
    }

    /// As [`WaitingRoom::log_written`], and nothing is deferred.
    pub(crate) fn all_written(&mut self) {
        self.log_written();
        (self.copied, self.copied_count, self.used) = (0, 0, 0);
    }
}

/// A room in a store that has none yet, durable when this returns; `None`: the store is too small, or its device has no
/// page cache. `stream`: the room's object, if one was made before; `new`: the id of one to make.
pub(crate) fn make(
    objects: &Objects,
    budget: &MemoryBudget,
    session: u64,
    stream: Option<ObjectId>,
    new: impl FnOnce() -> ObjectId,
) -> Result<Option<WaitingRoom>, StoreError> {
    let bytes = (objects.space().size_bytes / SHARE).min(ROOM_BYTES);
    if bytes < LEAST_BYTES || !objects.has_page_cache() {
        return Ok(None);
    }
    let commit = |ops, ack| {
        let txn = Txn {
            ops,
            ..Txn::default()
        };
        objects.commit(txn, ack).wait()
    };
    let stream = if let Some(stream) = stream {
        stream
    } else {
        let id = new();
        let opts = CreateOptions {
            kind: ObjectKind::Stream,
            lifetime: Lifetime::Long,
            expected_bytes: 0,
            check: Check::Caller,
            label: label(Role::Waiting, 0),
        };
        commit(vec![Op::Create { id, opts }], Ack::Ordered)?;
        id
    };
    let Some(place) = objects.place(stream, bytes)? else {
        return Ok(None);
    };
    // Before the space is the room's for good: what it held before is not to be read as one.
    let room = WaitingRoom::begin(place, session, budget, true)?;
    commit(Vec::new(), Ack::Durable)?;
    Ok(Some(room))
}

/// Header of the room in `place`.
pub(crate) fn header_of(place: &Place) -> Result<Option<Header>, crate::Error> {
    if place.len_bytes() < FRONT_BYTES {
        return Ok(None);
    }
    let mut bytes = [0; HEADER_LEN];
    place.read(0, &mut bytes)?;
    Header::decode(&bytes, place.len_bytes())
}
