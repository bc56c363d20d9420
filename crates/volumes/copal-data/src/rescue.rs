//! Rescue: copies every row that can be read into another store, as it is.
//!
//! Rows keep their keys, so volumes, files and times are in the copy what they were; what is damaged there is
//! damaged here too, and is found by the same checksums. Index keyspaces of other layers are left out: they
//! are made anew. Invariants
//! - A row is copied as it was read and verified by the engine; the one exception is a piece of a body of
//!   which parts are damaged: they become zeros, which the checksums of the piece's blocks, in rows of their
//!   own, give away.
//! - Damage ends no copy: it is passed over, and counted.
//! - Rows that describe the store are taken from their second copies where the first cannot be read.
//! - Files of a volume that is lost are left out: nobody could name them, and they would take space for ever.
//!
//! Not here: what the files mean; what to do about those that are lost.

use crate::{
    error::of_engine,
    format::{
        GROUP_KEY_LEN, NEXT_VID_KEY, VolumeRow, VolumeState, group_row, name_row, number_row,
        parse_number_row,
    },
    keys::{self, GROUP},
    local::EPOCH,
    spaces::Spaces,
    spare::{self, Of},
};
use bytes::Bytes;
use copal_kv::{Batch, Durability, Error, Keyspace, Store};
use copal_volume::{VolumeError, VolumeId};
use std::{collections::BTreeSet, ops::Bound};

/// Bytes of rows in one batch.
const BATCH_BYTES: usize = 512 << 10;
/// Parts of a damaged piece that are tried one by one; the engine sums no smaller ones.
const PART_BYTES: u64 = 64 << 10;
/// No piece of a body is longer.
const PIECE_BYTES: u64 = 4 << 20;

/// What a rescue copied, and what it could not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rescued {
    /// Rows in the copy.
    pub rows: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Rows whose keys were read and whose values were not, or not all.
    pub damaged_rows: u64,
    /// Stretches of keys that cannot be read, as sentences.
    pub lost: Vec<String>,
}

impl Rescued {
    /// Everything was copied.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.damaged_rows == 0 && self.lost.is_empty()
    }
}

/// Copies the volumes of `from`, which may be damaged, into `to`, which is empty. `go_on` is told how many
/// bytes were copied, often, and may end the copy. Blocks for as long as reading everything takes; durable on
/// return.
/// # Errors
/// `NoSpace`: `to` is full. `Failed`: either store failed otherwise, or `go_on` ended it. Damage of `from` is
/// no error.
pub fn rescue(from: &Store, to: &Store, go_on: &mut dyn FnMut(u64) -> bool) -> Result<Rescued, VolumeError> {
    let target = Spaces::open(to)?;
    let mut rescue = Rescue {
        from,
        to,
        batch: to.batch(),
        batch_bytes: 0,
        done: Rescued::default(),
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

struct Rescue<'a> {
    from: &'a Store,
    to: &'a Store,
    batch: Batch,
    batch_bytes: usize,
    done: Rescued,
    /// Volumes that were copied, and those of which only files are left.
    volumes: BTreeSet<VolumeId>,
    lost_volumes: BTreeSet<VolumeId>,
    go_on: &'a mut dyn FnMut(u64) -> bool,
}

/// Writes what follows from other rows and may be lost: names of volumes, and the next volume's number. A
/// copy without an identity gets one when it is opened first.
fn describe(to: &Store, target: &Spaces) -> Result<(), VolumeError> {
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

impl Rescue<'_> {
    /// Puts the second copies back; first copies that can be read take their places.
    fn spares(&mut self, target: &Spaces) -> Result<(), VolumeError> {
        let spare = self.from.open_keyspace(spare::NAME);
        let Some(spare) = spare.map_err(|error| of_engine(&error))? else {
            return Ok(());
        };
        for of in Of::ALL {
            for row in spare::copies(&spare, of) {
                let (key, row) = match row {
                    Err(error) if error.is_corruption() => break,
                    row => row.map_err(|error| of_engine(&error))?,
                };
                if of == Of::Volumes {
                    self.volumes.extend(keys::split(&key).map(|(vid, _)| vid));
                }
                self.put(of.space(target), &key, row)?;
            }
        }
        Ok(())
    }

    /// Every row of a keyspace: up to damage, from the other side of it as far back as can be read, and on
    /// behind it.
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

    /// Where the damage that a walk met at `next` or behind it ends; `None`: with the keyspace.
    fn end_of_damage(&self, keyspace: &str, next: &[u8]) -> Option<Vec<u8>> {
        let ranges = self.from.damaged_ranges().into_iter();
        let behind = ranges.filter(|range| {
            range.keyspace == keyspace && range.end.as_ref().is_none_or(|end| &end[..] > next)
        });
        let first = behind.min_by(|one, other| one.start.cmp(&other.start))?;
        first.end.map(|end| end.to_vec())
    }

    /// Whether a row of a file belongs to a volume that is there.
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

/// A value of which parts are damaged, with zeros in their place; `None`: it is short, or none of it can be
/// read.
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
