//! Reader of a manifest, from its beginning, an edit at a time.
//!
//! Invariants
//! - Memory holds one piece of the object, or one edit where that is longer, and only the current record.
//! - The bytes of the next read are announced before they are allocated.
//!
//! Not here: the bytes of an edit (`format`), the state that edits build (`state`).

use super::format::{HEADER_LEN, ManifestEdit, parse_header};
use crate::Error;
use bytes::Bytes;
use copal_device::IoClass;
use copal_object::{ObjectId, Store};

/// Bytes of one read, unless the object's share is more.
const PIECE_BYTES: u64 = 64 << 10;
/// Most reads of a long manifest that has only short edits.
const PIECES: u64 = 64;
/// The edits of one manifest, in order.
pub(crate) struct EditReader<'a> {
    objects: &'a Store,
    id: ObjectId,
    class: IoClass,
    /// Version of the header, and the store's seed.
    pub(crate) header: (u16, u64),
    pub(crate) len: u64,
    /// Offset of the next edit.
    at: u64,
    piece: Bytes,
    piece_at: u64,
}

impl<'a> EditReader<'a> {
    /// Reads the header of object `id`. Blocks.
    /// # Errors
    /// `NoObject`; `Corrupt`: the header is damaged or of another version; or an error of the object layer.
    pub(crate) fn open(objects: &'a Store, id: ObjectId, class: IoClass) -> Result<EditReader<'a>, Error> {
        let len = objects.stat(id).ok_or(Error::NoObject { object: id.0 })?.len;
        let head = objects.read(id, 0..(HEADER_LEN as u64).min(len), class).wait()?;
        Ok(EditReader {
            objects,
            id,
            class,
            header: parse_header(&head)?,
            len,
            at: HEADER_LEN as u64,
            piece: Bytes::new(),
            piece_at: 0,
        })
    }

    /// The next edit; `None` after the last. Blocks. `room` is called with the bytes of each read before it
    /// is issued, and may refuse.
    /// # Errors
    /// `Corrupt` names the offset of an edit that does not verify.
    pub(crate) fn next(
        &mut self,
        room: &mut dyn FnMut(u64) -> Result<(), Error>,
    ) -> Result<Option<ManifestEdit>, Error> {
        if self.at >= self.len {
            return Ok(None);
        }
        let claimed = ManifestEdit::claimed_len(&self.take(ManifestEdit::HEADER_LEN as u64, room)?);
        let edit = ManifestEdit::open(self.at, &self.take(claimed, room)?)?;
        self.at += edit.len();
        Ok(Some(edit))
    }

    /// The next `len` bytes, or the remaining ones.
    fn take(&mut self, len: u64, room: &mut dyn FnMut(u64) -> Result<(), Error>) -> Result<Bytes, Error> {
        let end = self.at.saturating_add(len).min(self.len);
        if end > self.piece_at + self.piece.len() as u64 {
            let piece = PIECE_BYTES.max(self.len / PIECES);
            let until = end.max((self.at + piece).min(self.len));
            self.piece = Bytes::new();
            room(until - self.at)?;
            self.piece = self.objects.read(self.id, self.at..until, self.class).wait()?;
            self.piece_at = self.at;
        }
        let from = (self.at - self.piece_at) as usize;
        let until = ((end - self.piece_at) as usize).min(self.piece.len());
        Ok(self.piece.slice(from.min(until)..until))
    }
}
