//! Memory for the pieces of packs, which the store writes while the next one is filled.
//!
//! A piece whose memory the store has given back is filled anew: otherwise the kernel would have to clear new memory for
//! each byte of a backup.

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use std::collections::VecDeque;

/// Bytes that a store writes with one command, without a copy.
pub(crate) const PIECE_BYTES: usize = 4 << 20;
/// Pieces whose memory is kept.
const KEPT: usize = 2;

/// Pieces that were given to the store, oldest first.
#[derive(Default)]
pub(crate) struct PieceBuffers(Mutex<VecDeque<Bytes>>);

impl PieceBuffers {
    /// An empty buffer with room for a piece.
    pub(crate) fn next(&self) -> BytesMut {
        let oldest = self.0.lock().pop_front_if(|piece| piece.is_unique());
        let mut buffer = match oldest.map(Bytes::try_into_mut) {
            Some(Ok(buffer)) => buffer,
            _ => BytesMut::with_capacity(PIECE_BYTES),
        };
        buffer.clear();
        buffer
    }

    /// Notes a piece that was given to the store.
    pub(crate) fn note(&self, piece: Bytes) {
        let mut given = self.0.lock();
        given.push_back(piece);
        if given.len() > KEPT {
            given.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again_once_the_store_has_given_it_back() {
        let buffers = PieceBuffers::default();
        let piece = |byte| {
            let mut buffer = buffers.next();
            assert!(buffer.is_empty() && buffer.capacity() >= PIECE_BYTES);
            buffer.resize(PIECE_BYTES, byte);
            let piece = buffer.freeze();
            buffers.note(piece.clone());
            piece
        };
        let first = piece(1);
        let second = piece(2);
        assert_ne!(first.as_ptr(), second.as_ptr(), "the store still has the first");
        let place = first.as_ptr();
        drop(first);
        let third = piece(3);
        assert_eq!(third.as_ptr(), place);
        assert!(second.iter().all(|&byte| byte == 2) && third.iter().all(|&byte| byte == 3));
        // A store that keeps everything costs only memory.
        let more: Vec<Bytes> = (4..8).map(piece).collect();
        assert!(more.iter().zip(4..).all(|(piece, byte)| piece.iter().all(|&is| is == byte)));
        assert_eq!(buffers.0.lock().len(), KEPT);
    }
}
