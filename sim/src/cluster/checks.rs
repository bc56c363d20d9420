//! Invariants of the replicas of all groups, checked during a run and at its end.

use super::{history::History, hosts::DataHost, workload::text};
use copal_client::MapCache;
use copal_data::{FileState, GroupMembership, MemberStore, VerifySpan};
use copal_volume::{
    FileId, VolumeError, VolumeId,
    group::{
        DiskId, GroupId, Role, View,
        invariants::{self, FileResults, KnownResult, ReplicaState},
    },
};
use std::collections::{BTreeMap, BTreeSet};

/// Names and files that a replica shows, among the files of the history.
struct Shown {
    disk: DiskId,
    role: Role,
    named: BTreeMap<(VolumeId, Vec<u8>), FileId>,
    live: BTreeSet<FileId>,
}

impl ReplicaState for Shown {
    fn disk(&self) -> DiskId {
        self.disk
    }

    fn role(&self) -> Role {
        self.role
    }

    fn resolve(&self, vid: VolumeId, name: &[u8]) -> Option<FileId> {
        self.named.get(&(vid, name.to_vec())).copied()
    }

    fn is_live(&self, _: VolumeId, _: &[u8], fid: FileId) -> bool {
        self.live.contains(&fid)
    }
}

impl Shown {
    /// # Errors
    /// The disk could not be read: its contents are unknown.
    fn of(
        store: &MemberStore,
        disk: DiskId,
        role: Role,
        files: &[FileResults<'_>],
    ) -> Result<Shown, VolumeError> {
        let mut shown = Shown { disk, role, named: BTreeMap::new(), live: BTreeSet::new() };
        for file in files {
            match store.stat(file.vid, file.name, None) {
                Ok(info) => drop(shown.named.insert((file.vid, file.name.to_vec()), info.fid)),
                Err(VolumeError::NotFound) => {}
                Err(error) => return Err(error),
            }
            if let FileState::Live { .. } = store.find(file.vid, file.fid)? {
                shown.live.insert(file.fid);
            }
        }
        Ok(shown)
    }
}

/// Running replicas of a group that are in sync in its newest view; none if a server knows a newer view.
fn members<'a>(
    view: &View,
    map: &MapCache,
    data: &'a [DataHost],
) -> impl Iterator<Item = (&'a DataHost, &'a MemberStore, DiskId)> {
    let (group, epoch) = (view.group, view.epoch);
    let epoch_at = |host: &DataHost| {
        let own = host.running.as_ref()?.store.membership(group);
        Some(own.ok().flatten()?.epoch)
    };
    let is_newest = data.iter().filter_map(epoch_at).all(|known| known <= epoch);
    let whole = view.in_sync().filter(move |_| is_newest);
    let placed = whole.filter_map(|disk| Some((disk, map.place(disk)?.server_uuid)));
    let placed: Vec<_> = placed.collect();
    placed.into_iter().filter_map(move |(disk, uuid)| {
        let host = data.iter().find(|host| host.uuid[..] == uuid[..])?;
        let store = &host.running.as_ref()?.store;
        let own = store.membership(group).ok().flatten()?;
        (own.role.is_in_sync() && own.epoch == epoch).then_some((host, store, disk))
    })
}

/// Whether each group has two in-sync replicas besides this host.
///
/// With one, that one may fail before the cluster has noticed the loss of the disk. The group would then wait
/// for the lost disk for ever (docs/design/cluster.md#not-built).
pub(super) fn survives_without(map: &MapCache, data: &[DataHost], at: usize) -> bool {
    map.groups().into_iter().all(|group| {
        let view = map.view(group);
        view.is_some_and(|view| {
            let whole = members(&view, map, data);
            whole.filter(|(host, ..)| host.number != data[at].number).count() >= 2
        })
    })
}

/// Checks I1, I3, I4 and I9 for all groups; they hold at any time.
pub(super) fn always(map: &MapCache, data: &[DataHost], history: &History) -> Vec<String> {
    let files = history.files();
    let mut found = Vec::new();
    for group in map.groups() {
        let Some(view) = map.view(group) else { continue };
        let of_group: Vec<FileResults<'_>> =
            files.iter().filter(|file| file.vid.birth_group() == group).cloned().collect();
        let shown = members(&view, map, data)
            .filter_map(|(_, store, disk)| Shown::of(store, disk, Role::Normal, &of_group).ok());
        let shown: Vec<Shown> = shown.collect();
        if let Err(violation) = invariants::check(&shown, &of_group) {
            found.push(format!("group {group}: {violation}; {}", replicas_of(&view, map, data, &of_group)));
        }
    }
    found
}

/// Names and files of all running replicas of a group, for the report of a violation.
fn replicas_of(view: &View, map: &MapCache, data: &[DataHost], files: &[FileResults<'_>]) -> String {
    let names: BTreeSet<(VolumeId, &[u8])> = files.iter().map(|file| (file.vid, file.name)).collect();
    let mut all = format!("{view:?}");
    for (disk, _) in &view.members {
        let uuid = map.place(*disk).map(|place| place.server_uuid).unwrap_or_default();
        let host = data.iter().find(|host| host.uuid[..] == uuid[..]);
        let Some((host, running)) = host.and_then(|host| Some((host, host.running.as_ref()?))) else {
            continue;
        };
        let own = running.store.membership(view.group);
        all.push_str(&format!("\n    disk {disk}, {}: {own:?}", host.name));
        for (vid, name) in &names {
            let shown = running.store.stat(*vid, name, None).map(|info| info.fid.to_string());
            all.push_str(&format!("\n      {} of {vid}: {shown:?}", text(name)));
        }
        for file in files {
            let found = running.store.find(file.vid, file.fid);
            let is = match found {
                Ok(FileState::Unknown) => continue,
                Ok(FileState::Deleted) => "deleted",
                Ok(FileState::Live { .. }) => "live",
                Err(_) => "unreadable",
            };
            let (created, deleted) = (file.created, file.deleted);
            all.push_str(&format!("\n      {} is {is} {created:?} {deleted:?}", file.fid));
        }
    }
    all
}

/// Differences of the replicas of each group. The caller waits until there are none.
pub(super) fn differences(map: &MapCache, data: &[DataHost]) -> Vec<String> {
    let mut found = Vec::new();
    for group in map.groups() {
        let Some(view) = map.view(group) else { continue };
        let verified = members(&view, map, data).map(|(host, store, _)| (&host.name, verify(store, group)));
        let verified: Vec<_> = verified.collect();
        if verified.len() != usize::from(view.replicas) || view.members.len() != verified.len() {
            found.push(format!(
                "group {group} has {} in-sync replicas of {view:?}: {:?}",
                verified.len(),
                own_words(data, group)
            ));
        }
        for two in verified.windows(2) {
            if two[0].1 != two[1].1 {
                found.push(format!("I2: group {group} differs: {:?} and {:?}", two[0], two[1]));
            }
        }
        for (host, store, _) in members(&view, map, data) {
            match store.disputed_names(group, 10) {
                Ok(disputed) if disputed.is_empty() => {}
                other => found.push(format!(
                    "group {group}: {} has names with two files: {}",
                    host.name,
                    other.is_ok()
                )),
            }
        }
    }
    found
}

/// Own membership of each running server in a group.
fn own_words(data: &[DataHost], group: GroupId) -> Vec<(&String, Option<GroupMembership>)> {
    let running = data.iter().filter_map(|host| Some((&host.name, host.running.as_ref()?)));
    let words = running.map(|(name, running)| (name, running.store.membership(group).ok().flatten()));
    words.filter(|(_, own)| own.is_some()).collect()
}

fn verify(store: &MemberStore, group: GroupId) -> Result<(u64, u128), String> {
    let all = VerifySpan { after: None, until: None, limit: usize::MAX >> 1 };
    let found = store.verify(group, all, true).map_err(|error| error.to_string())?;
    match found.damaged.is_empty() {
        true => Ok((found.files, found.digest)),
        false => Err(format!("damaged: {:?}", found.damaged)),
    }
}

/// Checks that the create of each stored file did not fail for good, as far as its client knows.
pub(super) fn contents(map: &MapCache, data: &[DataHost], history: &History) -> Vec<String> {
    let mut found = Vec::new();
    let volumes: BTreeSet<VolumeId> = history.creates.iter().map(|create| create.vid).collect();
    for vid in volumes {
        let Some(view) = map.view(vid.birth_group()) else {
            continue;
        };
        for (host, store, _) in members(&view, map, data) {
            let files = match store.list(vid, b"", None, 10_000) {
                Ok(files) => files,
                Err(error) => {
                    found.push(format!("{} cannot list {vid}: {error}", host.name));
                    continue;
                }
            };
            for (name, info) in files {
                let what = match store.get(vid, &name, 0..u64::MAX, None) {
                    Err(error) => error.to_string(),
                    Ok((bytes, _)) => match history.create_of(&bytes) {
                        None => "bytes that no client wrote".to_owned(),
                        Some(create) if (create.vid, &create.name[..]) != (vid, &name[..]) => {
                            "a body of another name".to_owned()
                        }
                        Some(create) if create.known == KnownResult::Refused => {
                            "I9: a file whose create failed for good".to_owned()
                        }
                        Some(create) if create.fid.is_some_and(|fid| fid != info.fid) => {
                            "a body of another file".to_owned()
                        }
                        Some(_) => continue,
                    },
                };
                found.push(format!("{} of {vid} at {}: {what} ({})", text(&name), host.name, info.fid));
            }
        }
    }
    found
}
