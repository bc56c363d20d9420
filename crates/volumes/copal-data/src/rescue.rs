//! Rescue: copies every readable row of a damaged store to another store.
//!
//! Rows keep their keys, so volumes, files and times are the same in the copy. Damaged files stay damaged in
//! the copy, and the same checksums find them. Index keyspaces of other layers are not copied: they can be
//! rebuilt.
//!
//! A thread reads rows, many keys at a time in the order of their places; the calling thread writes them. Memory: the
//! values in flight, and three batches.
//!
//! Invariants
//! - A row is copied as the engine read and verified it. The only exception is a piece of a body with damaged
//!   parts: they become zeros. The checksums of the piece's blocks, in rows of their own, reveal them.
//! - Damage does not end the copy: it is skipped and counted.
//! - A row that describes the store is taken from its second copy if the first is unreadable.
//! - Files of a lost volume are not copied: without a name they could never be deleted.
//!
//! Not here: contents of the files; treatment of the lost ones.

use crate::{
    error::of_engine,
    format::{
        GROUP_KEY_LEN, NEXT_VID_KEY, VolumeRow, VolumeState, group_row, name_row, number_row,
        parse_number_row,
    },
    keys::{self, GROUP},
    keyspaces::{DataKeyspaces, SECOND_COPIES},
    local::EPOCH,
    second_copies::{self, CopiedRows},
};
use bytes::Bytes;
use copal_kv::{Batch, Durability, Error, Keyspace, Store, ValuePart};
use copal_volume::{VolumeError, VolumeId};
use std::{
    collections::BTreeSet,
    ops::{Bound, ControlFlow},
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread::Builder,
};

/// Bytes of rows in one batch.
const BATCH_BYTES: usize = 512 << 10;
/// Keys whose values are read together.
const KEYS_TOGETHER: usize = 256;
/// Most bytes of values in flight, or one value.
const IN_FLIGHT_BYTES: u64 = 4 << 20;
/// Size of the parts of a damaged piece that are read separately. The engine has no checksums of smaller
/// ones.
const PART_BYTES: u64 = 64 << 10;
/// Maximum length of a piece.
const PIECE_BYTES: u64 = 4 << 20;

/// Result of a rescue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RescueReport {
    /// Rows in the copy.
    pub rows: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Rows with a readable key whose value is unreadable, completely or in part.
    pub damaged_rows: u64,
    /// Ranges of unreadable keys, a sentence each.
    pub lost: Vec<String>,
}

impl RescueReport {
    /// Whether everything was copied.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.damaged_rows == 0 && self.lost.is_empty()
    }
}

/// Copies the volumes of `from`, which may be damaged, into the empty store `to`. Calls `go_on` often with
/// the number of copied bytes; `false` ends the copy. Blocks until everything is read; the copy is durable on
/// return.
/// # Errors
/// `NoSpace`: `to` is full. `Failed`: one of the stores failed otherwise, or `go_on` ended the copy. Damage
/// of `from` is no error.
pub fn rescue(
    from: &Store,
    to: &Store,
    go_on: &mut dyn FnMut(u64) -> bool,
) -> Result<RescueReport, VolumeError> {
    let target = DataKeyspaces::open(to)?;
    let (rows_in, rows) = sync_channel(1);
    let done = std::thread::scope(|scope| {
        let read = || RowReader::new(from, rows_in).all(&target);
        let reader = Builder::new().name("rescue-read".to_owned()).spawn_scoped(scope, read);
        let reader = reader.map_err(|error| VolumeError::Failed {
            reason: format!(
                "the system starts no thread: {error}; raise its limit of processes and try again"
            ),
        })?;
        // Without the receiver, the reader ends.
        let written = RowWriter { to, batch: to.batch(), batch_bytes: 0, bytes: 0, go_on }.all(rows);
        match reader.join() {
            Ok(read) => written.and(read),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })?;
    describe(to, &target)?;
    to.sync().map_err(|error| of_engine(&error))?;
    Ok(done)
}

/// A row of the copy.
struct RescuedRow<'a> {
    space: &'a Keyspace,
    key: Bytes,
    value: Bytes,
}

/// Writes rows in batches.
struct RowWriter<'a> {
    to: &'a Store,
    batch: Batch,
    batch_bytes: usize,
    /// Bytes of all rows.
    bytes: u64,
    go_on: &'a mut dyn FnMut(u64) -> bool,
}

impl RowWriter<'_> {
    fn all(mut self, rows: Receiver<Vec<RescuedRow<'_>>>) -> Result<(), VolumeError> {
        for RescuedRow { space, key, value } in rows.into_iter().flatten() {
            self.batch_bytes += key.len() + value.len();
            self.bytes += (key.len() + value.len()) as u64;
            self.batch.put(space, &key, value);
            if self.batch_bytes >= BATCH_BYTES || self.batch.memory_bytes() > self.to.batch_bytes() / 2 {
                self.commit()?;
            }
        }
        self.commit()
    }

    fn commit(&mut self) -> Result<(), VolumeError> {
        let batch = std::mem::replace(&mut self.batch, self.to.batch());
        self.batch_bytes = 0;
        if !batch.is_empty() {
            batch.commit(Durability::Deferred).map_err(|error| of_engine(&error))?;
        }
        if (self.go_on)(self.bytes) { Ok(()) } else { Err(ended()) }
    }
}

fn ended() -> VolumeError {
    VolumeError::Failed { reason: "the copy was ended".to_owned() }
}

/// Writes rows that follow from others and may be lost: the names of volumes, and the next volume id. A copy
/// without an identity gets one at its first opening.
fn describe(to: &Store, target: &DataKeyspaces) -> Result<(), VolumeError> {
    let mut next = 1;
    let mut batch = to.batch();
    for row in target.volumes.prefix(&[]) {
        let (key, row) = row.map_err(|error| of_engine(&error))?;
        let (Some((vid, [])), Ok(row)) = (keys::split(&key), VolumeRow::parse(&key, &row)) else {
            continue;
        };
        next = next.max(vid.0.saturating_add(1));
        if row.state == VolumeState::Live {
            let name = keys::named(row.parent, row.name.as_bytes());
            batch.put(&target.names, &name, name_row(&name, vid));
        }
        if batch.memory_bytes() > to.batch_bytes() / 2 {
            let part = std::mem::replace(&mut batch, to.batch());
            part.commit(Durability::Deferred).map_err(|error| of_engine(&error))?;
        }
    }
    let known = target
        .node
        .get(NEXT_VID_KEY)
        .map_err(|error| of_engine(&error))?
        .and_then(|row| parse_number_row(NEXT_VID_KEY, &row).ok());
    let number = number_row(NEXT_VID_KEY, next.max(known.unwrap_or(1)));
    batch.put(&target.node, NEXT_VID_KEY, number);
    let group_key: [u8; GROUP_KEY_LEN] = GROUP.to_be_bytes();
    if target.groups.get(&group_key).map_err(|error| of_engine(&error))?.is_none() {
        batch.put(&target.groups, &group_key, group_row(&group_key, EPOCH));
    }
    batch.commit(Durability::Deferred).map_err(|error| of_engine(&error))
}

/// Reads rows.
struct RowReader<'a> {
    from: &'a Store,
    rows: SyncSender<Vec<RescuedRow<'a>>>,
    batch: Vec<RescuedRow<'a>>,
    batch_bytes: usize,
    /// Keys of the present keyspace whose values are not read yet.
    keys: Vec<Bytes>,
    done: RescueReport,
    /// Volumes that were copied, and volumes of which only files remain.
    volumes: BTreeSet<VolumeId>,
    lost_volumes: BTreeSet<VolumeId>,
}

impl<'a> RowReader<'a> {
    fn new(from: &'a Store, rows: SyncSender<Vec<RescuedRow<'a>>>) -> RowReader<'a> {
        RowReader {
            from,
            rows,
            batch: Vec::new(),
            batch_bytes: 0,
            keys: Vec::new(),
            done: RescueReport::default(),
            volumes: BTreeSet::new(),
            lost_volumes: BTreeSet::new(),
        }
    }

    /// Reads all rows that are copied.
    fn all(mut self, target: &'a DataKeyspaces) -> Result<RescueReport, VolumeError> {
        self.spares(target)?;
        for space in target.all() {
            let source = self.from.open_keyspace(space.name()).map_err(|error| of_engine(&error))?;
            if let Some(source) = source {
                self.space(&source, space)?;
            }
        }
        for vid in std::mem::take(&mut self.lost_volumes) {
            self.done.lost.push(format!("volume {}, and all its files", vid.0));
        }
        self.send()?;
        Ok(self.done)
    }

    /// Restores the second copies. Readable first copies replace them later.
    fn spares(&mut self, target: &'a DataKeyspaces) -> Result<(), VolumeError> {
        let spare = self.from.open_keyspace(SECOND_COPIES);
        let Some(spare) = spare.map_err(|error| of_engine(&error))? else {
            return Ok(());
        };
        for of in CopiedRows::ALL {
            for row in second_copies::copies(&spare, of) {
                let (key, row) = match row {
                    Err(error) if error.is_corruption() => break,
                    row => row.map_err(|error| of_engine(&error))?,
                };
                if of == CopiedRows::Volumes {
                    self.volumes.extend(keys::split(&key).map(|(vid, _)| vid));
                }
                self.put(of.space(target), key, row)?;
            }
        }
        Ok(())
    }

    /// Copies every row of a keyspace. At damage, the copy continues backwards from the end of the damaged
    /// range, then forwards behind it.
    fn space(&mut self, source: &Keyspace, target: &'a Keyspace) -> Result<(), VolumeError> {
        let mut next: Vec<u8> = Vec::new();
        loop {
            let mut damage = None;
            for key in source.iter((Bound::Included(&next[..]), Bound::Unbounded)).keys_only() {
                match key {
                    Ok((key, _)) => {
                        next = successor(&key);
                        self.key(source, target, key)?;
                    }
                    Err(error) if error.is_corruption() => {
                        damage = Some(error);
                        break;
                    }
                    Err(error) => return Err(of_engine(&error)),
                }
            }
            let Some(error) = damage else { return self.read(source, target) };
            let end = self.end_of_damage(source.name(), &next);
            self.done.lost.push(format!("rows of `{}`: {error}", source.name()));
            let bound = end.as_ref().map_or(Bound::Unbounded, |end| Bound::Excluded(&end[..]));
            let back = source.iter((Bound::Included(&next[..]), bound)).keys_only();
            for key in back.rev().map_while(Result::ok) {
                self.key(source, target, key.0)?;
            }
            match end {
                Some(end) => next = end,
                None => return self.read(source, target),
            }
        }
    }

    /// End of the damage that a walk met at or after `next`; `None`: the end of the keyspace.
    fn end_of_damage(&self, keyspace: &str, next: &[u8]) -> Option<Vec<u8>> {
        let ranges = self.from.damaged_ranges().into_iter();
        let behind = ranges.filter(|range| {
            range.keyspace == keyspace && range.end.as_ref().is_none_or(|end| &end[..] > next)
        });
        let first = behind.min_by(|one, other| one.start.cmp(&other.start))?;
        first.end.map(|end| end.to_vec())
    }

    /// Whether a file row belongs to a known volume.
    fn has_volume(&mut self, keyspace: &str, key: &[u8]) -> bool {
        let is_of_file = matches!(keyspace, "files" | "extents" | "sums" | "uploads");
        let volume = keys::split(key).map(|(vid, _)| vid);
        match volume.filter(|vid| is_of_file && !self.volumes.contains(vid)) {
            Some(lost) => {
                self.lost_volumes.insert(lost);
                false
            }
            None => true,
        }
    }

    /// Adds a key whose row is copied.
    fn key(&mut self, source: &Keyspace, target: &'a Keyspace, key: Bytes) -> Result<(), VolumeError> {
        if self.has_volume(target.name(), &key) {
            self.keys.push(key);
        }
        if self.keys.len() == KEYS_TOGETHER { self.read(source, target) } else { Ok(()) }
    }

    /// Reads the values of the keys.
    fn read(&mut self, source: &Keyspace, target: &'a Keyspace) -> Result<(), VolumeError> {
        let keys = std::mem::take(&mut self.keys);
        let parts: Vec<_> = (0..keys.len()).map(|key| ValuePart { key, bytes: 0..u64::MAX }).collect();
        let (mut damaged, mut failed) = (Vec::new(), None);
        let read = source.read_parts(&keys, &parts, IN_FLIGHT_BYTES, &mut |index, answer| {
            let put = match answer {
                Ok(Some(value)) => self.row(target, keys[index].clone(), value),
                Ok(None) => Ok(()),
                Err(error) if error.is_corruption() => {
                    damaged.push(index);
                    Ok(())
                }
                Err(error) => Err(of_engine(&error)),
            };
            match put {
                Ok(()) => ControlFlow::Continue(()),
                Err(error) => {
                    failed = Some(error);
                    ControlFlow::Break(())
                }
            }
        });
        read.map_err(|error| of_engine(&error))?;
        failed.map_or(Ok(()), Err)?;
        for index in damaged {
            self.done.damaged_rows += 1;
            if let Some(value) = in_parts(source, &keys[index]).map_err(|error| of_engine(&error))? {
                self.row(target, keys[index].clone(), value)?;
            }
        }
        Ok(())
    }

    fn row(&mut self, target: &'a Keyspace, key: Bytes, value: Bytes) -> Result<(), VolumeError> {
        if target.name() == "volumes" {
            self.volumes.extend(keys::split(&key).map(|(vid, _)| vid));
        }
        self.done.rows += 1;
        self.done.bytes += (key.len() + value.len()) as u64;
        self.put(target, key, value)
    }

    fn put(&mut self, space: &'a Keyspace, key: Bytes, value: Bytes) -> Result<(), VolumeError> {
        self.batch_bytes += key.len() + value.len();
        self.batch.push(RescuedRow { space, key, value });
        if self.batch_bytes >= BATCH_BYTES { self.send() } else { Ok(()) }
    }

    /// Gives the rows so far to the writer.
    /// # Errors
    /// The writer has ended with an error, which is reported instead.
    fn send(&mut self) -> Result<(), VolumeError> {
        self.batch_bytes = 0;
        self.rows.send(std::mem::take(&mut self.batch)).map_err(|_| ended())
    }
}

/// Reads a value with damaged parts and puts zeros in their place. `None`: it is short, or none of it is
/// readable.
fn in_parts(source: &Keyspace, key: &[u8]) -> Result<Option<Bytes>, Error> {
    let mut value: Vec<u8> = Vec::new();
    let mut any = false;
    for at in (0..PIECE_BYTES).step_by(PART_BYTES as usize) {
        match source.get_range(key, at..at + PART_BYTES) {
            Ok(Some(part)) => {
                any |= !part.is_empty();
                value.extend_from_slice(&part);
                if (part.len() as u64) < PART_BYTES {
                    break;
                }
            }
            Ok(None) => return Ok(None),
            Err(error) if error.is_corruption() => value.resize((at + PART_BYTES) as usize, 0),
            Err(error) => return Err(error),
        }
    }
    Ok(any.then(|| Bytes::from(value)))
}

fn successor(key: &[u8]) -> Vec<u8> {
    let mut next = key.to_vec();
    next.push(0);
    next
}
