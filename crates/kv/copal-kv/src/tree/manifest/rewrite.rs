//! Rewrite of a manifest: the state is written edit by edit into new objects, which then replace the
//! manifest.
//!
//! Invariants
//! - Memory holds one edit of about [`EDIT_BYTES`], or one record where that is longer.
//! - Until the transaction that replaces the manifest, the new objects have no meaning: after a crash the
//!   next writable opening deletes them.
//!
//! Not here: when a manifest is rewritten, and how the result is used (`super`).

use super::{
    COPIES, MANIFEST,
    copy::{self, COPY},
    format::{EditWriter, ManifestRecord, header},
};
use crate::memory::budget::{MemoryAccounts, MemoryClass as Memory};
use bytes::Bytes;
use copal_object::{Ack, ObjectId, Op, Store, StoreError, Txn};

/// Objects of the rewritten manifest and its copy: the last possible ids, which no counter reaches.
pub(crate) const BESIDE: [ObjectId; 2] = [ObjectId(u64::MAX - 2), ObjectId(u64::MAX - 1)];
/// Objects that they replace.
const PLACES: [ObjectId; 2] = [MANIFEST, COPY];
/// Length at which an edit ends.
const EDIT_BYTES: usize = 64 << 10;

/// Writes `records` to new objects, twice with `copied`; returns the length, and `copied`. Blocks.
/// # Errors
/// `NoSpace`: the new objects are deleted again. Other errors of the object layer.
pub(super) fn write(
    objects: &Store,
    budget: &MemoryAccounts,
    seed: u64,
    records: impl Iterator<Item = ManifestRecord>,
    copied: bool,
) -> Result<(u64, bool), StoreError> {
    discard(objects)?;
    let written = write_edits(objects, budget, seed, records, copied);
    if written.is_err() {
        discard(objects)?;
    }
    written.map(|len| (len, copied))
}

fn write_edits(
    objects: &Store,
    budget: &MemoryAccounts,
    seed: u64,
    records: impl Iterator<Item = ManifestRecord>,
    copied: bool,
) -> Result<u64, StoreError> {
    let ids = || BESIDE.into_iter().take(1 + usize::from(copied));
    let creates = ids().zip(PLACES).map(|(id, of)| copy::create_as(id, of));
    commit(objects, creates.collect())?;
    let mut len = 0;
    let mut append = |bytes: Vec<u8>| {
        let _piece = budget.charge(Memory::Manifest, COPIES * bytes.len() as u64);
        let (at, data) = (len, Bytes::from(bytes));
        len += data.len() as u64;
        let append = |id| Op::Append { id, at, data: data.clone() };
        commit(objects, ids().map(append).collect()).map(|()| len)
    };
    let mut at = append(header(seed))?;
    let mut edit = EditWriter::default();
    for record in records {
        edit.add(&record);
        if edit.len() >= EDIT_BYTES {
            at = append(std::mem::take(&mut edit).end(at))?;
        }
    }
    let last = edit.end(at);
    if last.is_empty() { Ok(at) } else { append(last) }
}

/// Returns once the bytes are written, so that they are no longer in memory.
fn commit(objects: &Store, ops: Vec<Op>) -> Result<(), StoreError> {
    let after = Vec::new();
    objects.commit(Txn::new().ops(ops).after_all(after), Ack::Written).wait().map(drop)
}

/// Operations that replace the manifest by the output of [`write`], and its copy as well with `copied`;
/// without, there is no copy afterwards.
pub(super) fn take_place(objects: &Store, copied: bool) -> Vec<Op> {
    let mut ops = vec![Op::Delete { id: MANIFEST }];
    if objects.stat(COPY).is_some() {
        ops.push(Op::Delete { id: COPY });
    }
    for (from, to) in BESIDE.into_iter().zip(PLACES).take(1 + usize::from(copied)) {
        ops.extend([Op::Clone { from, to }, Op::Delete { id: from }]);
    }
    ops
}

/// Deletes the output of a rewrite that did not replace the manifest.
/// # Errors
/// Errors of the object layer.
pub(crate) fn discard(objects: &Store) -> Result<(), StoreError> {
    let left = BESIDE.into_iter().filter(|id| objects.stat(*id).is_some());
    let ops: Vec<Op> = left.map(|id| Op::Delete { id }).collect();
    if ops.is_empty() { Ok(()) } else { commit(objects, ops) }
}
