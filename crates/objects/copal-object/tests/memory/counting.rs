//! Allocator that counts the requested bytes for the whole process.

use copal_device::AlignedBuf;
use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

static LIVE: AtomicU64 = AtomicU64::new(0);
static PEAK: AtomicU64 = AtomicU64::new(0);

/// Bytes allocated and not freed, with the large buffers that come from the system.
pub(crate) fn live_bytes() -> u64 {
    LIVE.load(Relaxed) + AlignedBuf::large_bytes() as u64
}

/// The largest number of bytes beyond the present ones that are allocated at a time while `work` runs.
pub(crate) fn peak_bytes_of(work: impl FnOnce()) -> u64 {
    let before = live_bytes();
    PEAK.store(before, Relaxed);
    work();
    PEAK.load(Relaxed) - before
}

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

#[expect(unsafe_code, reason = "a counting allocator takes the place of the system's allocator")]
// SAFETY: every call passes its arguments on to the system's allocator; counting changes neither.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let bytes = layout.size() as u64;
        let live = LIVE.fetch_add(bytes, Relaxed) + bytes + AlignedBuf::large_bytes() as u64;
        PEAK.fetch_max(live, Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size() as u64, Relaxed);
        // SAFETY: `at` came from `alloc` here, so from the system, with this layout.
        unsafe { System.dealloc(at, layout) }
    }
}
