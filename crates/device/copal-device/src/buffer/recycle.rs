//! Reuse of large memory blocks, which are mapped from the system.
//!
//! A fresh block of 1 MiB pays its page faults again: 900 us measured in a virtual machine, where copying 1
//! MiB takes 70 us.
//! Blocks that are not kept go back to the system, not to an allocator. Once glibc has freed one block of
//! this size, it mixes large blocks with small ones: a process under a memory cap grew by a third of its
//! budget. Small blocks stay with the allocator.
//! The longest blocks are halves of a region that the system is asked to hold in one huge page. A disk takes a command
//! of a limited number of pieces of memory, often 128: a block of 1 MiB in scattered pages of 4 KiB is two commands,
//! one that is contiguous is one. Where the system has no huge page, the block is scattered, and all else is the same.
//!
//! Invariants
//! - At most [`BUDGET_BYTES`] are kept process-wide, and at most the smallest active limit.
//! - A kept block is initialised throughout and has no other owner.
#![expect(unsafe_code, reason = "maps raw blocks and keeps them between their uses")]

use parking_lot::Mutex;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Bytes kept at most.
pub(super) const BUDGET_BYTES: usize = 16 << 20;
const SMALLEST: usize = 64 << 10;
const LARGEST: usize = 1 << 20;
/// Size of a huge page, and of two blocks.
const REGION_BYTES: usize = 2 << 20;
const _: () = assert!(REGION_BYTES == 2 * LARGEST);
const CLASSES: usize = (LARGEST / SMALLEST).ilog2() as usize + 1;

struct KeptBlocks {
    classes: [Vec<RecycledBlock>; CLASSES],
    bytes: usize,
    /// Active limits of callers that have a memory budget.
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

/// Size of the block to allocate for `room` bytes, rounded up to a size class where blocks are kept.
pub(super) fn block_bytes(room: usize) -> usize {
    if (SMALLEST..=LARGEST).contains(&room) { room.next_power_of_two() } else { room }
}

fn class_of(block: usize) -> Option<usize> {
    let kept = block.is_power_of_two() && (SMALLEST..=LARGEST).contains(&block);
    kept.then(|| (block / SMALLEST).ilog2() as usize)
}

/// Bytes of all blocks that are mapped from the system.
static MAPPED: AtomicUsize = AtomicUsize::new(0);

/// See [`MAPPED`].
pub(super) fn mapped_bytes() -> usize {
    MAPPED.load(Relaxed)
}

/// Whether blocks of this size are mapped here, rather than allocated.
pub(super) fn serves(block: usize) -> bool {
    class_of(block).is_some()
}

/// A new block of zeros; `None` if the system has no memory for it. The other half of a region is kept if the limit
/// allows that; otherwise the block is mapped alone.
pub(super) fn map(block: usize) -> Option<NonNull<u8>> {
    let region = if block == LARGEST && may_keep(block) { map_region() } else { None };
    let Some(region) = region else {
        let start = map_pages(block)?;
        MAPPED.fetch_add(block, Relaxed);
        return Some(start);
    };
    MAPPED.fetch_add(REGION_BYTES, Relaxed);
    // SAFETY: the region is twice as long as the block.
    let other = unsafe { region.add(LARGEST) };
    if !keep(other, LARGEST) {
        // SAFETY: the half is a mapping of that length, and nothing refers to it.
        unsafe { unmap(other, LARGEST) };
    }
    Some(region)
}

/// `bytes` zero bytes from the system.
fn map_pages(bytes: usize) -> Option<NonNull<u8>> {
    let both = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address that the kernel chooses; nothing refers to it yet.
    let start = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), bytes, both, MapFlags::PRIVATE) };
    NonNull::new(start.ok()?.cast())
}

/// Returns a part of a mapping to the system. `false`: it stays mapped.
///
/// # Safety
/// `start` lies in a mapping of [`map_pages`] that has `bytes` from there on, and nothing refers to these.
unsafe fn unmap_pages(start: NonNull<u8>, bytes: usize) -> bool {
    // SAFETY: by the contract above.
    let unmapped = unsafe { rustix::mm::munmap(start.as_ptr().cast(), bytes) };
    unmapped
        .inspect_err(|error| tracing::debug!(%error, "memory could not be returned to the system"))
        .is_ok()
}

/// A mapping of [`REGION_BYTES`] at a multiple of its length, in a huge page if the system has one.
fn map_region() -> Option<NonNull<u8>> {
    let start = map_pages(2 * REGION_BYTES)?;
    // An aligned region begins less than its length behind the start, so both ends lie inside the mapping.
    let before = start.as_ptr().align_offset(REGION_BYTES);
    let region = NonNull::new(start.as_ptr().wrapping_add(before))?;
    let behind = NonNull::new(region.as_ptr().wrapping_add(REGION_BYTES))?;
    if before > 0 {
        // SAFETY: these bytes of the mapping lie before the region, and nothing refers to them.
        unsafe { unmap_pages(start, before) };
    }
    // SAFETY: these bytes of the mapping lie behind the region, and nothing refers to them.
    unsafe { unmap_pages(behind, REGION_BYTES - before) };
    // SAFETY: the advice changes no byte of the region.
    let advised = unsafe { rustix::mm::madvise(region.as_ptr().cast(), REGION_BYTES, Advice::LinuxHugepage) };
    if let Err(error) = advised {
        tracing::debug!(%error, "the system has no huge pages");
    }
    Some(region)
}

/// Returns a block of [`map`] to the system.
///
/// # Safety
/// `start` came from [`map`] with this `block`, and nothing refers to its bytes any more.
pub(super) unsafe fn unmap(start: NonNull<u8>, block: usize) {
    // SAFETY: by the contract above.
    if unsafe { unmap_pages(start, block) } {
        MAPPED.fetch_sub(block, Relaxed);
    }
}

/// A kept block of exactly `block` bytes, with its old content.
pub(super) fn take(block: usize) -> Option<NonNull<u8>> {
    let class = class_of(block)?;
    let mut kept = KEPT.lock();
    let found = kept.classes[class].pop()?;
    kept.bytes -= block;
    Some(found.0)
}

/// Whether a block of this size could be kept now.
fn may_keep(block: usize) -> bool {
    let kept = KEPT.lock();
    kept.bytes + block <= kept.limit()
}

/// Keeps a block of `block` initialised bytes. `false`: the limit is reached, and the caller must free it.
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

/// Adds a limit of `bytes` until [`allow_again`] is called with the same number.
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

/// A kept block beyond the limit, with its size; the caller frees it.
pub(super) fn take_surplus() -> Option<(NonNull<u8>, usize)> {
    let mut kept = KEPT.lock();
    if kept.bytes > kept.limit() { kept.largest() } else { None }
}

/// Bytes kept now.
pub(super) fn kept_bytes() -> usize {
    KEPT.lock().bytes
}
