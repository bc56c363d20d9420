//! The manifest's second copy: the same bytes in another object, far from the first.
//!
//! Nothing else says which keys a store holds, so one flipped bit must not take it. The copy is a convenience
//! of a store that has room: a full one goes on without it.
//! Invariant
//! - A copy that exists says what the manifest says: each transaction that changes one changes the other
//!   alike, or deletes the copy.
//!
//! Not here: when the bytes are written and what they are (`super`).

use super::{MANIFEST, ObjectRole, REWRITE_ABOVE, label};
use bytes::Bytes;
use copal_device::Class;
use copal_object::{Check, CreateOptions, Lifetime, ObjectId, ObjectKind, Op, Store};

/// Where the manifest stands once more.
pub(super) const COPY: ObjectId = ObjectId(0);
/// Free bytes that a copy leaves to others, beside what rewriting both takes.
const LEFT_TO_OTHERS: u64 = 4 << 20;

/// Makes one of the two objects.
pub(super) fn create(id: ObjectId) -> Op {
    create_as(id, id)
}

/// Makes object `id`, which lies where object `of` of the two would.
pub(super) fn create_as(id: ObjectId, of: ObjectId) -> Op {
    let opts = CreateOptions {
        kind: ObjectKind::Plain,
        // What is expected to live differently lies elsewhere.
        lifetime: if of == COPY { Lifetime::Long } else { Lifetime::Medium },
        expected_bytes: REWRITE_ABOVE,
        check: Check::Pages,
        label: label(ObjectRole::Manifest, 0),
    };
    Op::Create { id, opts }
}

/// Appends `data` to the manifest, and to its copy where that takes part.
pub(super) fn append(at: u64, data: &Bytes, copied: bool) -> impl Iterator<Item = Op> {
    let copy = copied.then_some(COPY);
    [Some(MANIFEST), copy].into_iter().flatten().map(move |id| Op::Append { id, at, data: data.clone() })
}

/// Bytes of the copy read at once.
const PIECE_BYTES: u64 = 256 << 10;

/// Whether the copy is as long as the manifest and every byte of it can be read: two copies of which one rots
/// unnoticed are one. Blocks while it is read.
pub(super) fn stands(objects: &Store, len: u64) -> bool {
    let is_readable = |from| {
        let piece = from..len.min(from + PIECE_BYTES);
        objects.read(COPY, piece, Class::Foreground).wait().is_ok()
    };
    objects.stat(COPY).is_some_and(|stat| stat.len == len)
        && (0..len).step_by(PIECE_BYTES as usize).all(is_readable)
}

/// Whether a copy of `len` bytes, which is there, still has its room: a rewrite writes both anew before the
/// old bytes are free. Blocks while the store grows, if it has to.
pub(super) fn keeps_its_room(objects: &Store, len: u64) -> bool {
    has(objects, 2 * len + LEFT_TO_OTHERS, true)
}

/// Whether there is room to make a copy of `len` bytes, and to keep it for a while. `grow`: by growing, too,
/// which blocks.
pub(super) fn finds_room(objects: &Store, len: u64, grow: bool) -> bool {
    has(objects, 4 * len + 2 * LEFT_TO_OTHERS, grow)
}

fn has(objects: &Store, bytes: u64, grow: bool) -> bool {
    objects.space().free_bytes >= bytes || (grow && objects.reserve(bytes).is_ok())
}
