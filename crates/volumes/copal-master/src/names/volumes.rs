//! Volumes by name: the tree of volumes, their quotas and their birth groups.
//!
//! Paper: beanfs §3.3 (mkdir and rmdir are the master's, all else is the data servers')

use crate::{
    error::{MasterError, MasterResult},
    tables::{
        cluster_map::ClusterMap,
        meta_store::{MetaStore, QuotaRow, VolumePlace},
    },
};
use copal_volume::{VolumeError, VolumeId, check_volume_name, group::GroupId, split_parent, split_path};

/// State of volumes that the leader keeps in memory.
pub(crate) struct VolumeNames {
    /// Removed volumes that some member may not know of yet, each with the version of its removal.
    removed: Vec<(VolumeId, u64)>,
    /// Time when these were last compared with the reports of members, ms.
    last_forget_ms: u64,
    quotas: Vec<QuotaRow>,
    /// Number of volumes that were ever made in each group, the first group first.
    volumes_by_group: Vec<u64>,
}

/// A volume that is being removed, and its place.
#[derive(Clone, Debug)]
pub struct VolumeRemoval {
    parent: VolumeId,
    name: String,
    vid: VolumeId,
}

impl VolumeRemoval {
    pub(crate) fn place(&self) -> VolumePlace<'_> {
        VolumePlace { parent: self.parent, name: &self.name, vid: self.vid }
    }
}

impl VolumeNames {
    /// Reads the tables at the begin of a term.
    pub(crate) fn load(tables: &mut dyn MetaStore) -> MasterResult<VolumeNames> {
        Ok(VolumeNames {
            removed: tables.removed_volumes(0)?,
            last_forget_ms: 0,
            quotas: tables.quotas(0)?,
            volumes_by_group: tables.volumes_by_group()?.into_iter().map(|(_, count)| count).collect(),
        })
    }

    /// Quotas of all volumes that have one.
    pub(crate) fn quotas(&self) -> &[QuotaRow] {
        &self.quotas
    }

    /// Removed volumes that some member may not know of yet, each with the version of its removal.
    pub(crate) fn removed(&self) -> &[(VolumeId, u64)] {
        &self.removed
    }

    pub(super) fn removed_mut(&mut self) -> (&mut Vec<(VolumeId, u64)>, &mut u64) {
        (&mut self.removed, &mut self.last_forget_ms)
    }

    /// Makes the next comparison of removed volumes with the reports of members due at once.
    pub(crate) fn reset_forget_time(&mut self) {
        self.last_forget_ms = 0;
    }

    /// Makes a volume. A quota is a change of the map.
    pub(crate) fn mkdir(
        &mut self,
        tables: &mut dyn MetaStore,
        map: &mut ClusterMap,
        (parent, name): (&str, &str),
        quota: Option<u64>,
    ) -> MasterResult<VolumeId> {
        check_volume_name(name)?;
        let parent = resolve(tables, parent)?;
        let group = self.group_for_volume(map)?;
        let vid = tables.mkdir(parent, name, group, quota)??;
        if quota.is_some() {
            let newest = self.quotas.last().map_or(0, |quota| quota.version);
            let new = tables.quotas(newest)?;
            map.version = new.last().map_or(map.version, |quota| quota.version);
            self.quotas.extend(new);
        }
        self.volumes_by_group[group.0 as usize - 1] += 1;
        Ok(vid)
    }

    /// Removes a volume for good, as a new version of the map.
    pub(crate) fn rmdir(
        &mut self,
        tables: &mut dyn MetaStore,
        map: &mut ClusterMap,
        removal: &VolumeRemoval,
    ) -> MasterResult<()> {
        let version = tables.remove(removal.place())??;
        let vid = removal.vid;
        self.removed.push((vid, version));
        self.quotas.retain(|quota| quota.vid != vid);
        map.version = version;
        Ok(())
    }

    pub(crate) fn quota(&self, vid: VolumeId) -> Option<u64> {
        self.quotas.iter().find(|quota| quota.vid == vid).map(|quota| quota.bytes)
    }

    /// Whether a volume of that id was ever made. A group gives its ids in ascending order.
    pub(crate) fn was_created(&self, vid: VolumeId) -> bool {
        let group = vid.birth_group();
        let made = group.0.checked_sub(1).and_then(|at| self.volumes_by_group.get(at as usize));
        let sequence = VolumeId::sequence(vid);
        made.is_some_and(|made| (1..=*made).contains(&sequence))
    }

    /// The group with the fewest volumes among those that have members; the lowest of equals.
    fn group_for_volume(&self, map: &ClusterMap) -> MasterResult<GroupId> {
        let count = |group: GroupId| self.volumes_by_group[group.0 as usize - 1];
        let fewest = map.groups.keys().copied().min_by_key(|group| (count(*group), *group));
        fewest.ok_or_else(|| {
            let (joined, need) = (map.servers.len(), map.pool.replicas);
            let reason = format!("{joined} of {need} data servers have joined; start the others");
            VolumeError::Unavailable { reason }.into()
        })
    }
}

/// The volume at a path; the empty path is the root.
pub(crate) fn resolve(tables: &mut dyn MetaStore, path: &str) -> MasterResult<VolumeId> {
    let names = split_path(path)?;
    let found = tables.resolve(&names)?;
    match found.last() {
        _ if found.len() < names.len() => Err(MasterError::Volume(VolumeError::NotFound)),
        Some(row) => Ok(row.vid),
        None => Ok(VolumeId::ROOT),
    }
}

/// Moves a volume with the volumes below it.
pub(crate) fn rename(tables: &mut dyn MetaStore, from: &str, to: &str) -> MasterResult<()> {
    let (path, old_name) = split_parent(from)?;
    let old_parent = resolve_parent(tables, &path)?;
    let vid = resolve(tables, from)?;
    let (path, name) = split_parent(to)?;
    let found = tables.resolve(&path)?;
    if found.len() < path.len() {
        return Err(VolumeError::NotFound.into());
    }
    if vid == VolumeId::ROOT || found.iter().any(|row| row.vid == vid) {
        let reason = "a volume cannot be moved below itself".to_owned();
        return Err(VolumeError::InvalidName { reason }.into());
    }
    let parent = found.last().map_or(VolumeId::ROOT, |row| row.vid);
    let from = VolumePlace { parent: old_parent, name: old_name, vid };
    Ok(tables.rename(from, parent, name)??)
}

fn resolve_parent(tables: &mut dyn MetaStore, path: &[&str]) -> MasterResult<VolumeId> {
    let found = tables.resolve(path)?;
    if found.len() < path.len() {
        return Err(VolumeError::NotFound.into());
    }
    Ok(found.last().map_or(VolumeId::ROOT, |row| row.vid))
}

/// Finds the place of a volume: at `path`, or by a scan of all volumes if it is elsewhere by now.
pub(crate) fn find_place(
    tables: &mut dyn MetaStore,
    path: &str,
    vid: VolumeId,
) -> MasterResult<VolumeRemoval> {
    let found = match split_path(path) {
        Ok(names) => tables.resolve(&names)?,
        Err(_) => Vec::new(),
    };
    if let Some((row, above)) = found.split_last()
        && row.vid == vid
    {
        return Ok(VolumeRemoval {
            parent: above.last().map_or(VolumeId::ROOT, |row| row.vid),
            name: row.name.clone(),
            vid,
        });
    }
    let (parent, name) = tables.find(vid)?.ok_or(VolumeError::VolumeGone)?;
    Ok(VolumeRemoval { parent, name, vid })
}
