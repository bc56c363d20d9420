//! Writing a manifest anew: the state edit by edit into objects of its own, which then take the manifest's
//! place.
//!
//! Invariants
//! - In memory is one edit of about [`EDIT_BYTES`], or one record where that is longer.
//! - Until the transaction that lets them take the place, what is written here says nothing: a crash leaves
//!   objects that the next writable opening deletes.
//!
//! Not here: when a manifest is written anew, and what becomes of it (`super`).

use super::{
    COPIES, MANIFEST,
    copy::{self, COPY},
    format::{EditWriter, ManifestRecord, header},
};
use crate::memory::budget::{MemoryAccounts, MemoryClass as Memory};
use bytes::Bytes;
use copal_object::{Ack, ObjectId, Op, Store, StoreError, Txn};

/// Where the manifest and its copy are written anew: the last ids there are, which no counter reaches.
pub(crate) const BESIDE: [ObjectId; 2] = [ObjectId(u64::MAX - 2), ObjectId(u64::MAX - 1)];
/// What they take the place of.
const PLACES: [ObjectId; 2] = [MANIFEST, COPY];
/// Length at which an edit ends.
const EDIT_BYTES: usize = 64 << 10;

/// Writes `records` anew, twice where `copied`; the length, and `copied`. Blocks.
/// # Errors
/// `NoSpace`: nothing is left of it. What else the object layer answers.
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

/// As soon as it is written, its bytes are not in memory any more.
fn commit(objects: &Store, ops: Vec<Op>) -> Result<(), StoreError> {
    let after = Vec::new();
    objects.commit(Txn::new().ops(ops).after_all(after), Ack::Written).wait().map(drop)
}

/// Steps that let what [`write`] wrote take the place of the manifest, and of its copy: there is none but
/// where `copied`.
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

/// Deletes what was written and took no place.
/// # Errors
/// What the object layer answers.
pub(crate) fn discard(objects: &Store) -> Result<(), StoreError> {
    let left = BESIDE.into_iter().filter(|id| objects.stat(*id).is_some());
    let ops: Vec<Op> = left.map(|id| Op::Delete { id }).collect();
    if ops.is_empty() { Ok(()) } else { commit(objects, ops) }
}
