//! The manifest: the object that says which tables and value objects make up the store.
//!
//! Object 1 of the object store. Above 4 MiB it is rewritten in place, in one transaction.
//! Invariants
//! - State in memory changes only after the transaction that carries its edit was accepted.

pub(crate) mod format;
pub(crate) mod read;
pub(crate) mod state;

use crate::{
    Error,
    budget::{Charge, Class as Memory, MemoryBudget},
    poison::Poison,
};
use bytes::Bytes;
use copal_device::Class;
use copal_object::{Ack, Check, CreateOptions, Lifetime, ObjectId, ObjectKind, Op, Store, StoreError, Txn};
use format::{EditWriter, Record, encode_edit, header};
use read::Edits;
use state::State;

/// Where the manifest lives.
pub(crate) const MANIFEST: ObjectId = ObjectId(1);
const REWRITE_ABOVE: u64 = 4 << 20;
/// Most bytes of state that a byte of an edit makes, about: tables with short keys.
const STATE_PER_BYTE: u64 = 8;
/// Length at which an edit of a rewrite ends.
const EDIT_BYTES: usize = 64 << 10;
/// A piece that lies in several places of the device is put together from copies.
const COPIES: u64 = 2;

/// The manifest as it stands on disk and the state it describes.
pub(crate) struct Manifest {
    pub(crate) state: State,
    /// Seed of the filters' hash, chosen when the store was made.
    pub(crate) seed: u64,
    len: u64,
    /// Length from which the next edit becomes a rewrite: never less than twice what a rewrite left.
    rewrite_above: u64,
    /// Pays for the bytes of a rewrite.
    budget: MemoryBudget,
}

impl Manifest {
    /// Reads the manifest, and charges its state to `budget`. `None`: the object store holds no key-value store yet.
    /// Blocks.
    /// # Errors
    /// `Corrupt`; `OverBudget`: the state has no room; or what the object layer answers.
    pub(crate) fn open(objects: &Store, budget: &MemoryBudget) -> Result<Option<(Manifest, Charge)>, Error> {
        if objects.stat(MANIFEST).is_none() {
            return Ok(None);
        }
        let once = || Manifest::read(objects, budget);
        // A device that errs once is not damaged.
        let read = once().or_else(|error| if error.is_corruption() { once() } else { Err(error) });
        let read = read.map_err(|error| match error {
            Error::Object(StoreError::Corrupt { range, .. }) => Error::corrupt(
                format!("the manifest (object {})", MANIFEST.0),
                format!("bytes {} to {} cannot be read", range.start, range.end),
            ),
            error => error,
        });
        read.map(Some)
    }

    fn read(objects: &Store, budget: &MemoryBudget) -> Result<(Manifest, Charge), Error> {
        let mut edits = Edits::open(objects, MANIFEST, Class::Foreground)?;
        let mut state = State::default();
        let mut charge = budget.charge(Memory::Manifest, 0);
        let mut room = |state: &State, piece: u64| {
            // Refused is what no session could hold: a state that has no room, or an edit longer than all there is.
            let held = state.heap_bytes();
            charge.set(held.max(piece));
            budget.check_used()?;
            // For the copies, and the state that grows while it is read from them, caches give way. It is counted when
            // all is known.
            charge.set(held + (COPIES + STATE_PER_BYTE) * piece);
            Ok(())
        };
        while let Some(edit) = edits.next(&mut |bytes| room(&state, bytes))? {
            edit.records().for_each(|record| state.apply(&record));
        }
        let ((version, seed), len) = (edits.header, edits.len);
        drop(edits);
        charge.set(state.heap_bytes());
        budget.check_used()?;
        let manifest = Manifest {
            state,
            seed,
            len,
            // An older version's header does not promise what new edits may say: the next edit rewrites it.
            rewrite_above: if version < format::FORMAT.version {
                0
            } else {
                REWRITE_ABOVE
            },
            budget: budget.clone(),
        };
        Ok((manifest, charge))
    }

    /// Makes the manifest of a new store, durably.
    /// # Errors
    /// What the object layer answers.
    pub(crate) fn create(objects: &Store, seed: u64, budget: &MemoryBudget) -> Result<Manifest, Error> {
        let bytes = Bytes::from(header(seed));
        let opts = CreateOptions {
            kind: ObjectKind::Plain,
            lifetime: Lifetime::Medium,
            expected_bytes: REWRITE_ABOVE,
            check: Check::Pages,
            label: label(Role::Manifest, 0),
        };
        let len = bytes.len() as u64;
        let ops = vec![
            Op::Create { id: MANIFEST, opts },
            Op::Append {
                id: MANIFEST,
                at: 0,
                data: bytes,
            },
        ];
        objects
            .commit(
                Txn {
                    ops,
                    ..Txn::default()
                },
                Ack::Durable,
            )
            .wait()?;
        let state = State {
            next_object: MANIFEST.0 + 1,
            next_run: 1,
            next_keyspace: 1,
            ..State::default()
        };
        Ok(Manifest {
            state,
            seed,
            len,
            rewrite_above: REWRITE_ABOVE,
            budget: budget.clone(),
        })
    }

    /// What a rewrite takes, if the next commit is to write the whole state anew: it can be put off while there is no room
    /// for its bytes, unless the header is of an older version.
    fn room_to_rewrite(&self) -> Option<Charge> {
        if self.len <= self.rewrite_above {
            return None;
        }
        let bytes = COPIES * self.state.encoded_bytes();
        let charge = self.budget.charge(Memory::Manifest, bytes);
        (self.rewrite_above == 0 || self.budget.check().is_ok()).then_some(charge)
    }

    /// Commits `ops` together with an edit of `records`; then, and only then, the state follows.
    /// # Errors
    /// `NoSpace`, `TooLarge`: nothing happened. `NumbersUsedUp` and anything else poisons.
    pub(crate) fn commit(
        &mut self,
        objects: &Store,
        poison: &Poison,
        mut ops: Vec<Op>,
        records: &[Record],
        ack: Ack,
    ) -> Result<(), Error> {
        if !format::are_readable(records) {
            // An id, a run or a generation behind the last there is: what is logged stays, nothing else is written.
            poison.set(&Error::NumbersUsedUp.to_string());
            return Err(Error::NumbersUsedUp);
        }
        let mut rewrite_above = self.rewrite_above;
        let rewrite = self.room_to_rewrite();
        let len = if rewrite.is_some() {
            // What is there, a record at a time and in edits that are read in small pieces; then what changes.
            let mut bytes = header(self.seed);
            bytes.reserve(self.state.encoded_bytes() as usize);
            append_edits(&mut bytes, self.state.records());
            append_edits(&mut bytes, records.iter().cloned());
            let len = bytes.len() as u64;
            rewrite_above = REWRITE_ABOVE.max(2 * len);
            ops.push(Op::Truncate { id: MANIFEST, len: 0 });
            ops.push(Op::Append {
                id: MANIFEST,
                at: 0,
                data: Bytes::from(bytes),
            });
            len
        } else {
            let edit = encode_edit(self.len, records);
            let len = self.len + edit.len() as u64;
            ops.push(Op::Append {
                id: MANIFEST,
                at: self.len,
                data: Bytes::from(edit),
            });
            len
        };
        let committed = objects
            .commit(
                Txn {
                    ops,
                    ..Txn::default()
                },
                ack,
            )
            .wait();
        committed.map_err(|error| match error {
            // Refused before anything was written.
            StoreError::TooLarge => Error::Object(error),
            error => poison.failed_write(error),
        })?;
        (self.len, self.rewrite_above) = (len, rewrite_above);
        records.iter().for_each(|record| self.state.apply(record));
        Ok(())
    }
}

/// Appends `records` as edits of about [`EDIT_BYTES`]: they are committed together, so together they are one.
fn append_edits(manifest: &mut Vec<u8>, records: impl Iterator<Item = Record>) {
    let mut edit = EditWriter::at(manifest.len());
    for record in records {
        edit.add(manifest, &record);
        if edit.bytes(manifest) >= EDIT_BYTES {
            edit.end(manifest);
            edit = EditWriter::at(manifest.len());
        }
    }
    edit.end(manifest);
}

/// What an object is for; stands in its label, so that an opening can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Role {
    Manifest,
    Log,
    Table,
    Value,
    Waiting,
}

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Role::Manifest => "manifest",
            Role::Log => "log",
            Role::Table => "table",
            Role::Value => "value object",
            Role::Waiting => "waiting room",
        })
    }
}

impl Role {
    /// In one word.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Role::Manifest => "manifest",
            Role::Log => "log",
            Role::Table => "table",
            Role::Value => "value-object",
            Role::Waiting => "waiting-room",
        }
    }

    const ALL: [(Role, &'static [u8; 8]); 5] = [
        (Role::Manifest, b"kv manif"),
        (Role::Log, b"kv log\0\0"),
        (Role::Table, b"kv table"),
        (Role::Value, b"kv value"),
        (Role::Waiting, b"kv wait\0"),
    ];

    fn name(self) -> &'static [u8; 8] {
        Role::ALL
            .iter()
            .find(|(role, _)| *role == self)
            .map_or(b"kv manif", |(_, name)| name)
    }
}

/// Label of an object: its role, and the generation of a log (0 otherwise).
pub(crate) fn label(role: Role, generation: u64) -> [u8; 16] {
    let mut label = [0; 16];
    label[..8].copy_from_slice(role.name());
    label[8..].copy_from_slice(&generation.to_le_bytes());
    label
}

/// Reads a label; `None`: the object belongs to someone else.
pub(crate) fn parse_label(label: &[u8; 16]) -> Option<(Role, u64)> {
    let (name, generation) = label.split_at(8);
    let (role, _) = Role::ALL.into_iter().find(|(_, known)| known[..] == *name)?;
    Some((role, u64::from_le_bytes(generation.try_into().ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{KeyspaceOptions, key::KeyspaceId};
    use copal_codec::{ENVELOPE_LEN, Envelope, Format, Put};
    use copal_device::{Device, Image, MemoryDevice};
    use copal_object::{MkfsOptions, OpenOptions};
    use std::sync::Arc;

    #[test]
    fn the_first_edit_of_an_older_manifest_rewrites_it() {
        let device: Arc<dyn Device> = MemoryDevice::from_image(Image::zeroed(64 << 20), 64 << 20);
        Store::mkfs(&device, &MkfsOptions::default()).unwrap();
        let (objects, _) = Store::open(device, &OpenOptions::default()).unwrap();
        let mut new = Manifest::create(&objects, 7, &MemoryBudget::new(4 << 20)).unwrap();
        let keyspace = |id: u32| Record::Keyspace {
            id: KeyspaceId(id),
            name: format!("space {id}"),
            options: KeyspaceOptions::default(),
        };
        let poison = Poison::default();
        new.commit(&objects, &poison, Vec::new(), &[keyspace(1)], Ack::Durable)
            .unwrap();
        // The same bytes under a header of version 1, which is what that version wrote.
        let len = objects.stat(MANIFEST).unwrap().len;
        let bytes = objects.read(MANIFEST, 0..len, Class::Foreground).wait().unwrap();
        let mut old = vec![0; ENVELOPE_LEN];
        old.put_u64(7);
        let version_1 = Format {
            version: 1,
            ..format::FORMAT
        };
        Envelope::seal(&version_1, 0, 0, &mut old);
        old.extend_from_slice(&bytes[old.len()..]);
        let ops = vec![
            Op::Truncate { id: MANIFEST, len: 0 },
            Op::Append {
                id: MANIFEST,
                at: 0,
                data: Bytes::from(old),
            },
        ];
        let txn = Txn {
            ops,
            ..Txn::default()
        };
        objects.commit(txn, Ack::Durable).wait().unwrap();
        let budget = MemoryBudget::new(4 << 20);
        let (mut manifest, _) = Manifest::open(&objects, &budget).unwrap().unwrap();
        assert_eq!((manifest.seed, manifest.state.keyspaces.len()), (7, 1));
        for id in 2..4 {
            manifest
                .commit(&objects, &poison, Vec::new(), &[keyspace(id)], Ack::Durable)
                .unwrap();
            let head = objects.read(MANIFEST, 0..format::HEADER_LEN as u64, Class::Foreground);
            assert_eq!(format::parse_header(&head.wait().unwrap()).unwrap(), (2, 7));
            let (again, _) = Manifest::open(&objects, &budget).unwrap().unwrap();
            assert_eq!(again.state, manifest.state);
        }
    }

    /// Symptom: a store did not open within the budget of the session before it, once an edit of its manifest was about
    /// a megabyte long.
    /// Cause: what an edit takes on its way counted as what cannot give way, twice.
    /// Fix: a piece is refused when it is longer than what there is room for; its copies make caches give way.
    #[test]
    fn an_edit_that_a_session_had_room_for_is_read_again() {
        let device: Arc<dyn Device> = MemoryDevice::from_image(Image::zeroed(64 << 20), 64 << 20);
        Store::mkfs(&device, &MkfsOptions::default()).unwrap();
        let (objects, _) = Store::open(device, &OpenOptions::default()).unwrap();
        let mut manifest = Manifest::create(&objects, 7, &MemoryBudget::new(4 << 20)).unwrap();
        let records: Vec<Record> = (1..5500)
            .map(|id| Record::Keyspace {
                id: KeyspaceId(id),
                name: format!("{id:0>240}"),
                options: KeyspaceOptions::default(),
            })
            .collect();
        let poison = Poison::default();
        manifest
            .commit(&objects, &poison, Vec::new(), &records, Ack::Durable)
            .unwrap();
        assert!(manifest.len > 5 << 18);
        let budget = MemoryBudget::new(4 << 20);
        let (again, charge) = Manifest::open(&objects, &budget).unwrap().unwrap();
        assert!(again.state.keyspaces == manifest.state.keyspaces);
        assert_eq!(charge.bytes(), again.state.heap_bytes());
    }

    #[test]
    fn what_a_piece_takes_is_told_once() {
        let device: Arc<dyn Device> = MemoryDevice::from_image(Image::zeroed(64 << 20), 64 << 20);
        Store::mkfs(&device, &MkfsOptions::default()).unwrap();
        let (objects, _) = Store::open(device, &OpenOptions::default()).unwrap();
        let mut manifest = Manifest::create(&objects, 7, &MemoryBudget::new(4 << 20)).unwrap();
        let record = Record::Settled { below: 9 };
        let poison = Poison::default();
        manifest
            .commit(&objects, &poison, Vec::new(), &[record], Ack::Durable)
            .unwrap();
        let mut edits = Edits::open(&objects, MANIFEST, Class::Foreground).unwrap();
        let mut told = Vec::new();
        let mut room = |bytes| {
            told.push(bytes);
            Ok(())
        };
        while edits.next(&mut room).unwrap().is_some() {}
        assert_eq!(told, [manifest.len - format::HEADER_LEN as u64]);
    }
}
