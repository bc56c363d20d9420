//! The manifest: the object that says which tables and value objects make up the store.
//!
//! Object 1 of the object store, and the same bytes in object 0 while there is room. Above 4 MiB it is rewritten in place,
//! in one transaction.
//! Invariants
//! - State in memory changes only after the transaction that carries its edit was accepted.

mod copy;
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
use copal_object::{Ack, ObjectId, Op, Store, StoreError, Txn};
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

/// The second copy, as this session knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Copied {
    /// It stands, and changes with the manifest.
    Yes,
    /// It does not stand, and this session has not looked for room yet.
    NotYet,
    /// It does not stand: there was no room.
    NoRoom,
}

/// The manifest as it stands on disk and the state it describes.
pub(crate) struct Manifest {
    pub(crate) state: State,
    /// Seed of the filters' hash, chosen when the store was made.
    pub(crate) seed: u64,
    len: u64,
    /// Length from which the next edit becomes a rewrite: never less than twice what a rewrite left. 0: the next one does,
    /// whatever memory there is.
    rewrite_above: u64,
    /// What is known of the second copy.
    copy: Copied,
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
        let once = || Manifest::read(objects, MANIFEST, budget);
        // A device that errs once is not damaged.
        let read = once().or_else(|error| if error.is_corruption() { once() } else { Err(error) });
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

    /// What the copy says, where the manifest itself cannot be read for `error`: the next edit writes both anew.
    /// # Errors
    /// `error`, unless the copy is whole.
    fn read_copy(objects: &Store, budget: &MemoryBudget, error: Error) -> Result<(Manifest, Charge), Error> {
        let unreadable = error.is_corruption() || matches!(error, Error::Object(StoreError::Device(_)));
        let len = |id| objects.stat(id).map(|stat| stat.len);
        if !unreadable || len(MANIFEST) != len(copy::COPY) {
            return Err(error);
        }
        let Ok((mut manifest, charge)) = Manifest::read(objects, copy::COPY, budget) else {
            return Err(error);
        };
        tracing::warn!(%error, "the manifest is damaged; its copy stands in for it until the next write mends both");
        manifest.rewrite_above = 0;
        Ok((manifest, charge))
    }

    fn read(objects: &Store, id: ObjectId, budget: &MemoryBudget) -> Result<(Manifest, Charge), Error> {
        let mut edits = Edits::open(objects, id, Class::Foreground)?;
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
        let copy = if copy::stands(objects, len) {
            Copied::Yes
        } else {
            Copied::NotYet
        };
        drop(edits);
        charge.set(state.heap_bytes());
        budget.check_used()?;
        let manifest = Manifest {
            state,
            seed,
            len,
            copy,
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
        let len = bytes.len() as u64;
        let ops = [MANIFEST, copy::COPY].map(copy::create).into_iter();
        let ops = ops.chain(copy::append(0, &bytes, true)).collect();
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
            copy: Copied::Yes,
            rewrite_above: REWRITE_ABOVE,
            budget: budget.clone(),
        })
    }

    /// What a rewrite takes, if the next commit is to write the whole state anew: it can be put off while there is no
    /// memory for its bytes, unless what is there must not stay. Blocks while the store grows for a copy.
    fn memory_to_rewrite(&mut self, objects: &Store) -> Option<Charge> {
        let long = self.len > self.rewrite_above;
        let lacks_copy = match self.copy {
            Copied::Yes => false,
            Copied::NotYet => copy::finds_room(objects, self.state.encoded_bytes(), true),
            Copied::NoRoom => copy::finds_room(objects, self.state.encoded_bytes(), long),
        };
        if self.copy != Copied::Yes {
            self.copy = if lacks_copy {
                Copied::NotYet
            } else {
                Copied::NoRoom
            };
        }
        if !long && !lacks_copy {
            return None;
        }
        let bytes = COPIES * self.state.encoded_bytes();
        let charge = self.budget.charge(Memory::Manifest, bytes);
        (self.rewrite_above == 0 || self.budget.check().is_ok()).then_some(charge)
    }

    /// Steps that write the whole state and `records` anew, and the length they leave; with a copy where there is room.
    fn rewrite(&self, objects: &Store, records: &[Record], copied: bool) -> (Vec<Op>, u64) {
        // What is there, a record at a time and in edits that are read in small pieces; then what changes.
        let mut bytes = header(self.seed);
        bytes.reserve(self.state.encoded_bytes() as usize);
        append_edits(&mut bytes, self.state.records());
        append_edits(&mut bytes, records.iter().cloned());
        let len = bytes.len() as u64;
        let mut ops = vec![Op::Truncate { id: MANIFEST, len: 0 }];
        match (objects.stat(copy::COPY).is_some(), copied) {
            (true, true) => ops.push(Op::Truncate {
                id: copy::COPY,
                len: 0,
            }),
            (true, false) => ops.push(Op::Delete { id: copy::COPY }),
            (false, true) => ops.push(copy::create(copy::COPY)),
            (false, false) => {}
        }
        ops.extend(copy::append(0, &Bytes::from(bytes), copied));
        (ops, len)
    }

    /// Steps that append `records`, and the length they leave; with a copy that stands and has its room.
    fn extend(&self, objects: &Store, records: &[Record], copied: bool) -> (Vec<Op>, u64) {
        let edit = Bytes::from(encode_edit(self.len, records));
        let len = self.len + edit.len() as u64;
        let mut ops: Vec<Op> = copy::append(self.len, &edit, copied).collect();
        if !copied && objects.stat(copy::COPY).is_some() {
            ops.push(Op::Delete { id: copy::COPY });
        }
        (ops, len)
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
        let memory = self.memory_to_rewrite(objects);
        let copied = match self.copy {
            Copied::Yes => copy::keeps_its_room(objects, self.len),
            Copied::NotYet => memory.is_some(),
            Copied::NoRoom => false,
        };
        let (steps, len) = if memory.is_some() {
            self.rewrite(objects, records, copied)
        } else {
            self.extend(objects, records, copied)
        };
        ops.extend(steps);
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
        if memory.is_some() {
            self.rewrite_above = REWRITE_ABOVE.max(2 * len);
        }
        self.len = len;
        self.copy = match (copied, self.copy) {
            (true, _) => Copied::Yes,
            // There was no memory for it.
            (false, Copied::NotYet) => Copied::NotYet,
            (false, _) => Copied::NoRoom,
        };
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
    use copal_device::{AlignedBuf, Device, Image, MemoryDevice};
    use copal_object::{Covered, MkfsOptions, OpenOptions, Summed};
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
            assert_eq!(
                format::parse_header(&head.wait().unwrap()).unwrap(),
                (format::FORMAT.version, 7)
            );
            let (again, _) = Manifest::open(&objects, &budget).unwrap().unwrap();
            assert_eq!(again.state, manifest.state);
        }
    }

    fn keyspace(id: u32) -> Record {
        Record::Keyspace {
            id: KeyspaceId(id),
            name: format!("space {id}"),
            options: KeyspaceOptions::default(),
        }
    }

    /// Where the first page of the manifest and of its copy lie.
    fn pages(objects: &Store) -> [Option<u64>; 2] {
        let mut pages = [None; 2];
        let all = copal_object::CheckOptions {
            data: true,
            repair: false,
        };
        let mut note = |range: std::ops::Range<u64>, covered| {
            if let Covered::Summed(Summed::Object(id)) = covered
                && let Some(slot) = [MANIFEST, copy::COPY].iter().position(|of| *of == id)
            {
                pages[slot].get_or_insert(range.start);
            }
        };
        assert!(objects.check_coverage(&all, &mut note).unwrap().is_clean());
        pages
    }

    /// Symptom: one flipped bit in the manifest, and nothing in the store could be read.
    /// Cause: it stood in one place.
    /// Fix: it stands in two, and an opening takes the one that is whole; the next edit writes both.
    #[test]
    fn a_damaged_manifest_is_read_from_its_copy_and_written_anew() {
        let device: Arc<dyn Device> = MemoryDevice::from_image(Image::zeroed(64 << 20), 64 << 20);
        Store::mkfs(&device, &MkfsOptions::default()).unwrap();
        let (objects, _) = Store::open(device.clone(), &OpenOptions::default()).unwrap();
        let budget = MemoryBudget::new(4 << 20);
        let mut manifest = Manifest::create(&objects, 7, &budget).unwrap();
        let poison = Poison::default();
        for (round, damaged) in (1..).zip([0, 1, 0, 1]) {
            manifest
                .commit(&objects, &poison, Vec::new(), &[keyspace(round)], Ack::Durable)
                .unwrap();
            let places = pages(&objects).map(Option::unwrap);
            assert!(places[0].abs_diff(places[1]) > 1 << 20, "{places:?}");
            let mut buf = AlignedBuf::zeroed(4096);
            buf.fill(0xee);
            device.write_through(places[damaged], buf).unwrap();
            let (again, _) = Manifest::open(&objects, &budget).unwrap().unwrap();
            assert_eq!(again.state.keyspaces, manifest.state.keyspaces);
            manifest = again;
        }
    }

    /// Symptom: none yet; a copy that a full store cannot drop would take the space that deletes need, and one that is
    /// dropped for ever is none.
    #[test]
    fn a_full_store_goes_on_without_the_copy_until_there_is_room() {
        let device: Arc<dyn Device> = MemoryDevice::from_image(Image::zeroed(64 << 20), 64 << 20);
        Store::mkfs(&device, &MkfsOptions::default()).unwrap();
        let (objects, _) = Store::open(device, &OpenOptions::default()).unwrap();
        let budget = MemoryBudget::new(4 << 20);
        let mut manifest = Manifest::create(&objects, 7, &budget).unwrap();
        let poison = Poison::default();
        let mut round = 0;
        let mut commit = |manifest: &mut Manifest| {
            round += 1;
            manifest
                .commit(&objects, &poison, Vec::new(), &[keyspace(round)], Ack::Durable)
                .unwrap();
            let (again, _) = Manifest::open(&objects, &budget).unwrap().unwrap();
            assert_eq!(again.state.keyspaces, manifest.state.keyspaces);
        };
        commit(&mut manifest);
        assert!(pages(&objects).iter().all(Option::is_some));
        let free = objects.space().free_bytes;
        let full = objects.reserve(free - (256 << 10)).unwrap();
        for _ in 0..3 {
            commit(&mut manifest);
            assert_eq!(pages(&objects)[1], None);
        }
        drop(full);
        for _ in 0..3 {
            commit(&mut manifest);
            assert!(pages(&objects).iter().all(Option::is_some));
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
