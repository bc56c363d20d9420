//! Second copy of the manifest: the same bytes in another object, far from the first.
//!
//! Only the manifest says which keys a store holds, so one flipped bit must not destroy it. The copy needs
//! free space; a full store works without it.
//! Invariant
//! - An existing copy equals the manifest: each transaction that changes one changes the other alike, or
//!   deletes the copy.
//!
//! Not here: when the manifest is written, and its bytes (`super`).

use super::{MANIFEST, ObjectRole, REWRITE_ABOVE, label};
use bytes::Bytes;
use copal_device::IoClass;
use copal_object::{CreateOptions, ObjectId, ObjectKind, ObjectLifetime, Op, ReadCheck, Store};

/// Object of the second copy.
pub(super) const COPY: ObjectId = ObjectId(0);
/// Free bytes that a copy leaves to other data, besides the space to rewrite both.
const LEFT_TO_OTHERS: u64 = 4 << 20;

/// Creates one of the two objects.
pub(super) fn create(id: ObjectId) -> Op {
    create_as(id, id)
}

/// Creates object `id` with the placement of object `of`, which is one of the two.
pub(super) fn create_as(id: ObjectId, of: ObjectId) -> Op {
    let opts = CreateOptions {
        kind: ObjectKind::Plain,
        // Objects of different lifetimes are placed far apart.
        lifetime: if of == COPY { ObjectLifetime::Long } else { ObjectLifetime::Medium },
        expected_bytes: REWRITE_ABOVE,
        check: ReadCheck::Pages,
        label: label(ObjectRole::Manifest, 0),
    };
    Op::Create { id, opts }
}

/// Appends `data` to the manifest, and with `copied` to its copy.
pub(super) fn append(at: u64, data: &Bytes, copied: bool) -> impl Iterator<Item = Op> {
    let copy = copied.then_some(COPY);
    [Some(MANIFEST), copy].into_iter().flatten().map(move |id| Op::Append { id, at, data: data.clone() })
}

/// Bytes of the copy read at once.
const PIECE_BYTES: u64 = 256 << 10;

/// Whether the copy is as long as the manifest and completely readable: a copy that rots unnoticed protects
/// nothing. Blocks while it is read.
pub(super) fn stands(objects: &Store, len: u64) -> bool {
    let is_readable = |from| {
        let piece = from..len.min(from + PIECE_BYTES);
        objects.read(COPY, piece, IoClass::Foreground).wait().is_ok()
    };
    objects.stat(COPY).is_some_and(|stat| stat.len == len)
        && (0..len).step_by(PIECE_BYTES as usize).all(is_readable)
}

/// Whether there is still enough space to keep an existing copy of `len` bytes: a rewrite writes both anew
/// before it frees the old bytes. Blocks while the store grows, if it has to.
pub(super) fn keeps_its_room(objects: &Store, len: u64) -> bool {
    has(objects, 2 * len + LEFT_TO_OTHERS, true)
}

/// Whether there is enough space to make a copy of `len` bytes and to keep it for a while. With `grow` the
/// store may grow for it, which blocks.
pub(super) fn finds_room(objects: &Store, len: u64, grow: bool) -> bool {
    has(objects, 4 * len + 2 * LEFT_TO_OTHERS, grow)
}

fn has(objects: &Store, bytes: u64, grow: bool) -> bool {
    objects.space().free_bytes >= bytes || (grow && objects.reserve(bytes).is_ok())
}
