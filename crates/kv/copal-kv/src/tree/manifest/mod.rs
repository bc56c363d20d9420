//! The manifest: the object that lists the tables and value objects of the store.
//!
//! It is object 1 of the object store, with a copy in object 0 while there is space. Above 4 MiB it is
//! rewritten: piece by piece into other objects, which replace it in one transaction.
//! Invariants
//! - A rewrite needs only space: its memory does not grow with the state, so the manifest's length is
//!   bounded.
//! - The in-memory [`ManifestState`] changes only after the transaction with its edit was accepted (KV-17).

mod copy;
pub(crate) mod format;
pub(crate) mod read;
mod records;
pub(crate) mod rewrite;
pub(crate) mod state;

use crate::{
    Error,
    memory::budget::{MemoryAccounts, MemoryCharge, MemoryClass as Memory},
    session::poison::PoisonFlag,
};
use bytes::Bytes;
use copal_device::IoClass;
use copal_object::{Ack, ObjectId, Op, Store, StoreError, Txn};
use format::{ManifestRecord, encode_edit, header};
use read::EditReader;
use state::ManifestState;

/// Object of the manifest.
pub(crate) const MANIFEST: ObjectId = ObjectId(1);
const REWRITE_ABOVE: u64 = 4 << 20;
/// Least bytes that an early rewrite must save.
const GAINED_AT_LEAST: u64 = 1 << 20;
/// Approximate limit of state bytes per byte of an edit, for tables with short keys.
const STATE_PER_BYTE: u64 = 8;
/// Copies of a piece while it is read: a piece that lies in several places of the device is assembled from
/// copies.
const COPIES: u64 = 2;

/// State of the second copy in this session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ManifestCopy {
    /// It exists, and changes with the manifest.
    Yes,
    /// It does not exist, and this session has not looked for space yet.
    NotYet,
    /// It does not exist, for lack of space.
    NoRoom,
}

/// The manifest on disk and the state that it describes.
pub(crate) struct Manifest {
    pub(crate) state: ManifestState,
    /// Seed of the filters' hash, chosen at the creation of the store.
    pub(crate) seed: u64,
    len: u64,
    /// Length beyond which the next edit becomes a rewrite: at least twice the length after the last rewrite.
    /// 0: the next edit must be a rewrite, or fails.
    rewrite_above: u64,
    /// Length from which a rewrite is retried after one that lacked space.
    retry_from: u64,
    /// State of the second copy.
    copy: ManifestCopy,
    /// Charged for the bytes of a rewrite.
    budget: MemoryAccounts,
}

impl Manifest {
    /// Reads the manifest, and charges its state to `budget`. `None`: the object store holds no key-value
    /// store yet. Blocks.
    /// # Errors
    /// `Corrupt`; `OverBudget`: the state does not fit; or an error of the object layer.
    pub(crate) fn open(
        objects: &Store,
        budget: &MemoryAccounts,
    ) -> Result<Option<(Manifest, MemoryCharge)>, Error> {
        if objects.stat(MANIFEST).is_none() {
            return Ok(None);
        }
        let once = || Manifest::read(objects, MANIFEST, budget);
        // A device that fails once is not damaged.
        let may_pass =
            |error: &Error| error.is_corruption() || matches!(error, Error::Object(StoreError::Device(_)));
        let read = once().or_else(|error| if may_pass(&error) { once() } else { Err(error) });
        let read = read.or_else(|error| Manifest::read_copy(objects, budget, error));
        let read = read.map_err(|error| match error {
            Error::Object(StoreError::Corrupt { range, .. }) => Error::corrupt(
                format!("the manifest (object {})", MANIFEST.0),
                format!("bytes {} to {} cannot be read", range.start, range.end),
            ),
            error => error,
        });
        read.map(Some)
    }

    /// Reads the copy after `error` of the manifest itself; the next edit rewrites both.
    /// # Errors
    /// `error`, unless the copy is complete.
    fn read_copy(
        objects: &Store,
        budget: &MemoryAccounts,
        error: Error,
    ) -> Result<(Manifest, MemoryCharge), Error> {
        let of_medium =
            |error: &Error| matches!(error, Error::Object(StoreError::Device(error)) if !error.is_passing());
        let unreadable = error.is_corruption() || of_medium(&error);
        let len = |id| objects.stat(id).map(|stat| stat.len);
        if !unreadable || len(MANIFEST) != len(copy::COPY) {
            return Err(error);
        }
        let Ok((mut manifest, charge)) = Manifest::read(objects, copy::COPY, budget) else {
            return Err(error);
        };
        tracing::warn!(%error, "the manifest is damaged and was read from its copy; the next write replaces both");
        manifest.rewrite_above = 0;
        Ok((manifest, charge))
    }

    fn read(
        objects: &Store,
        id: ObjectId,
        budget: &MemoryAccounts,
    ) -> Result<(Manifest, MemoryCharge), Error> {
        let mut edits = EditReader::open(objects, id, IoClass::Foreground)?;
        let mut state = ManifestState::default();
        let mut charge = budget.charge(Memory::Manifest, 0);
        let mut room = |state: &ManifestState, piece: u64| {
            // Refuse only contents that fit no session: a state that does not fit, or an edit longer than the
            // total.
            let held = state.heap_bytes();
            charge.set(held.max(piece));
            budget.check_used()?;
            // Caches are evicted for the copies of the piece and for the growing state. The state is counted
            // when all of it is known.
            charge.set(held + (COPIES + STATE_PER_BYTE) * piece);
            Ok(())
        };
        while let Some(edit) = edits.next(&mut |bytes| room(&state, bytes))? {
            edit.records().for_each(|record| state.apply(&record));
        }
        if let Some(table) = state.overlapping_table() {
            let table = table.0;
            let what = format!("the manifest (object {})", id.0);
            return Err(Error::corrupt(what, format!("table {table} overlaps another table of its run")));
        }
        let ((version, seed), len) = (edits.header, edits.len);
        let copy = if copy::stands(objects, len) { ManifestCopy::Yes } else { ManifestCopy::NotYet };
        drop(edits);
        charge.set(state.heap_bytes());
        budget.check_used()?;
        let manifest = Manifest {
            state,
            seed,
            len,
            copy,
            // The header of an older version does not allow all new edits, so the next edit is a rewrite.
            rewrite_above: if version < format::FORMAT.version { 0 } else { REWRITE_ABOVE },
            retry_from: 0,
            budget: budget.clone(),
        };
        Ok((manifest, charge))
    }

    /// Creates the manifest of a new store, durably.
    /// # Errors
    /// Errors of the object layer.
    pub(crate) fn create(objects: &Store, seed: u64, budget: &MemoryAccounts) -> Result<Manifest, Error> {
        let bytes = Bytes::from(header(seed));
        let len = bytes.len() as u64;
        let ops = [MANIFEST, copy::COPY].map(copy::create).into_iter();
        let ops = ops.chain(copy::append(0, &bytes, true));
        objects.commit(Txn::new().ops(ops), Ack::Durable).wait()?;
        let state = ManifestState {
            next_object: MANIFEST.0 + 1,
            next_run: 1,
            next_keyspace: 1,
            ..ManifestState::default()
        };
        Ok(Manifest {
            state,
            seed,
            len,
            copy: ManifestCopy::Yes,
            rewrite_above: REWRITE_ABOVE,
            retry_from: 0,
            budget: budget.clone(),
        })
    }

    /// Whether the next commit should rewrite the whole state. Blocks while the store grows for a copy.
    fn rewrite_is_due(&mut self, objects: &Store) -> bool {
        let long = self.len >= self.retry_from && (self.len > self.rewrite_above || self.is_crowded(objects));
        let lacks_copy = match self.copy {
            ManifestCopy::Yes => false,
            ManifestCopy::NotYet => copy::finds_room(objects, self.state.encoded_bytes(), true),
            ManifestCopy::NoRoom => copy::finds_room(objects, self.state.encoded_bytes(), long),
        };
        if self.copy != ManifestCopy::Yes {
            self.copy = if lacks_copy { ManifestCopy::NotYet } else { ManifestCopy::NoRoom };
        }
        long || lacks_copy
    }

    /// Whether a rewrite saves enough and there will soon be no space for one: later, a full store could not
    /// rewrite.
    fn is_crowded(&self, objects: &Store) -> bool {
        let state = self.state.encoded_bytes();
        let gained = self.len.saturating_sub(state);
        gained > GAINED_AT_LEAST.max(state / 4) && objects.space().free_bytes < 3 * state
    }

    /// Writes the whole state to new objects; returns its length there, and whether a copy was written as
    /// well. `None`: there is no space, so the rewrite is retried after the manifest has grown by another
    /// quarter.
    /// # Errors
    /// `NoSpace`: there is no space, and the present manifest may not be extended. Any other error poisons
    /// the store.
    fn write_beside(
        &mut self,
        objects: &Store,
        poison: &PoisonFlag,
        copied: bool,
    ) -> Result<Option<(u64, bool)>, Error> {
        let write = |copied| rewrite::write(objects, &self.budget, self.seed, self.state.records(), copied);
        let mut written = write(copied);
        if copied && matches!(written, Err(StoreError::NoSpace { .. })) {
            written = write(false).map(|(len, _)| (len, false));
        }
        match written {
            Ok(written) => Ok(Some(written)),
            Err(StoreError::NoSpace { .. }) if self.rewrite_above > 0 => {
                self.retry_from = self.len + self.len / 4;
                Ok(None)
            }
            Err(error) => Err(poison.failed_write(error)),
        }
    }

    /// Operations that replace the manifest by the new objects and append `records`, and the resulting
    /// length.
    fn replace(
        &self,
        objects: &Store,
        written: u64,
        records: &[ManifestRecord],
        copied: bool,
    ) -> (Vec<Op>, u64) {
        let edit = Bytes::from(encode_edit(written, records));
        let len = written + edit.len() as u64;
        let mut ops = rewrite::take_place(objects, copied);
        ops.extend(copy::append(written, &edit, copied));
        (ops, len)
    }

    /// Operations that append `records`, and the resulting length. With `copied` they extend the copy as
    /// well; otherwise they delete an existing one.
    fn extend(&self, objects: &Store, records: &[ManifestRecord], copied: bool) -> (Vec<Op>, u64) {
        let edit = Bytes::from(encode_edit(self.len, records));
        let len = self.len + edit.len() as u64;
        let mut ops: Vec<Op> = copy::append(self.len, &edit, copied).collect();
        if !copied && objects.stat(copy::COPY).is_some() {
            ops.push(Op::Delete { id: copy::COPY });
        }
        (ops, len)
    }

    /// Commits `ops` together with an edit of `records`, and changes the state only if that succeeded.
    /// # Errors
    /// `NoSpace`, `TooLarge`: nothing happened. `NumbersUsedUp` and any other error poison the store.
    pub(crate) fn commit(
        &mut self,
        objects: &Store,
        poison: &PoisonFlag,
        mut ops: Vec<Op>,
        records: &[ManifestRecord],
        ack: Ack,
    ) -> Result<(), Error> {
        if !format::are_readable(records) {
            // An id, a run or a generation exceeds the largest number: logged data stays, nothing further is
            // written.
            poison.set(&Error::NumbersUsedUp.to_string());
            return Err(Error::NumbersUsedUp);
        }
        let due = self.rewrite_is_due(objects);
        let copied = match self.copy {
            ManifestCopy::Yes => copy::keeps_its_room(objects, self.len),
            ManifestCopy::NotYet => due,
            ManifestCopy::NoRoom => false,
        };
        let beside = if due { self.write_beside(objects, poison, copied)? } else { None };
        let ((steps, len), copied) = match beside {
            Some((written, copied)) => (self.replace(objects, written, records, copied), copied),
            None => {
                let copied = copied && self.copy == ManifestCopy::Yes;
                (self.extend(objects, records, copied), copied)
            }
        };
        ops.extend(steps);
        let committed = objects.commit(Txn::new().ops(ops), ack).wait();
        if let Err(error) = committed {
            // Refused before anything was written.
            rewrite::discard(objects).map_err(|error| poison.failed_write(error))?;
            if beside.is_some() {
                // The next attempt appends, which takes less space.
                self.retry_from = self.len + self.len / 4;
            }
            return Err(match error {
                StoreError::TooLarge => Error::Object(error),
                error => poison.failed_write(error),
            });
        }
        if beside.is_some() {
            self.rewrite_above = REWRITE_ABOVE.max(2 * len);
            self.retry_from = 0;
        }
        self.len = len;
        self.copy = match (copied, self.copy) {
            (true, _) => ManifestCopy::Yes,
            (false, _) => ManifestCopy::NoRoom,
        };
        records.iter().for_each(|record| self.state.apply(record));
        Ok(())
    }
}

/// Role of an object; part of its label, so that an opening can identify the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ObjectRole {
    Manifest,
    Log,
    Table,
    Value,
    PageCacheLog,
}

impl std::fmt::Display for ObjectRole {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            ObjectRole::Manifest => "manifest",
            ObjectRole::Log => "log",
            ObjectRole::Table => "table",
            ObjectRole::Value => "value object",
            ObjectRole::PageCacheLog => "page-cache log",
        })
    }
}

impl ObjectRole {
    /// The role as one word.
    pub(crate) fn word(self) -> &'static str {
        match self {
            ObjectRole::Manifest => "manifest",
            ObjectRole::Log => "log",
            ObjectRole::Table => "table",
            ObjectRole::Value => "value-object",
            ObjectRole::PageCacheLog => "page-cache-log",
        }
    }

    const ALL: [(ObjectRole, &'static [u8; 8]); 5] = [
        (ObjectRole::Manifest, b"kv manif"),
        (ObjectRole::Log, b"kv log\0\0"),
        (ObjectRole::Table, b"kv table"),
        (ObjectRole::Value, b"kv value"),
        (ObjectRole::PageCacheLog, b"kv wait\0"),
    ];

    fn name(self) -> &'static [u8; 8] {
        ObjectRole::ALL.iter().find(|(role, _)| *role == self).map_or(b"kv manif", |(_, name)| name)
    }
}

/// Label of an object: its role, and the generation of a log (0 otherwise).
pub(crate) fn label(role: ObjectRole, generation: u64) -> [u8; 16] {
    let mut label = [0; 16];
    label[..8].copy_from_slice(role.name());
    label[8..].copy_from_slice(&generation.to_le_bytes());
    label
}

/// Decodes a label; `None`: the object does not belong to the engine.
pub(crate) fn parse_label(label: &[u8; 16]) -> Option<(ObjectRole, u64)> {
    let (name, generation) = label.split_at(8);
    let (role, _) = ObjectRole::ALL.into_iter().find(|(_, known)| known[..] == *name)?;
    Some((role, u64::from_le_bytes(generation.try_into().ok()?)))
}

#[cfg(test)]
mod tests;
