//! Bytes of the objects: files, tombstone objects, volume records.
//!
//! Format: docs/formats/remote-object.md v1

mod block_sums;
mod object_head;
mod volume_record;

pub(crate) use block_sums::{BLOCK_BYTES, BlockSums, agree as sums_agree, blocks_around, sums_bytes};
#[cfg(test)]
pub(crate) use object_head::file_object;
#[cfg(any(test, feature = "fuzz"))]
pub(crate) use object_head::fuzz_fields;
pub(crate) use object_head::{
    ObjectHead, ObjectKind, SumsPlace, TAIL_BYTES, file_front, front_room, renamed, stream_front,
    stream_tail, tombstone_object,
};
pub(crate) use volume_record::{open_record, volume_record};
