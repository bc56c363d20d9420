//! Large blocks of memory, from the system and kept for the next buffer.
//!
//! A fresh block of 1 MiB costs its page faults again each time: 900 us measured in a virtual machine, where
//! copying 1 MiB costs 70. Where they are not kept they go back to the system and not to an allocator:
//! glibc's mixes blocks of that size with small ones once it has seen one freed, and a process that lives
//! under a cap grew by a third of its budget. Small blocks are the allocator's own business.
//!
//! Invariants
//! - At most [`BUDGET_BYTES`] are kept, process-wide, and no more than the least that anybody allows.
//! - A block kept here is initialised throughout and owned by nobody else.
#![expect(unsafe_code, reason = "maps raw blocks and keeps them between their uses")]

use parking_lot::Mutex;
use rustix::mm::{MapFlags, ProtFlags};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Bytes kept at most.
pub(super) const BUDGET_BYTES: usize = 16 << 20;
const SMALLEST: usize = 64 << 10;
const LARGEST: usize = 1 << 20;
const CLASSES: usize = (LARGEST / SMALLEST).ilog2() as usize + 1;

struct KeptBlocks {
    classes: [Vec<RecycledBlock>; CLASSES],
    bytes: usize,
    /// What those who live under a budget allow.
    limits: Vec<usize>,
}

impl KeptBlocks {
    fn limit(&self) -> usize {
        self.limits.iter().copied().min().unwrap_or(BUDGET_BYTES)
    }

    /// Takes the largest block that is kept, with its size.
    fn largest(&mut self) -> Option<(NonNull<u8>, usize)> {
        let (class, found) =
            (0..CLASSES).rev().find_map(|class| Some((class, self.classes[class].pop()?)))?;
        let block = SMALLEST << class;
        self.bytes -= block;
        Some((found.0, block))
    }
}

/// A block without an owner.
struct RecycledBlock(NonNull<u8>);

// SAFETY: the list owns its blocks alone; taking one out moves that ownership to the thread that takes it.
unsafe impl Send for RecycledBlock {}

static KEPT: Mutex<KeptBlocks> =
    Mutex::new(KeptBlocks { classes: [const { Vec::new() }; CLASSES], bytes: 0, limits: Vec::new() });

/// The size of the block to allocate for `room` bytes: whole classes where blocks are kept.
pub(super) fn block_bytes(room: usize) -> usize {
    if (SMALLEST..=LARGEST).contains(&room) { room.next_power_of_two() } else { room }
}

fn class_of(block: usize) -> Option<usize> {
    let kept = block.is_power_of_two() && (SMALLEST..=LARGEST).contains(&block);
    kept.then(|| (block / SMALLEST).ilog2() as usize)
}

/// Bytes of all blocks that came from the system and did not go back.
static MAPPED: AtomicUsize = AtomicUsize::new(0);

/// See [`MAPPED`].
pub(super) fn mapped_bytes() -> usize {
    MAPPED.load(Relaxed)
}

/// Whether blocks of this size come from here and not from the allocator.
pub(super) fn serves(block: usize) -> bool {
    class_of(block).is_some()
}

/// A new block of zeros; `None`: the system has no memory for it.
pub(super) fn map(block: usize) -> Option<NonNull<u8>> {
    let both = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping where the kernel likes, that nothing refers to yet.
    let start = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), block, both, MapFlags::PRIVATE) };
    let start = NonNull::new(start.ok()?.cast())?;
    MAPPED.fetch_add(block, Relaxed);
    Some(start)
}

/// Gives a block of [`map`] back to the system.
///
/// # Safety
/// `start` is what [`map`] gave for `block`, and nothing refers to its bytes any more.
pub(super) unsafe fn unmap(start: NonNull<u8>, block: usize) {
    // SAFETY: by the contract above.
    if let Err(error) = unsafe { rustix::mm::munmap(start.as_ptr().cast(), block) } {
        tracing::debug!(%error, "memory could not be given back to the system");
        return;
    }
    MAPPED.fetch_sub(block, Relaxed);
}

/// A kept block of exactly `block` bytes, with whatever it last held.
pub(super) fn take(block: usize) -> Option<NonNull<u8>> {
    let class = class_of(block)?;
    let mut kept = KEPT.lock();
    let found = kept.classes[class].pop()?;
    kept.bytes -= block;
    Some(found.0)
}

/// Keeps a block of `block` initialised bytes; false when it is not wanted and has to be freed.
pub(super) fn keep(start: NonNull<u8>, block: usize) -> bool {
    let Some(class) = class_of(block) else {
        return false;
    };
    let mut kept = KEPT.lock();
    if kept.bytes + block > kept.limit() {
        return false;
    }
    kept.bytes += block;
    kept.classes[class].push(RecycledBlock(start));
    true
}

/// Allows no more than `bytes` until [`allow_again`] is called with the same.
pub(super) fn allow_at_most(bytes: usize) {
    KEPT.lock().limits.push(bytes.min(BUDGET_BYTES));
}

/// See [`allow_at_most`].
pub(super) fn allow_again(bytes: usize) {
    let mut kept = KEPT.lock();
    if let Some(at) = kept.limits.iter().position(|limit| *limit == bytes.min(BUDGET_BYTES)) {
        kept.limits.swap_remove(at);
    }
}

/// A block that is not allowed any more, with its size: the caller frees it.
pub(super) fn take_surplus() -> Option<(NonNull<u8>, usize)> {
    let mut kept = KEPT.lock();
    if kept.bytes > kept.limit() { kept.largest() } else { None }
}

/// Bytes kept now.
pub(super) fn kept_bytes() -> usize {
    KEPT.lock().bytes
}
