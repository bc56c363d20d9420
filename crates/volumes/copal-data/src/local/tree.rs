//! The tree of volumes: names of volumes, and removal of a volume.
//!
//! Changes of the tree are rare and take one lock; operations on files do not take it.

use super::LocalCore;
use crate::error::{corrupt, of_engine};
use crate::format::{
    NEXT_VID_KEY, VolumeRow, VolumeState, name_row, number_row, parse_name_row, parse_number_row,
};
use crate::keys;
use crate::second_copies::{self, CopiedRows};
use copal_kv::Durability;
use copal_volume::{
    RemoveMode, VolumeError, VolumeId, VolumeOptions, check_volume_name, split_parent, split_path,
};

impl LocalCore {
    /// The volume with this name below `parent`.
    fn child(&self, parent: VolumeId, name: &str) -> Result<Option<VolumeId>, VolumeError> {
        let key = keys::named(parent, name.as_bytes());
        let row = self.spaces.names.get(&key).map_err(|e| of_engine(&e))?;
        row.map(|row| {
            parse_name_row(&key, &row)
                .map_err(|error| corrupt(format!("the name {name:?} of a volume: {error}")))
        })
        .transpose()
    }

    fn resolve(&self, path: &[&str]) -> Result<VolumeId, VolumeError> {
        path.iter()
            .try_fold(VolumeId::ROOT, |parent, name| self.child(parent, name)?.ok_or(VolumeError::NotFound))
    }

    pub(super) fn open_volume(&self, path: &str) -> Result<VolumeId, VolumeError> {
        let (parent, name) = split_parent(path)?;
        let parent = self.resolve(&parent)?;
        self.child(parent, name)?.ok_or(VolumeError::NotFound)
    }

    pub(super) fn create_volume(
        &self,
        parent: &str,
        name: &str,
        options: &VolumeOptions,
    ) -> Result<VolumeId, VolumeError> {
        let parent = split_path(parent)?;
        check_volume_name(name)?;
        self.writable()?;
        let _tree = self.tree.lock();
        let parent = self.resolve(&parent)?;
        if let Some(vid) = self.child(parent, name)? {
            return Err(VolumeError::VolumeExists { vid });
        }
        let next = self
            .spaces
            .node
            .get(NEXT_VID_KEY)
            .map_err(|e| of_engine(&e))?
            .ok_or_else(|| corrupt("the next volume id is missing"))?;
        let next = parse_number_row(NEXT_VID_KEY, &next)
            .map_err(|error| corrupt(format!("the next volume id: {error}")))?;
        let vid = VolumeId(next);
        let stamp = self.times.stamp();
        let mut batch = self.kv.batch();
        let number = number_row(NEXT_VID_KEY, next + 1);
        batch.put(&self.spaces.node, NEXT_VID_KEY, number);
        let name_key = keys::named(parent, name.as_bytes());
        batch.put(&self.spaces.names, &name_key, name_row(&name_key, vid));
        let row = VolumeRow::new(parent, name, stamp.op.ms(), options);
        let key = keys::volume(vid);
        batch.put(&self.spaces.volumes, &key, row.row(&key));
        stamp.put(&self.spaces, &mut batch);
        self.commit(batch).map_err(super::CommitError::of_other)?;
        self.times.confirm(&stamp);
        if options.spare_copies {
            self.copied.lock().insert(vid);
        }
        let mut spares = self.kv.batch();
        let number = number_row(NEXT_VID_KEY, next + 1);
        second_copies::put(&self.spaces, &mut spares, CopiedRows::Node, NEXT_VID_KEY, number);
        second_copies::put(&self.spaces, &mut spares, CopiedRows::Volumes, &key, row.row(&key));
        self.commit_second_copies(spares);
        Ok(vid)
    }

    pub(super) fn rename_volume(&self, from: &str, to: &str) -> Result<(), VolumeError> {
        let (from_parent, from_name) = split_parent(from)?;
        let (to_parent, to_name) = split_parent(to)?;
        self.writable()?;
        let _tree = self.tree.lock();
        let old_parent = self.resolve(&from_parent)?;
        let vid = self.child(old_parent, from_name)?.ok_or(VolumeError::NotFound)?;
        let mut new_parent = VolumeId::ROOT;
        for name in &to_parent {
            new_parent = self.child(new_parent, name)?.ok_or(VolumeError::NotFound)?;
            if new_parent == vid {
                return Err(VolumeError::InvalidName {
                    reason: "a volume cannot move below itself".to_owned(),
                });
            }
        }
        match self.child(new_parent, to_name)? {
            Some(taken) if taken == vid => return Ok(()),
            Some(taken) => return Err(VolumeError::VolumeExists { vid: taken }),
            None => {}
        }
        let row =
            self.volume_row(vid)?.ok_or_else(|| corrupt(format!("the row of volume {vid} is missing")))?;
        let row = VolumeRow { parent: new_parent, name: to_name.to_owned(), ..row };
        let mut batch = self.kv.batch();
        let old_key = keys::named(old_parent, from_name.as_bytes());
        batch.delete(&self.spaces.names, &old_key);
        let new_key = keys::named(new_parent, to_name.as_bytes());
        batch.put(&self.spaces.names, &new_key, name_row(&new_key, vid));
        let key = keys::volume(vid);
        batch.put(&self.spaces.volumes, &key, row.row(&key));
        self.commit(batch).map_err(super::CommitError::of_other)?;
        let mut spares = self.kv.batch();
        second_copies::put(&self.spaces, &mut spares, CopiedRows::Volumes, &key, row.row(&key));
        self.commit_second_copies(spares);
        Ok(())
    }

    pub(super) fn list_volumes(
        &self,
        parent: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(String, VolumeId)>, VolumeError> {
        let parent = self.resolve(&split_path(parent)?)?;
        let after = after.map(|after| keys::named(parent, after.as_bytes()));
        let range = keys::range(&keys::volume(parent), after.as_deref());
        let mut volumes = Vec::new();
        for row in self.spaces.names.iter(keys::borrowed(&range)).take(limit) {
            let (key, row) = row.map_err(|e| of_engine(&e))?;
            let damaged =
                |what: &dyn std::fmt::Display| corrupt(format!("a name below volume {parent}: {what}"));
            let vid = parse_name_row(&key, &row).map_err(|error| damaged(&error))?;
            let name = keys::split(&key).map_or(&[][..], |(_, name)| name);
            let name = std::str::from_utf8(name).map_err(|error| damaged(&error))?;
            volumes.push((name.to_owned(), vid));
        }
        Ok(volumes)
    }

    pub(super) fn remove_volume(&self, vid: VolumeId, how: RemoveMode) -> Result<(), VolumeError> {
        self.writable()?;
        let _tree = self.tree.lock();
        let closed = self.name_locks.close(vid, self)?;
        let row = self.volume_row(vid)?.ok_or(VolumeError::VolumeGone)?;
        let holds = |space: &copal_kv::Keyspace| {
            let first = space.prefix(&keys::volume(vid)).keys_only().next();
            first.transpose().map_err(|e| of_engine(&e))
        };
        if holds(&self.spaces.names)?.is_some()
            || (how == RemoveMode::IfEmpty && holds(&self.spaces.files)?.is_some())
        {
            return Err(VolumeError::NotEmpty);
        }
        self.delete_second_copies(vid)?;
        let mut batch = self.kv.batch();
        let name_key = keys::named(row.parent, row.name.as_bytes());
        batch.delete(&self.spaces.names, &name_key);
        let row = VolumeRow { state: VolumeState::Removing, ..row };
        let key = keys::volume(vid);
        batch.put(&self.spaces.volumes, &key, row.row(&key));
        self.commit(batch).map_err(super::CommitError::of_other)?;
        closed.removed();
        if let Err(error) = self.purge(vid) {
            tracing::warn!(%vid, %error, "the space of a removed volume returns at the next open");
        }
        Ok(())
    }

    /// Deletes the second copies of a volume's row and files.
    fn delete_second_copies(&self, vid: VolumeId) -> Result<(), VolumeError> {
        let prefix = keys::volume(vid);
        if self.copied.lock().remove(&vid) {
            second_copies::delete_files(&self.spaces, &prefix)?;
        }
        let mut batch = self.kv.batch();
        second_copies::delete(&self.spaces, &mut batch, CopiedRows::Volumes, &prefix);
        self.commit_deferred(batch)
    }

    /// Deletes all rows of a volume under removal, without reading value objects, and its own row last.
    pub(super) fn purge(&self, vid: VolumeId) -> Result<(), VolumeError> {
        let prefix = keys::volume(vid);
        for space in self.spaces.of_files() {
            space.purge_prefix(&prefix, Durability::Deferred).map_err(|e| of_engine(&e))?;
        }
        let mut batch = self.kv.batch();
        batch.delete(&self.spaces.volumes, &prefix);
        self.commit_deferred(batch)
    }

    /// Frees the space of deleted files now.
    pub(super) fn reclaim(&self, vid: VolumeId) -> Result<(), VolumeError> {
        self.alive(vid)?;
        self.writable()?;
        let range = keys::range(&keys::volume(vid), None);
        for space in self.spaces.of_files() {
            space.compact_range(keys::borrowed(&range)).map_err(|e| of_engine(&e))?;
        }
        Ok(())
    }
}
