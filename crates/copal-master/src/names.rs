//! Volumes by name: the tree that only the master knows.
//!
//! Paper: beanfs §3.3 (mkdir and rmdir are the master's, all else is the data servers')

use crate::{
    master::{Master, MasterError, Mastered, Reign},
    meta::Place,
};
use copal_volume::{VolumeError, VolumeId, check_volume_name, group::GroupId, split_parent, split_path};

impl Master {
    /// The volume at a path; the empty path is the root.
    /// # Errors
    /// `NotFound`.
    pub fn resolve(&self, path: &str) -> Mastered<VolumeId> {
        self.reign.lock().resolve(path)
    }

    /// Makes a volume below another. No data server is asked: its group is there, and rows come with its first file.
    /// # Errors
    /// `VolumeExists`, `NotFound`, `InvalidName`; `Unavailable`: too few data servers have joined.
    pub fn mkdir(&self, parent: &str, name: &str) -> Mastered<VolumeId> {
        check_volume_name(name)?;
        let mut reign = self.reign.lock();
        let parent = reign.resolve(parent)?;
        let group = reign.group_for_volume()?;
        let vid = reign.meta.mkdir(parent, name, group, None)??;
        reign.volumes_by_group[group.0 as usize - 1] += 1;
        Ok(vid)
    }

    /// Volumes directly below one.
    /// # Errors
    /// `NotFound`.
    pub fn list(&self, parent: &str, after: Option<&str>, limit: usize) -> Mastered<Vec<(String, VolumeId)>> {
        let mut reign = self.reign.lock();
        let parent = reign.resolve(parent)?;
        let rows = reign.meta.list(parent, after, limit)?;
        Ok(rows.into_iter().map(|row| (row.name, row.vid)).collect())
    }

    /// Moves a volume, with those below it.
    /// # Errors
    /// `NotFound`, `VolumeExists`; `InvalidName`: into itself.
    pub fn rename(&self, from: &str, to: &str) -> Mastered<()> {
        let mut reign = self.reign.lock();
        let (path, old_name) = split_parent(from)?;
        let above = reign.parent(&path)?;
        let vid = reign.resolve(from)?;
        let (path, name) = split_parent(to)?;
        let found = reign.meta.resolve(&path)?;
        if found.len() < path.len() {
            return Err(VolumeError::NotFound.into());
        }
        if vid == VolumeId::ROOT || found.iter().any(|row| row.vid == vid) {
            let reason = "a volume cannot be moved below itself".to_owned();
            return Err(VolumeError::InvalidName { reason }.into());
        }
        let parent = found.last().map_or(VolumeId::ROOT, |row| row.vid);
        let from = Place {
            parent: above,
            name: old_name,
            vid,
        };
        Ok(reign.meta.rename(from, parent, name)??)
    }

    /// Removes a volume that holds no volumes, by the path where it is. Its files go with it; whoever wants them kept looks
    /// first.
    /// # Errors
    /// `NotEmpty`; `NotFound`, `VolumeGone`: there is none, or another one, at that path.
    pub fn rmdir(&self, path: &str, vid: VolumeId) -> Mastered<()> {
        let mut reign = self.reign.lock();
        let (above, name) = split_parent(path)?;
        let parent = reign.parent(&above)?;
        let at = Place { parent, name, vid };
        reign.meta.mark_removing(at, true)??;
        let version = reign.meta.remove(at)??;
        reign.gone.push((vid, version));
        reign.map.version = version;
        self.changed.notify_all();
        Ok(())
    }
}

impl Reign {
    fn parent(&mut self, path: &[&str]) -> Mastered<VolumeId> {
        let found = self.meta.resolve(path)?;
        if found.len() < path.len() {
            return Err(VolumeError::NotFound.into());
        }
        Ok(found.last().map_or(VolumeId::ROOT, |row| row.vid))
    }

    fn resolve(&mut self, path: &str) -> Mastered<VolumeId> {
        let names = split_path(path)?;
        let found = self.meta.resolve(&names)?;
        match found.last() {
            _ if found.len() < names.len() => Err(MasterError::Volume(VolumeError::NotFound)),
            Some(row) => Ok(row.vid),
            None => Ok(VolumeId::ROOT),
        }
    }

    /// The group with the fewest volumes among those that have members; the lowest of equals.
    fn group_for_volume(&self) -> Mastered<GroupId> {
        let count = |group: GroupId| self.volumes_by_group[group.0 as usize - 1];
        let fewest = self
            .map
            .groups
            .keys()
            .copied()
            .min_by_key(|group| (count(*group), *group));
        fewest.ok_or_else(|| {
            let (joined, need) = (self.map.servers.len(), self.map.pool.replicas);
            let reason = format!("{joined} of {need} data servers have joined; start the others");
            VolumeError::Unavailable { reason }.into()
        })
    }
}
