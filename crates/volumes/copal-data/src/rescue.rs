//! Rescue: copies every readable row of a damaged store to another store.
//!
//! Rows keep their keys, so volumes, files and times are the same in the copy. Damaged files stay damaged in
//! the copy, and the same checksums find them. Index keyspaces of other layers are not copied: they can be
//! rebuilt.
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
use copal_kv::{Batch, Durability, Error, Keyspace, Store};
use copal_volume::{VolumeError, VolumeId};
use std::{collections::BTreeSet, ops::Bound};

/// Bytes of rows in one batch.
const BATCH_BYTES: usize = 512 << 10;
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
    let mut rescue = RescueRun {
        from,
        to,
        batch: to.batch(),
        batch_bytes: 0,
        done: RescueReport::default(),
        volumes: BTreeSet::new(),
        lost_volumes: BTreeSet::new(),
        go_on,
    };
    rescue.spares(&target)?;
    for space in target.all() {
        let source = from.open_keyspace(space.name()).map_err(|error| of_engine(&error))?;
        if let Some(source) = source {
            rescue.space(&source, space)?;
        }
    }
    for vid in std::mem::take(&mut rescue.lost_volumes) {
        rescue.done.lost.push(format!("volume {}, and all its files", vid.0));
    }
    rescue.commit()?;
    describe(to, &target)?;
    to.sync().map_err(|error| of_engine(&error))?;
    Ok(rescue.done)
}

struct RescueRun<'a> {
    from: &'a Store,
    to: &'a Store,
    batch: Batch,
    batch_bytes: usize,
    done: RescueReport,
    /// Volumes that were copied, and volumes of which only files remain.
    volumes: BTreeSet<VolumeId>,
    lost_volumes: BTreeSet<VolumeId>,
    go_on: &'a mut dyn FnMut(u64) -> bool,
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

impl RescueRun<'_> {
    /// Restores the second copies. Readable first copies replace them later.
    fn spares(&mut self, target: &DataKeyspaces) -> Result<(), VolumeError> {
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
                self.put(of.space(target), &key, row)?;
            }
        }
        Ok(())
    }

    /// Copies every row of a keyspace. At damage, the copy continues backwards from the end of the damaged
    /// range, then forwards behind it.
    fn space(&mut self, source: &Keyspace, target: &Keyspace) -> Result<(), VolumeError> {
        let mut next: Vec<u8> = Vec::new();
        loop {
            let mut damage = None;
            for key in source.iter((Bound::Included(&next[..]), Bound::Unbounded)).keys_only() {
                match key {
                    Ok((key, _)) => {
                        self.row(source, target, &key)?;
                        next = successor(&key);
                    }
                    Err(error) if error.is_corruption() => {
                        damage = Some(error);
                        break;
                    }
                    Err(error) => return Err(of_engine(&error)),
                }
            }
            let Some(error) = damage else { return Ok(()) };
            let end = self.end_of_damage(source.name(), &next);
            self.done.lost.push(format!("rows of `{}`: {error}", source.name()));
            let bound = end.as_ref().map_or(Bound::Unbounded, |end| Bound::Excluded(&end[..]));
            let back = source.iter((Bound::Included(&next[..]), bound)).keys_only();
            for key in back.rev().map_while(Result::ok) {
                self.row(source, target, &key.0)?;
            }
            match end {
                Some(end) => next = end,
                None => return Ok(()),
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

    fn row(&mut self, source: &Keyspace, target: &Keyspace, key: &[u8]) -> Result<(), VolumeError> {
        if !self.has_volume(target.name(), key) {
            return Ok(());
        }
        let value = match source.get(key) {
            Ok(Some(value)) => value,
            Ok(None) => return Ok(()),
            Err(error) if error.is_corruption() => {
                self.done.damaged_rows += 1;
                match in_parts(source, key) {
                    Ok(Some(value)) => value,
                    Ok(None) => return Ok(()),
                    Err(error) => return Err(of_engine(&error)),
                }
            }
            Err(error) => return Err(of_engine(&error)),
        };
        if target.name() == "volumes" {
            self.volumes.extend(keys::split(key).map(|(vid, _)| vid));
        }
        self.done.rows += 1;
        self.done.bytes += (key.len() + value.len()) as u64;
        self.put(target, key, value)
    }

    fn put(&mut self, target: &Keyspace, key: &[u8], value: Bytes) -> Result<(), VolumeError> {
        self.batch_bytes += key.len() + value.len();
        self.batch.put(target, key, value);
        if self.batch_bytes >= BATCH_BYTES || self.batch.memory_bytes() > self.to.batch_bytes() / 2 {
            self.commit()?;
        }
        Ok(())
    }

    fn commit(&mut self) -> Result<(), VolumeError> {
        let batch = std::mem::replace(&mut self.batch, self.to.batch());
        self.batch_bytes = 0;
        if !batch.is_empty() {
            batch.commit(Durability::Deferred).map_err(|error| of_engine(&error))?;
        }
        if (self.go_on)(self.done.bytes) {
            Ok(())
        } else {
            Err(VolumeError::Failed { reason: "the copy was ended".to_owned() })
        }
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
