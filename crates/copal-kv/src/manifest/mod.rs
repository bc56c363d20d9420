//! The manifest: the object that says which tables and value objects make up the store.
//!
//! Object 1 of the object store. Above 4 MiB it is rewritten in place, in one transaction.
//! Invariants
//! - State in memory changes only after the transaction that carries its edit was accepted.

pub(crate) mod format;
pub(crate) mod state;

use crate::{Error, poison::Poison};
use bytes::Bytes;
use copal_device::Class;
use copal_object::{Ack, Check, CreateOptions, Lifetime, ObjectId, ObjectKind, Op, Store, Txn};
use format::{Record, encode_edit, header, parse_edits, parse_header};
use state::State;

/// Where the manifest lives.
pub(crate) const MANIFEST: ObjectId = ObjectId(1);
const REWRITE_ABOVE: u64 = 4 << 20;

/// The manifest as it stands on disk and the state it describes.
pub(crate) struct Manifest {
    pub(crate) state: State,
    /// Seed of the filters' hash, chosen when the store was made.
    pub(crate) seed: u64,
    len: u64,
    /// Length from which the next edit becomes a rewrite: never less than twice what a rewrite left.
    rewrite_above: u64,
}

impl Manifest {
    /// Reads the manifest. `None`: the object store holds no key-value store yet.
    /// # Errors
    /// `Corrupt`, or what the object layer answers.
    pub(crate) fn open(objects: &Store) -> Result<Option<Manifest>, Error> {
        let Some(stat) = objects.stat(MANIFEST) else {
            return Ok(None);
        };
        let bytes = objects.read(MANIFEST, 0..stat.len, Class::Foreground).wait()?;
        let seed = parse_header(&bytes)?;
        let mut state = State::default();
        for record in parse_edits(&bytes)? {
            state.apply(&record);
        }
        Ok(Some(Manifest {
            state,
            seed,
            len: bytes.len() as u64,
            rewrite_above: REWRITE_ABOVE,
        }))
    }

    /// Makes the manifest of a new store, durably.
    /// # Errors
    /// What the object layer answers.
    pub(crate) fn create(objects: &Store, seed: u64) -> Result<Manifest, Error> {
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
        })
    }

    /// Commits `ops` together with an edit of `records`; then, and only then, the state follows.
    /// # Errors
    /// `NoSpace`: nothing happened. Anything else poisons.
    pub(crate) fn commit(
        &mut self,
        objects: &Store,
        poison: &Poison,
        mut ops: Vec<Op>,
        records: &[Record],
        ack: Ack,
    ) -> Result<(), Error> {
        let mut rewrite_above = self.rewrite_above;
        let len = if self.len > self.rewrite_above {
            let mut state = self.state.clone();
            records.iter().for_each(|record| state.apply(record));
            let mut bytes = header(self.seed);
            let edit = encode_edit(bytes.len() as u64, &state.snapshot());
            bytes.extend_from_slice(&edit);
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
        committed.map_err(|error| poison.failed_write(error))?;
        (self.len, self.rewrite_above) = (len, rewrite_above);
        records.iter().for_each(|record| self.state.apply(record));
        Ok(())
    }
}

/// What an object is for; stands in its label, so that an opening can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Role {
    Manifest,
    Log,
    Table,
    Value,
}

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Role::Manifest => "manifest",
            Role::Log => "log",
            Role::Table => "table",
            Role::Value => "value object",
        })
    }
}

impl Role {
    const ALL: [(Role, &'static [u8; 8]); 4] = [
        (Role::Manifest, b"kv manif"),
        (Role::Log, b"kv log\0\0"),
        (Role::Table, b"kv table"),
        (Role::Value, b"kv value"),
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
