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

/// The volume with this name below `parent`.
fn child(core: &LocalCore, parent: VolumeId, name: &str) -> Result<Option<VolumeId>, VolumeError> {
    let key = keys::named(parent, name.as_bytes());
    let row = core.spaces.names.get(&key).map_err(|e| of_engine(&e))?;
    row.map(|row| {
        parse_name_row(&key, &row).map_err(|error| corrupt(format!("the name {name:?} of a volume: {error}")))
    })
    .transpose()
}

fn resolve(core: &LocalCore, path: &[&str]) -> Result<VolumeId, VolumeError> {
    path.iter()
        .try_fold(VolumeId::ROOT, |parent, name| child(core, parent, name)?.ok_or(VolumeError::NotFound))
}

pub(super) fn open_volume(core: &LocalCore, path: &str) -> Result<VolumeId, VolumeError> {
    let (parent, name) = split_parent(path)?;
    let parent = resolve(core, &parent)?;
    child(core, parent, name)?.ok_or(VolumeError::NotFound)
}

pub(super) fn create_volume(
    core: &LocalCore,
    parent: &str,
    name: &str,
    options: &VolumeOptions,
) -> Result<VolumeId, VolumeError> {
    let parent = split_path(parent)?;
    check_volume_name(name)?;
    core.writable()?;
    let _tree = core.tree.lock();
    let parent = resolve(core, &parent)?;
    if let Some(vid) = child(core, parent, name)? {
        return Err(VolumeError::VolumeExists { vid });
    }
    let next = core
        .spaces
        .node
        .get(NEXT_VID_KEY)
        .map_err(|e| of_engine(&e))?
        .ok_or_else(|| corrupt("the next volume id is missing"))?;
    let next = parse_number_row(NEXT_VID_KEY, &next)
        .map_err(|error| corrupt(format!("the next volume id: {error}")))?;
    let vid = VolumeId(next);
    let stamp = core.times.stamp();
    let mut batch = core.kv.batch();
    let number = number_row(NEXT_VID_KEY, next + 1);
    batch.put(&core.spaces.node, NEXT_VID_KEY, number);
    let name_key = keys::named(parent, name.as_bytes());
    batch.put(&core.spaces.names, &name_key, name_row(&name_key, vid));
    let row = VolumeRow::new(parent, name, stamp.op.ms(), options);
    let key = keys::volume(vid);
    batch.put(&core.spaces.volumes, &key, row.row(&key));
    stamp.put(&core.spaces, &mut batch);
    core.commit(batch).map_err(super::CommitError::of_other)?;
    core.times.confirm(&stamp);
    if options.spare_copies {
        core.copied_volumes.lock().insert(vid);
    }
    let mut spares = core.kv.batch();
    let number = number_row(NEXT_VID_KEY, next + 1);
    second_copies::put(&core.spaces, &mut spares, CopiedRows::Node, NEXT_VID_KEY, number);
    second_copies::put(&core.spaces, &mut spares, CopiedRows::Volumes, &key, row.row(&key));
    core.commit_second_copies(spares);
    Ok(vid)
}

pub(super) fn rename_volume(core: &LocalCore, from: &str, to: &str) -> Result<(), VolumeError> {
    let (from_parent, from_name) = split_parent(from)?;
    let (to_parent, to_name) = split_parent(to)?;
    core.writable()?;
    let _tree = core.tree.lock();
    let old_parent = resolve(core, &from_parent)?;
    let vid = child(core, old_parent, from_name)?.ok_or(VolumeError::NotFound)?;
    let mut new_parent = VolumeId::ROOT;
    for name in &to_parent {
        new_parent = child(core, new_parent, name)?.ok_or(VolumeError::NotFound)?;
        if new_parent == vid {
            return Err(VolumeError::InvalidName { reason: "a volume cannot move below itself".to_owned() });
        }
    }
    match child(core, new_parent, to_name)? {
        Some(taken) if taken == vid => return Ok(()),
        Some(taken) => return Err(VolumeError::VolumeExists { vid: taken }),
        None => {}
    }
    let row = core.volume_row(vid)?.ok_or_else(|| corrupt(format!("the row of volume {vid} is missing")))?;
    let row = VolumeRow { parent: new_parent, name: to_name.to_owned(), ..row };
    let mut batch = core.kv.batch();
    let old_key = keys::named(old_parent, from_name.as_bytes());
    batch.delete(&core.spaces.names, &old_key);
    let new_key = keys::named(new_parent, to_name.as_bytes());
    batch.put(&core.spaces.names, &new_key, name_row(&new_key, vid));
    let key = keys::volume(vid);
    batch.put(&core.spaces.volumes, &key, row.row(&key));
    core.commit(batch).map_err(super::CommitError::of_other)?;
    let mut spares = core.kv.batch();
    second_copies::put(&core.spaces, &mut spares, CopiedRows::Volumes, &key, row.row(&key));
    core.commit_second_copies(spares);
    Ok(())
}

pub(super) fn list_volumes(
    core: &LocalCore,
    parent: &str,
    after: Option<&str>,
    limit: usize,
) -> Result<Vec<(String, VolumeId)>, VolumeError> {
    let parent = resolve(core, &split_path(parent)?)?;
    let after = after.map(|after| keys::named(parent, after.as_bytes()));
    let range = keys::range(&keys::volume(parent), after.as_deref());
    let mut volumes = Vec::new();
    for row in core.spaces.names.iter(keys::borrowed(&range)).take(limit) {
        let (key, row) = row.map_err(|e| of_engine(&e))?;
        let damaged = |what: &dyn std::fmt::Display| corrupt(format!("a name below volume {parent}: {what}"));
        let vid = parse_name_row(&key, &row).map_err(|error| damaged(&error))?;
        let name = keys::split(&key).map_or(&[][..], |(_, name)| name);
        let name = std::str::from_utf8(name).map_err(|error| damaged(&error))?;
        volumes.push((name.to_owned(), vid));
    }
    Ok(volumes)
}

pub(super) fn remove_volume(core: &LocalCore, vid: VolumeId, how: RemoveMode) -> Result<(), VolumeError> {
    core.writable()?;
    let _tree = core.tree.lock();
    let closed = core.name_locks.close(vid, core)?;
    let row = core.volume_row(vid)?.ok_or(VolumeError::VolumeGone)?;
    let holds = |space: &copal_kv::Keyspace| {
        let first = space.prefix(&keys::volume(vid)).keys_only().next();
        first.transpose().map_err(|e| of_engine(&e))
    };
    if holds(&core.spaces.names)?.is_some()
        || (how == RemoveMode::IfEmpty && holds(&core.spaces.files)?.is_some())
    {
        return Err(VolumeError::NotEmpty);
    }
    delete_second_copies(core, vid)?;
    let mut batch = core.kv.batch();
    let name_key = keys::named(row.parent, row.name.as_bytes());
    batch.delete(&core.spaces.names, &name_key);
    let row = VolumeRow { state: VolumeState::Removing, ..row };
    let key = keys::volume(vid);
    batch.put(&core.spaces.volumes, &key, row.row(&key));
    core.commit(batch).map_err(super::CommitError::of_other)?;
    closed.removed();
    if let Err(error) = purge(core, vid) {
        tracing::warn!(%vid, %error, "the space of a removed volume returns at the next open");
    }
    Ok(())
}

/// Deletes the second copies of a volume's row and files.
fn delete_second_copies(core: &LocalCore, vid: VolumeId) -> Result<(), VolumeError> {
    let prefix = keys::volume(vid);
    if core.copied_volumes.lock().remove(&vid) {
        second_copies::delete_files(&core.spaces, &prefix)?;
    }
    let mut batch = core.kv.batch();
    second_copies::delete(&core.spaces, &mut batch, CopiedRows::Volumes, &prefix);
    core.commit_deferred(batch)
}

/// Deletes all rows of a volume under removal, without reading value objects, and its own row last.
pub(super) fn purge(core: &LocalCore, vid: VolumeId) -> Result<(), VolumeError> {
    let prefix = keys::volume(vid);
    for space in core.spaces.of_files() {
        space.purge_prefix(&prefix, Durability::Deferred).map_err(|e| of_engine(&e))?;
    }
    let mut batch = core.kv.batch();
    batch.delete(&core.spaces.volumes, &prefix);
    core.commit_deferred(batch)
}

/// Frees the space of deleted files now.
pub(super) fn reclaim(core: &LocalCore, vid: VolumeId) -> Result<(), VolumeError> {
    core.alive(vid)?;
    core.writable()?;
    let range = keys::range(&keys::volume(vid), None);
    for space in core.spaces.of_files() {
        space.compact_range(keys::borrowed(&range)).map_err(|e| of_engine(&e))?;
    }
    Ok(())
}
