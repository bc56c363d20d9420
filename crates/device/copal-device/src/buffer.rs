//! Memory that a device can read and write directly.
//!
//! Invariants
//! - The address is a multiple of [`BUFFER_ALIGNMENT`], and every byte up to the capacity is initialised,
//!   always.
//! - A buffer is owned: it moves into an I/O and comes back with it, so it cannot be freed or changed
//!   meanwhile.
//! - Blocks of 64 KiB to 1 MiB are reused ([`recycle`]) within a fixed budget. Those above 512 KiB are contiguous
//!   for a device where the system has huge pages.
#![expect(unsafe_code, reason = "allocates with an alignment that Vec cannot give")]

mod recycle;

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Alignment of every buffer in bytes: enough for the direct I/O of any device in use.
pub const BUFFER_ALIGNMENT: usize = 4096;

/// Owned, aligned, initialised bytes. Moves into an I/O and back.
pub struct AlignedBuf {
    start: NonNull<u8>,
    len: usize,
    /// Largest length: the length at creation, rounded up to the alignment.
    room: usize,
    /// Bytes allocated, all of them initialised; 0 means no allocation.
    block: usize,
}

// SAFETY: the buffer is the only owner of its bytes; sending it moves this ownership.
unsafe impl Send for AlignedBuf {}
// SAFETY: a shared reference gives read access to plain bytes only.
unsafe impl Sync for AlignedBuf {}

impl AlignedBuf {
    /// Bytes of large blocks that the process mapped from the system, not from its allocator: those in use
    /// and those kept for reuse.
    #[must_use]
    pub fn large_bytes() -> usize {
        recycle::mapped_bytes()
    }

    /// Bytes kept for the next large buffers: at most 16 MiB, and at most the smallest [`KeptLimit`].
    #[must_use]
    pub fn kept_bytes() -> usize {
        recycle::kept_bytes()
    }

    /// `len` zero bytes.
    ///
    /// # Panics
    /// When `len` exceeds `isize::MAX`; lengths from disk are bounded long before.
    #[must_use]
    pub fn zeroed(len: usize) -> AlignedBuf {
        let (mut buf, used) = AlignedBuf::with_room(len);
        if used {
            buf.set_len(buf.room);
            buf.fill(0);
            buf.set_len(len);
        }
        buf
    }

    /// `len` bytes with the old content of the block; the caller must overwrite all of them.
    ///
    /// # Panics
    /// When `len` exceeds `isize::MAX`; lengths from disk are bounded long before.
    #[must_use]
    pub fn stale(len: usize) -> AlignedBuf {
        AlignedBuf::with_room(len).0
    }

    /// A copy of `bytes`, padded with zeros to a multiple of `block` bytes.
    ///
    /// # Panics
    /// When `block` is zero.
    #[must_use]
    pub fn padded(bytes: &[u8], block: usize) -> AlignedBuf {
        let len = bytes.len().next_multiple_of(block);
        let (mut buf, used) = AlignedBuf::with_room(len);
        buf.set_len(buf.room);
        buf[..bytes.len()].copy_from_slice(bytes);
        if used {
            buf[bytes.len()..].fill(0);
        }
        buf.set_len(len);
        buf
    }

    /// A buffer of `len` bytes, and whether its block was used before. A used block has old content, a new
    /// one is zero.
    fn with_room(len: usize) -> (AlignedBuf, bool) {
        let room = len.next_multiple_of(BUFFER_ALIGNMENT);
        let block = recycle::block_bytes(room);
        let make = |start| AlignedBuf { start, len, room, block };
        if block == 0 {
            return (make(NonNull::dangling()), false);
        }
        if let Some(start) = recycle::take(block) {
            return (make(start), true);
        }
        let Some(start) = allocate(block) else { handle_alloc_error(layout_of(block)) };
        (make(start), false)
    }

    /// Bytes in the buffer.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the buffer has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes the buffer can hold without a new allocation.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.room
    }

    /// Changes the length within [`AlignedBuf::capacity`]. Bytes that are added keep their last content.
    ///
    /// # Panics
    /// When `len` exceeds the capacity.
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.room, "a buffer of {} bytes cannot hold {len}", self.room);
        self.len = len;
    }
}

/// Limit on the memory kept for large buffers, as long as the value lives. For callers with a memory budget
/// that includes this memory.
#[derive(Debug)]
pub struct KeptLimit(usize);

impl KeptLimit {
    /// Frees kept blocks beyond `bytes` at once.
    #[must_use]
    pub fn new(bytes: usize) -> KeptLimit {
        recycle::allow_at_most(bytes);
        while let Some((start, block)) = recycle::take_surplus() {
            // SAFETY: it came from `allocate` with this very size, and the list no longer keeps it.
            unsafe { free(start, block) };
        }
        KeptLimit(bytes)
    }
}

impl Drop for KeptLimit {
    fn drop(&mut self) {
        recycle::allow_again(self.0);
    }
}

/// `block` zero bytes; `block` is above zero.
fn allocate(block: usize) -> Option<NonNull<u8>> {
    if recycle::serves(block) {
        return recycle::map(block);
    }
    let layout = layout_of(block);
    // SAFETY: the layout has a size above zero.
    let start = unsafe { alloc_zeroed(layout) };
    NonNull::new(start)
}

/// # Safety
/// `start` came from [`allocate`] with this `block`, and nothing refers to its bytes any more.
unsafe fn free(start: NonNull<u8>, block: usize) {
    if recycle::serves(block) {
        // SAFETY: by the contract above `start` came from `map`.
        unsafe { recycle::unmap(start, block) };
    } else {
        // SAFETY: by the contract above `start` came from `alloc_zeroed` with this layout.
        unsafe { dealloc(start.as_ptr(), layout_of(block)) };
    }
}

fn layout_of(block: usize) -> Layout {
    match Layout::from_size_align(block, BUFFER_ALIGNMENT) {
        Ok(layout) => layout,
        Err(_) => panic!("a buffer of {block} bytes is larger than the address space"),
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        if self.block > 0 && !recycle::keep(self.start, self.block) {
            // SAFETY: `start` came from `allocate` with this very size, and nothing else owns it.
            unsafe { free(self.start, self.block) };
        }
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `start` points to `block` initialised bytes with `len <= block`, or `len` is 0. The owner
        // is borrowed.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and the exclusive borrow of the owner makes this the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for AlignedBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl std::fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AlignedBuf").field("len", &self.len).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
