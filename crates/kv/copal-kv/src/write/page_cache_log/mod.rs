//! The page-cache log: holds kill-safe writes in the kernel's page cache until they are logged.
//!
//! A kill-safe write is a deferred one that is copied here before it is acknowledged. It is logged 100 ms or
//! 1 MiB later, and no writer waits for that. After a kill the opening replays the log up to some sequence
//! and continues with the records found here.
//!
//! Format: docs/formats/kv-page-cache-log.md v1
//! Invariants
//! - Two halves alternate: one gathers records while those of the other are logged. A half is reused only
//!   when all its records have reached the device (KV-9).
//! - A record is written only when everything before it survives a kill, or belongs to a group that is
//!   acknowledged first. Data survives in finished frames of the log and in the page-cache log.
//! - Values in value objects are never recorded here, since no record may point to data that a kill may lose.
//!
//! Not here: routing of groups (`fit`), replaying it (`open`).

pub(crate) mod fit;
pub(crate) mod format;

use crate::{
    Error,
    memory::budget::{MemoryAccounts, MemoryCharge, MemoryClass as Memory},
    tree::manifest::{ObjectRole, label},
};
use copal_device::Completion;
use copal_object::{
    Ack, CreateOptions, FramePos, ObjectId, ObjectKind, ObjectLifetime, Op, RawExtent, ReadCheck,
    Store as Objects, StoreError, Txn,
};
use format::{CacheLogHeader, FRONT_BYTES, HALVES, HEADER_LEN, RECORD_LEN};

/// Most bytes of a page-cache log.
const MOST_BYTES: u64 = 2 << 20;
/// Limit of a page-cache log as a share of the store; a divisor.
const SHARE: u64 = 64;
/// Least bytes: a store with room for less has none.
const LEAST_BYTES: u64 = 256 << 10;
/// Records up to this size are assembled for one write.
const JOINED_BYTES: usize = 16 << 10;

/// Condition for the reuse of a half.
pub(crate) enum ReuseAfter {
    /// None.
    Now,
    /// The frame with its records is written; then every frame before it is written, too.
    Frame(Completion<Result<FramePos, StoreError>>),
    /// The group with this last sequence has taken effect.
    Group(u64),
    /// The next group that the log acknowledges has taken effect: the half's records are in frames without a
    /// waiter.
    NextAckedGroup,
}

/// State of the page-cache log in a session.
#[derive(Default)]
pub(crate) enum PageCacheLogState {
    /// No kill-safe write has requested it yet. The stream exists if an earlier session made one.
    #[default]
    NotRequested,
    /// The store is too small or too full for one, or its device has no page cache.
    Absent,
    Open(Box<PageCacheLog>),
}

/// The page-cache log of one session; see the module.
pub(crate) struct PageCacheLog {
    extent: RawExtent,
    header: CacheLogHeader,
    /// The half that gathers, and its used bytes.
    current: usize,
    used: u64,
    reuse: [ReuseAfter; HALVES],
    /// Log bytes and operations of the deferred buffer that are in the current half.
    pub(crate) copied: usize,
    pub(crate) copied_count: u32,
    /// There are frames without a waiter that no half covers.
    unwatched: bool,
    joined: Vec<u8>,
    _charge: MemoryCharge,
}

impl PageCacheLog {
    /// Begins a session in `extent`: earlier records no longer count. `unwatched`: frames may be in flight.
    /// Blocks for a flush.
    pub(crate) fn begin(
        extent: RawExtent,
        session: u64,
        budget: &MemoryAccounts,
        unwatched: bool,
    ) -> Result<PageCacheLog, StoreError> {
        let header = CacheLogHeader::new(session, extent.len_bytes());
        extent.prepare();
        extent.write(0, &header.encode())?;
        // Makes sure that records of this session, left by a power loss, are not read as the previous
        // session's.
        extent.flush()?;
        let _charge = budget.charge(Memory::Log, JOINED_BYTES as u64);
        Ok(PageCacheLog {
            extent,
            header,
            current: 0,
            used: 0,
            reuse: [ReuseAfter::Now, ReuseAfter::Now],
            copied: 0,
            copied_count: 0,
            unwatched,
            joined: Vec::with_capacity(JOINED_BYTES),
            _charge,
        })
    }

    /// Whether everything before the buffer survives a kill, or is acknowledged first.
    pub(crate) fn is_watched(&self) -> bool {
        !self.unwatched
    }

    /// Whether the current half has room for the part of the buffer (`buffered` bytes) that it lacks, and for
    /// `bytes` more.
    pub(crate) fn fits(&self, buffered: usize, bytes: usize) -> bool {
        let more = RECORD_LEN + (buffered - self.copied) + bytes;
        self.used + more as u64 <= self.header.half_bytes.into()
    }

    /// Whether the current half holds the whole buffer.
    pub(crate) fn covers(&self, buffered: usize) -> bool {
        self.copied == buffered
    }

    /// Whether the current half may be written to; waits for the frame that has its records. `landed`: the
    /// last sequence whose group has taken effect.
    /// # Errors
    /// That frame could not be written.
    pub(crate) fn is_free(&mut self, landed: u64) -> Result<bool, StoreError> {
        let reuse = &mut self.reuse[self.current];
        match std::mem::replace(reuse, ReuseAfter::Now) {
            ReuseAfter::Now => {}
            ReuseAfter::Frame(written) => drop(written.wait()?),
            ReuseAfter::Group(seq) if seq <= landed => {}
            held => {
                *reuse = held;
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Broken on purpose for a test: the half is reused without its condition.
    pub(crate) fn forget_reuse(&mut self) {
        self.reuse[self.current] = ReuseAfter::Now;
    }

    /// Writes the part of `buffer` that is missing here: `count` operations from `first_seq` on. They survive
    /// a kill when this returns.
    /// # Errors
    /// The write failed: the store is poisoned.
    pub(crate) fn copy(&mut self, buffer: &[u8], first_seq: u64, count: u32) -> Result<(), StoreError> {
        let ops = &buffer[self.copied..];
        let at = self.header.half(self.current) + self.used;
        let head = format::head(self.header.session, at, first_seq, count, ops);
        let len = RECORD_LEN + ops.len();
        if len <= JOINED_BYTES {
            self.joined.clear();
            self.joined.extend_from_slice(&head);
            self.joined.extend_from_slice(ops);
            self.extent.write(at, &self.joined)?;
        } else {
            self.extent.write(at, &head)?;
            self.extent.write(at + RECORD_LEN as u64, ops)?;
        }
        self.used += len as u64;
        self.copied = buffer.len();
        self.copied_count += count;
        Ok(())
    }

    /// Switches halves after the buffer was logged: the other half gathers next, and this one waits for
    /// `reuse`.
    pub(crate) fn logged(&mut self, reuse: ReuseAfter) {
        match reuse {
            ReuseAfter::NextAckedGroup => self.unwatched = true,
            ReuseAfter::Group(seq) => {
                // Its acknowledgement implies that all frames before its own are written.
                self.unwatched = false;
                for reuse in &mut self.reuse {
                    if matches!(reuse, ReuseAfter::NextAckedGroup) {
                        *reuse = ReuseAfter::Group(seq);
                    }
                }
            }
            ReuseAfter::Frame(_) | ReuseAfter::Now => {}
        }
        (self.copied, self.copied_count) = (0, 0);
        if self.used > 0 {
            self.reuse[self.current] = reuse;
            self.current = (self.current + 1) % HALVES;
            self.used = 0;
        }
    }

    /// Records that everything in the log has reached the device.
    pub(crate) fn log_written(&mut self) {
        self.reuse = [ReuseAfter::Now, ReuseAfter::Now];
        self.unwatched = false;
    }

    /// Like [`PageCacheLog::log_written`], when in addition nothing is deferred.
    pub(crate) fn all_written(&mut self) {
        self.log_written();
        (self.copied, self.copied_count, self.used) = (0, 0, 0);
    }
}

/// Makes a page-cache log in a store that has none yet, durably; `None`: the store is too small, or its
/// device has no page cache. `stream`: object of the page-cache log, if it exists; `new`: allocates an id for
/// one.
pub(crate) fn make(
    objects: &Objects,
    budget: &MemoryAccounts,
    session: u64,
    stream: Option<ObjectId>,
    new: impl FnOnce() -> ObjectId,
) -> Result<Option<PageCacheLog>, StoreError> {
    let bytes = (objects.space().size_bytes / SHARE).min(MOST_BYTES);
    if bytes < LEAST_BYTES || !objects.has_page_cache() {
        return Ok(None);
    }
    let commit = |ops, ack| {
        let txn = Txn::new().ops(ops);
        objects.commit(txn, ack).wait()
    };
    let stream = if let Some(stream) = stream {
        stream
    } else {
        let id = new();
        let opts = CreateOptions {
            kind: ObjectKind::Stream,
            lifetime: ObjectLifetime::Long,
            expected_bytes: 0,
            check: ReadCheck::Caller,
            label: label(ObjectRole::PageCacheLog, 0),
        };
        commit(vec![Op::Create { id, opts }], Ack::Ordered)?;
        id
    };
    let Some(extent) = objects.raw_extent(stream, bytes)? else {
        return Ok(None);
    };
    // Before the space belongs to the page-cache log for good: earlier contents must not be read as records.
    let cache_log = PageCacheLog::begin(extent, session, budget, true)?;
    commit(Vec::new(), Ack::Durable)?;
    Ok(Some(cache_log))
}

/// Header of the page-cache log in `extent`.
pub(crate) fn header_of(extent: &RawExtent) -> Result<Option<CacheLogHeader>, Error> {
    if extent.len_bytes() < FRONT_BYTES {
        return Ok(None);
    }
    let mut bytes = [0; HEADER_LEN];
    extent.read(0, &mut bytes)?;
    CacheLogHeader::decode(&bytes, extent.len_bytes())
}

/// A random number: the seed of a new store, or the session number that distinguishes its records.
/// # Errors
/// The operating system has no randomness; there is no safe way to continue.
pub(crate) fn random_number() -> Result<u64, Error> {
    getrandom::u64().map_err(|error| Error::corrupt("random number of a store", error))
}
