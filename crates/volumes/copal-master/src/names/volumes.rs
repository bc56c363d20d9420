//! Volumes by name: the tree that only the master knows.
//!
//! Paper: beanfs §3.3 (mkdir and rmdir are the master's, all else is the data servers')

use crate::master::{Master, MasterError, Mastered, Reign};
use crate::tables::meta_store::Place;
use copal_volume::{VolumeError, VolumeId, check_volume_name, group::GroupId, split_parent, split_path};

impl Master {
    /// The volume at a path; the empty path is the root.
    /// # Errors
    /// `NotFound`.
    pub fn resolve(&self, path: &str) -> Mastered<VolumeId> {
        self.reign.lock().resolve(path)
    }

    /// Makes a volume below another. No data server is asked: its group is there, and rows come with its
    /// first file.
    /// # Errors
    /// `VolumeExists`, `NotFound`, `InvalidName`; `Unavailable`: too few data servers have joined.
    pub fn mkdir(&self, parent: &str, name: &str, quota: Option<u64>) -> Mastered<VolumeId> {
        check_volume_name(name)?;
        let mut reign = self.reign.lock();
        let parent = reign.resolve(parent)?;
        let group = reign.group_for_volume()?;
        let vid = reign.meta.mkdir(parent, name, group, quota)??;
        if quota.is_some() {
            let newest = reign.quotas.last().map_or(0, |quota| quota.version);
            let new = reign.meta.quotas(newest)?;
            reign.map.version = new.last().map_or(reign.map.version, |quota| quota.version);
            reign.quotas.extend(new);
            self.changed.notify_all();
        }
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

    /// The quota of a volume.
    pub fn quota(&self, vid: VolumeId) -> Option<u64> {
        let reign = self.reign.lock();
        let mut quotas = reign.quotas.iter();
        quotas.find(|quota| quota.vid == vid).map(|quota| quota.bytes)
    }

    /// Whether a volume of that id was ever made: ids of a group are given in their order.
    pub fn knows(&self, vid: VolumeId) -> bool {
        let group = vid.birth_group();
        let reign = self.reign.lock();
        let made = group.0.checked_sub(1).and_then(|at| reign.volumes_by_group.get(at as usize));
        let sequence = VolumeId::sequence(vid);
        made.is_some_and(|made| (1..=*made).contains(&sequence))
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
        let from = Place { parent: above, name: old_name, vid };
        Ok(reign.meta.rename(from, parent, name)??)
    }

    /// Begins to remove a volume that holds no volumes: its name leads nowhere any more. `path` is where the
    /// caller has found it; where that is another place by now, the volume is looked for everywhere. Returns
    /// where it is.
    /// # Errors
    /// `NotEmpty`, `VolumeGone`.
    pub fn begin_rmdir(&self, path: &str, vid: VolumeId) -> Mastered<Removing> {
        let mut reign = self.reign.lock();
        let removing = reign.whereabouts(path, vid)?;
        reign.meta.mark_removing(removing.place(), true)??;
        Ok(removing)
    }

    /// The volume is not removed after all.
    /// # Errors
    /// `VolumeGone`.
    pub fn undo_rmdir(&self, removing: &Removing) -> Mastered<()> {
        Ok(self.reign.lock().meta.mark_removing(removing.place(), false)??)
    }

    /// Removes a volume for good. Its files go with it; whoever wants them kept looks first.
    /// # Errors
    /// `VolumeGone`.
    pub fn rmdir(&self, removing: &Removing) -> Mastered<()> {
        let mut reign = self.reign.lock();
        let version = reign.meta.remove(removing.place())??;
        let vid = removing.vid;
        reign.gone.push((vid, version));
        reign.quotas.retain(|quota| quota.vid != vid);
        reign.map.version = version;
        self.changed.notify_all();
        Ok(())
    }
}

/// A volume that is being removed, and where it is.
#[derive(Clone, Debug)]
pub struct Removing {
    parent: VolumeId,
    name: String,
    vid: VolumeId,
}

impl Removing {
    fn place(&self) -> Place<'_> {
        Place { parent: self.parent, name: &self.name, vid: self.vid }
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

    fn whereabouts(&mut self, path: &str, vid: VolumeId) -> Mastered<Removing> {
        let found = match split_path(path) {
            Ok(names) => self.meta.resolve(&names)?,
            Err(_) => Vec::new(),
        };
        if let Some((row, above)) = found.split_last()
            && row.vid == vid
        {
            return Ok(Removing {
                parent: above.last().map_or(VolumeId::ROOT, |row| row.vid),
                name: row.name.clone(),
                vid,
            });
        }
        let (parent, name) = self.meta.find(vid)?.ok_or(VolumeError::VolumeGone)?;
        Ok(Removing { parent, name, vid })
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
        let fewest = self.map.groups.keys().copied().min_by_key(|group| (count(*group), *group));
        fewest.ok_or_else(|| {
            let (joined, need) = (self.map.servers.len(), self.map.pool.replicas);
            let reason = format!("{joined} of {need} data servers have joined; start the others");
            VolumeError::Unavailable { reason }.into()
        })
    }
}
