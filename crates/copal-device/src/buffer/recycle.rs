//! Large blocks of memory kept for the next buffer instead of going back to the allocator.
//!
//! A fresh block of 1 MiB costs its page faults again each time: 900 us measured in a virtual machine, where copying
//! 1 MiB costs 70. Small blocks are the allocator's own business.
//!
//! Invariants
//! - At most [`BUDGET_BYTES`] are kept, process-wide.
//! - A block kept here is initialised throughout and owned by nobody else.
#![expect(unsafe_code, reason = "keeps raw blocks between their uses")]

use parking_lot::Mutex;
use std::ptr::NonNull;

/// Bytes kept at most.
pub(super) const BUDGET_BYTES: usize = 16 << 20;
const SMALLEST: usize = 64 << 10;
const LARGEST: usize = 1 << 20;
const CLASSES: usize = (LARGEST / SMALLEST).ilog2() as usize + 1;

struct Kept {
    classes: [Vec<Block>; CLASSES],
    bytes: usize,
}

/// A block without an owner.
struct Block(NonNull<u8>);

// SAFETY: the list owns its blocks alone; taking one out moves that ownership to the thread that takes it.
unsafe impl Send for Block {}

static KEPT: Mutex<Kept> = Mutex::new(Kept {
    classes: [const { Vec::new() }; CLASSES],
    bytes: 0,
});

/// The size of the block to allocate for `room` bytes: whole classes where blocks are kept.
pub(super) fn block_bytes(room: usize) -> usize {
    if (SMALLEST..=LARGEST).contains(&room) {
        room.next_power_of_two()
    } else {
        room
    }
}

fn class_of(block: usize) -> Option<usize> {
    let kept = block.is_power_of_two() && (SMALLEST..=LARGEST).contains(&block);
    kept.then(|| (block / SMALLEST).ilog2() as usize)
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
    if kept.bytes + block > BUDGET_BYTES {
        return false;
    }
    kept.bytes += block;
    kept.classes[class].push(Block(start));
    true
}

/// Bytes kept now.
pub(super) fn kept_bytes() -> usize {
    KEPT.lock().bytes
}
