//! Reading a manifest from its beginning, an edit at a time.
//!
//! Invariants
//! - In memory is one piece of the object, or one edit where that is longer, and no record but the one looked
//!   at.
//! - What is about to be read is told before it is allocated.
//!
//! Not here: the bytes of an edit (`format`), what the edits come to (`state`).

use super::format::{HEADER_LEN, ManifestEdit, parse_header};
use crate::Error;
use bytes::Bytes;
use copal_device::Class;
use copal_object::{ObjectId, Store};

/// Bytes read at once, unless a part of the whole is more.
const PIECE_BYTES: u64 = 64 << 10;
/// Reads of a long manifest that has only short edits.
const PIECES: u64 = 64;
/// The edits of one manifest, in order.
pub(crate) struct EditReader<'a> {
    objects: &'a Store,
    id: ObjectId,
    class: Class,
    /// Version of the header, and the store's seed.
    pub(crate) header: (u16, u64),
    pub(crate) len: u64,
    /// Where the next edit stands.
    at: u64,
    piece: Bytes,
    piece_at: u64,
}

impl<'a> EditReader<'a> {
    /// Reads the header of object `id`. Blocks.
    /// # Errors
    /// `NoObject`; `Corrupt`: the header is damaged or of another version; or what the object layer answers.
    pub(crate) fn open(objects: &'a Store, id: ObjectId, class: Class) -> Result<EditReader<'a>, Error> {
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

    /// The next edit; `None` behind the last. Blocks. `room` is told how many bytes are read at once, before
    /// they are, and may refuse.
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

    /// The next `len` bytes, or what is left.
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
