//! Damaged rows of a group: found, given up, so that they can be taken over from a member that has them.
//!
//! What can be read stays. A file that cannot be read to its last byte goes with its head: then it is lacking
//! like one that was never here, and becoming whole brings it back (VOL-16). Lost deletes and lost records of
//! the journal come back the same way.
//!
//! Design: docs/design/cluster.md#rules VOL-28
//! Not here: whether another member has all of it, and when to look (`copal-server`).

use super::store::MemberStore;
use crate::{
    error::{corrupt, of_engine},
    format::FileHead,
    keys,
    local::delete_pieces,
};
use bytes::Bytes;
use copal_kv::{DamagedRange, Durability, Keyspace};
use copal_volume::{FileId, VolumeError, VolumeId, group::GroupId};
use std::ops::Bound;

/// Damaged ranges of one keyspace and group that are given up one after the other, before it is said that
/// there is no end.
const MOST_RANGES: usize = 100_000;

/// What was given up of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GivenUp {
    /// Files.
    pub files: u64,
    /// Ranges of keys.
    pub ranges: u64,
}

/// A file that cannot be read.
struct Unreadable {
    key: Bytes,
    vid: VolumeId,
    /// `None`: its head cannot be understood.
    file: Option<(FileId, u64)>,
}

/// The disk being read in the background, until it is dropped.
pub struct Scrubbing(copal_kv::Scrub);

impl Scrubbing {
    /// Whether it has ended.
    pub fn is_over(&self) -> bool {
        self.0.is_over()
    }
}

impl MemberStore {
    /// Reads everything on the disk in the background, at most so many bytes a second; what is damaged is
    /// found by [`MemberStore::damaged_groups`]. `None`: the store is being closed.
    pub fn scrub(&self, bytes_per_s: u64) -> Option<Scrubbing> {
        self.core.kv.scrub(bytes_per_s).ok().map(Scrubbing)
    }

    /// Groups of this disk in which damage was met and has not been given up: what reads, scrubs and checks
    /// have found.
    /// # Errors
    /// `Corrupt`, `Failed`.
    pub fn damaged_groups(&self) -> Result<Vec<GroupId>, VolumeError> {
        let damaged = self.core.kv.damaged_ranges();
        let mut groups = Vec::new();
        if damaged.is_empty() {
            return Ok(groups);
        }
        for membership in self.memberships()? {
            let group = membership.group;
            let is_of_group = |damage: &DamagedRange| {
                self.space_of_group(&damage.keyspace).is_some() && within(damage, group).is_some()
            };
            if damaged.iter().any(is_of_group) {
                groups.push(group);
            }
        }
        Ok(groups)
    }

    /// Reads everything of a group, and gives up what cannot be read. The member is not whole meanwhile, nor
    /// afterwards ([`MemberStore::note_damage`] comes first). Operations wait while something is given up,
    /// not while it is read. Blocks.
    /// # Errors
    /// `Corrupt`: damage that does not go away. `NoSpace`, `Failed`.
    pub fn give_up_damaged(&self, group: GroupId) -> Result<GivenUp, VolumeError> {
        let mut given_up = GivenUp { ranges: self.salvage(group)?, files: 0 };
        let own = &self.core.own;
        for space in [&own.tombs, &own.journal, &own.siblings] {
            self.walk(group, space, &mut given_up, |_, _| Ok(()))?;
        }
        let mut unreadable = Vec::new();
        self.walk(group, &self.core.spaces.files, &mut given_up, |key, row| {
            let Some((vid, _)) = keys::split(key) else {
                return Err(corrupt("the key of a file is cut"));
            };
            let file = match FileHead::parse(key, row) {
                Ok(head) => match self.read_through(key, &head)? {
                    Some(_) => Some((head.fid, head.size)),
                    None => return Ok(()),
                },
                Err(_) => None,
            };
            unreadable.push(Unreadable { key: key.clone(), vid, file });
            Ok(())
        })?;
        for file in unreadable {
            given_up.files += u64::from(self.give_up_file(group, &file)?);
        }
        // Pieces that were found damaged by reading files, and what files left behind that were given up.
        given_up.ranges += self.salvage(group)?;
        self.core.digests.lock().forget_group(group);
        self.core.used.lock().retain(|vid, _| vid.birth_group() != group);
        Ok(given_up)
    }

    /// Goes through the rows of a group in one keyspace; damaged ranges on the way are given up.
    fn walk(
        &self,
        group: GroupId,
        space: &Keyspace,
        given_up: &mut GivenUp,
        mut each: impl FnMut(&Bytes, &Bytes) -> Result<(), VolumeError>,
    ) -> Result<(), VolumeError> {
        let mut after: Option<Bytes> = None;
        for _ in 0..MOST_RANGES {
            let range = keys::range(&keys::group(group), after.as_deref());
            let mut damage = None;
            for row in space.iter(keys::borrowed(&range)) {
                match row {
                    Ok((key, row)) => {
                        each(&key, &row)?;
                        after = Some(key);
                    }
                    Err(error) if error.is_corruption() => {
                        damage = Some(error.to_string());
                        break;
                    }
                    Err(error) => return Err(of_engine(&error)),
                }
            }
            let Some(what) = damage else { return Ok(()) };
            match self.salvage(group)? {
                0 => return Err(corrupt(what)),
                ranges => given_up.ranges += ranges,
            }
        }
        Err(corrupt("there is no end to the damage of a group"))
    }

    /// Gives up the damaged ranges of a group that are known; rows in them that can be read stay. How many.
    fn salvage(&self, group: GroupId) -> Result<u64, VolumeError> {
        let mut ranges = 0;
        for damage in self.core.kv.damaged_ranges() {
            let Some(space) = self.space_of_group(&damage.keyspace) else {
                continue;
            };
            let Some((start, end)) = within(&damage, group) else {
                continue;
            };
            let queue = self.core.queue(group)?;
            // Nobody writes there meanwhile.
            let _member = queue.member.lock();
            let end = end.as_ref().map_or(Bound::Unbounded, |end| Bound::Excluded(&end[..]));
            let salvaged = space.salvage((Bound::Included(&start[..]), end));
            salvaged.map_err(|error| of_engine(&error))?;
            tracing::warn!(%group, keyspace = damage.keyspace, what = damage.what, "damaged rows were given up");
            ranges += 1;
        }
        Ok(ranges)
    }

    /// Drops a file that cannot be read; whether it still was what its name meant.
    fn give_up_file(&self, group: GroupId, file: &Unreadable) -> Result<bool, VolumeError> {
        let core = &self.core;
        let queue = core.queue(group)?;
        let _member = queue.member.lock();
        let mut batch = core.kv.batch();
        if let Some((fid, size)) = file.file {
            let now = core.head(&core.spaces.files, &file.key)?;
            if now.is_none_or(|now| now.fid != fid) {
                return Ok(false);
            }
            delete_pieces(&core.spaces, &mut batch, file.vid, fid, size);
        }
        batch.delete(&core.spaces.files, &file.key);
        core.commit_essential(batch, Durability::Device)?;
        tracing::warn!(%group, volume = %file.vid, "a file that cannot be read was given up");
        Ok(true)
    }

    /// A keyspace whose rows other members have as well.
    fn space_of_group(&self, name: &str) -> Option<&Keyspace> {
        let (spaces, own) = (self.core.spaces.of_files(), &self.core.own);
        let all = spaces.into_iter().chain([&own.tombs, &own.journal, &own.siblings]);
        let mut named = all.filter(|space| space.name() == name);
        named.next()
    }
}

/// The part of a damaged range that belongs to a group: its first key, and the first behind it.
fn within(damage: &DamagedRange, group: GroupId) -> Option<(Bytes, Option<Bytes>)> {
    let first = Bytes::copy_from_slice(&keys::group(group));
    let behind = keys::above(&first).map(Bytes::from);
    let start = damage.start.clone().max(first);
    let end = match (damage.end.clone(), behind) {
        (Some(end), Some(behind)) => Some(end.min(behind)),
        (end, behind) => end.or(behind),
    };
    let is_empty = end.as_ref().is_some_and(|end| *end <= start);
    (!is_empty).then_some((start, end))
}
