//! The page-cache log: where kill-safe writes stand, in the kernel's page cache, until the log has them.
//!
//! A kill-safe write is a deferred one that is copied here before it is acknowledged; the log takes it 100 ms
//! or 1 MiB later, without anybody waiting. After a kill the opening finds the log up to some sequence and
//! goes on with the records that stand here.
//!
//! Format: docs/formats/kv-page-cache-log.md v1
//! Invariants
//! - Two halves take turns: one gathers, while what stood in the other is on its way into the log. A half is
//!   used again only when everything that stood in it has reached the device (KV-9).
//! - A record is written only when everything in front of it survives a kill: it is in the log's finished
//!   frames, in the cache_log, or belongs to a group that is answered first.
//! - Values of their own objects have no place here: nothing points to what a kill may lose.
//!
//! Not here: who goes through the page-cache log (`fit`), reading it back (`open`).

pub(crate) mod fit;
pub(crate) mod format;

use crate::{
    Error,
    memory::budget::{MemoryAccounts, MemoryCharge, MemoryClass as Memory},
    tree::manifest::{ObjectRole, label},
};
use copal_device::Completion;
use copal_object::{
    Ack, Check, CreateOptions, FramePos, Lifetime, ObjectId, ObjectKind, Op, RawExtent, Store as Objects,
    StoreError, Txn,
};
use format::{CacheLogHeader, FRONT_BYTES, HALVES, HEADER_LEN, RECORD_LEN};

/// Most bytes of a page-cache log.
const MOST_BYTES: u64 = 2 << 20;
/// A page-cache log takes at most one byte in this many of the store.
const SHARE: u64 = 64;
/// Below this a store has none.
const LEAST_BYTES: u64 = 256 << 10;
/// Records up to this are put together for one write.
const JOINED_BYTES: usize = 16 << 10;

/// What keeps a half from being used again.
pub(crate) enum ReuseAfter {
    /// Nothing.
    Now,
    /// Until the frame that took its records is written; every frame before it is then written, too.
    Frame(Completion<Result<FramePos, StoreError>>),
    /// Until the group with this last sequence has landed.
    Group(u64),
    /// Its records are in frames that nobody watches, up to the next group that is answered by the log.
    NextAckedGroup,
}

/// Whether a session uses a page-cache log.
#[derive(Default)]
pub(crate) enum PageCacheLogState {
    /// No kill-safe write has asked for it yet. The stream is there when an earlier session began one.
    #[default]
    NotRequested,
    /// The store is too small or too full for one, or its device has no page cache.
    Absent,
    Open(Box<PageCacheLog>),
}

/// See the module.
pub(crate) struct PageCacheLog {
    extent: RawExtent,
    header: CacheLogHeader,
    /// The half that gathers, and the bytes of it in use.
    current: usize,
    used: u64,
    reuse: [ReuseAfter; HALVES],
    /// Log bytes and operations of the buffer of deferred writes that stand in the current half.
    pub(crate) copied: usize,
    pub(crate) copied_count: u32,
    /// There are frames that nobody watches and that no half covers.
    unwatched: bool,
    joined: Vec<u8>,
    _charge: MemoryCharge,
}

impl PageCacheLog {
    /// Begins a session in `extent`: what stands there counts no more. `unwatched`: there may be frames on
    /// their way. Blocks for a flush.
    pub(crate) fn begin(
        extent: RawExtent,
        session: u64,
        budget: &MemoryAccounts,
        unwatched: bool,
    ) -> Result<PageCacheLog, StoreError> {
        let header = CacheLogHeader::new(session, extent.len_bytes());
        extent.prepare();
        extent.write(0, &header.encode())?;
        // Whatever a power loss leaves of this session is not to be read as the last one's.
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

    /// Whether everything in front of the buffer survives a kill, or is answered first.
    pub(crate) fn is_watched(&self) -> bool {
        !self.unwatched
    }

    /// Whether the current half has cache_log for what of the buffer, `buffered` bytes, does not stand in it
    /// yet, and for `bytes` more.
    pub(crate) fn fits(&self, buffered: usize, bytes: usize) -> bool {
        let more = RECORD_LEN + (buffered - self.copied) + bytes;
        self.used + more as u64 <= self.header.half_bytes.into()
    }

    /// Whether all of the buffer stands in the current half.
    pub(crate) fn covers(&self, buffered: usize) -> bool {
        self.copied == buffered
    }

    /// Whether the current half may be written to; waits for the frame that has its records. `landed`: the
    /// last sequence whose group has landed.
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

    /// A test's flaw: the half is used again whatever holds it.
    pub(crate) fn forget_reuse(&mut self) {
        self.reuse[self.current] = ReuseAfter::Now;
    }

    /// Writes what of `buffer` does not stand here yet: `count` operations from `first_seq` on. They survive
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

    /// The buffer went into the log. The other half gathers next, and this one waits for `reuse`.
    pub(crate) fn logged(&mut self, reuse: ReuseAfter) {
        match reuse {
            ReuseAfter::NextAckedGroup => self.unwatched = true,
            ReuseAfter::Group(seq) => {
                // It is answered when all frames in front of its own are written.
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

    /// Everything in the log has reached the device.
    pub(crate) fn log_written(&mut self) {
        self.reuse = [ReuseAfter::Now, ReuseAfter::Now];
        self.unwatched = false;
    }

    /// As [`PageCacheLog::log_written`], and nothing is deferred.
    pub(crate) fn all_written(&mut self) {
        self.log_written();
        (self.copied, self.copied_count, self.used) = (0, 0, 0);
    }
}

/// A page-cache log in a store that has none yet, durable when this returns; `None`: the store is too small,
/// or its device has no page cache. `stream`: the page-cache log's object, if one was made before; `new`: the
/// id of one to make.
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
            lifetime: Lifetime::Long,
            expected_bytes: 0,
            check: Check::Caller,
            label: label(ObjectRole::PageCacheLog, 0),
        };
        commit(vec![Op::Create { id, opts }], Ack::Ordered)?;
        id
    };
    let Some(extent) = objects.raw_extent(stream, bytes)? else {
        return Ok(None);
    };
    // Before the space is the page-cache log's for good: what it held before is not to be read as one.
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

/// The seed of a new store, and what tells the records of one session's page-cache log from those of all
/// others.
/// # Errors
/// The operating system has no randomness; there is no safe way to go on.
pub(crate) fn random_number() -> Result<u64, Error> {
    getrandom::u64().map_err(|error| Error::corrupt("random number of a store", error))
}
