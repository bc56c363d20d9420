//! Memory that a device may read and write directly.
//!
//! Invariants
//! - The address is a multiple of [`BUFFER_ALIGNMENT`] and every byte is initialised, always.
//! - A buffer is owned: it moves into an I/O and comes back with it, so no one can free or touch it meanwhile.
#![expect(unsafe_code, reason = "allocates with an alignment that Vec cannot give")]

use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Alignment of every buffer in bytes: enough for the direct I/O of any device in use.
pub const BUFFER_ALIGNMENT: usize = 4096;

/// Owned, aligned, zero-initialised bytes. Moves into an I/O and back.
pub struct AlignedBuf {
    start: NonNull<u8>,
    len: usize,
    /// Bytes allocated: `len` rounded up to the alignment; 0 means no allocation.
    room: usize,
}

// SAFETY: the buffer owns its bytes and shares them with nobody; sending it moves the only owner.
unsafe impl Send for AlignedBuf {}
// SAFETY: a shared reference gives read access to plain bytes only.
unsafe impl Sync for AlignedBuf {}

impl AlignedBuf {
    /// `len` zero bytes.
    ///
    /// # Panics
    /// When `len` exceeds `isize::MAX`; lengths from disk are bounded long before.
    #[must_use]
    pub fn zeroed(len: usize) -> AlignedBuf {
        if len == 0 {
            return AlignedBuf {
                start: NonNull::dangling(),
                len,
                room: 0,
            };
        }
        let layout = layout_of(len.next_multiple_of(BUFFER_ALIGNMENT));
        // SAFETY: the layout has a size above zero.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else {
            handle_alloc_error(layout)
        };
        AlignedBuf {
            start,
            len,
            room: layout.size(),
        }
    }

    /// A copy of `bytes`, padded with zeros to a multiple of `block` bytes.
    ///
    /// # Panics
    /// When `block` is zero.
    #[must_use]
    pub fn padded(bytes: &[u8], block: usize) -> AlignedBuf {
        let len = bytes.len().next_multiple_of(block);
        if len == 0 {
            return AlignedBuf::zeroed(0);
        }
        let layout = layout_of(len.next_multiple_of(BUFFER_ALIGNMENT));
        // SAFETY: the layout has a size above zero.
        let start = unsafe { alloc(layout) };
        let Some(start) = NonNull::new(start) else {
            handle_alloc_error(layout)
        };
        // SAFETY: `bytes.len() <= len <= layout.size()` bytes are writable at `start`; fresh memory overlaps nothing.
        unsafe {
            start
                .as_ptr()
                .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
        };
        // SAFETY: one past the bytes just written is still inside the allocation, or at its end.
        let rest = unsafe { start.as_ptr().add(bytes.len()) };
        // SAFETY: from `rest` to the end of the allocation; now every byte of it is initialised.
        unsafe { rest.write_bytes(0, layout.size() - bytes.len()) };
        AlignedBuf {
            start,
            len,
            room: layout.size(),
        }
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

    /// Changes the length within [`AlignedBuf::capacity`]; bytes that come into view keep what they last held.
    ///
    /// # Panics
    /// When `len` exceeds the capacity.
    pub fn set_len(&mut self, len: usize) {
        assert!(
            len <= self.room,
            "a buffer of {} bytes cannot hold {len}",
            self.room
        );
        self.len = len;
    }
}

fn layout_of(room: usize) -> Layout {
    match Layout::from_size_align(room, BUFFER_ALIGNMENT) {
        Ok(layout) => layout,
        Err(_) => panic!("a buffer of {room} bytes is larger than the address space"),
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        if self.room > 0 {
            // SAFETY: `start` came from `alloc_zeroed` with this very layout and is freed once.
            unsafe { dealloc(self.start.as_ptr(), layout_of(self.room)) };
        }
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `len <= room` initialised bytes stand at `start`, or `len` is 0; the owner is borrowed.
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
        f.debug_struct("AlignedBuf")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_and_zero_at_any_length() {
        for len in [0, 1, 511, 512, 4096, 4097, 1 << 20] {
            let mut buf = AlignedBuf::zeroed(len);
            assert_eq!(buf.len(), len);
            assert!(buf.iter().all(|&byte| byte == 0));
            if len > 0 {
                assert_eq!(buf.as_ptr() as usize % BUFFER_ALIGNMENT, 0);
                buf[len - 1] = 7;
                assert_eq!(buf[len - 1], 7);
            }
        }
    }

    #[test]
    fn padding_is_zero_up_to_the_block() {
        let buf = AlignedBuf::padded(b"abc", 512);
        assert_eq!(&buf[..3], b"abc");
        assert_eq!(buf.len(), 512);
        assert!(buf[3..].iter().all(|&byte| byte == 0));
        assert!(AlignedBuf::padded(b"", 512).is_empty());
        for len in [1, 511, 512, 513, 4095, 4096, 4097, 10_000] {
            let bytes: Vec<u8> = (0..len).map(|at| at as u8 | 1).collect();
            let mut buf = AlignedBuf::padded(&bytes, 512);
            assert_eq!(buf.len(), usize::next_multiple_of(len as usize, 512));
            buf.set_len(buf.capacity());
            assert_eq!(buf[..bytes.len()], bytes[..]);
            assert!(buf[bytes.len()..].iter().all(|&byte| byte == 0));
        }
    }

    #[test]
    #[should_panic(expected = "cannot hold")]
    fn the_length_stays_within_the_allocation() {
        AlignedBuf::zeroed(10).set_len(4097);
    }
}
