//! Volumes: records under the keys of their paths.
//!
//! Invariants
//! - A volume id is 64 random bits, so none is used twice.
//! - A volume that this process removed is gone for it. A volume that another host removed takes files that nobody
//!   finds; a sweep removes them.
//! - A record is created before the files of its volume, and deleted before them.

use super::{corrupt, held_list::HeldObject, of_service, parallel, requests::RequestRules};
use crate::{
    format::{open_record, volume_record},
    keys,
    service::{ListedObject, ListedPage, ObjectFront, ServiceError},
};
use bytes::Bytes;
use copal_volume::{
    RemoveMode, VolumeError, VolumeId, VolumeOptions, check_volume_name, split_parent, split_path,
};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};

/// Bytes of a first read; a record is shorter.
const RECORD_BYTES: u64 = 512;
const PAGE: usize = 1000;

/// Reads and writes volume records, and remembers them.
pub(super) struct VolumeRecords {
    requests: RequestRules,
    table: Mutex<KnownVolumes>,
}

#[derive(Default)]
struct KnownVolumes {
    /// Keys of records by id.
    keys: HashMap<VolumeId, String>,
    removed: HashSet<VolumeId>,
    /// Contents of records by key, with their tags.
    records: HashMap<String, (String, VolumeId)>,
}

impl VolumeRecords {
    pub(super) fn new(requests: RequestRules) -> VolumeRecords {
        VolumeRecords { requests, table: Mutex::default() }
    }

    /// # Errors
    /// `VolumeGone`.
    pub(super) fn check_volume(&self, vid: VolumeId) -> Result<(), VolumeError> {
        self.record_key(vid).map(drop)
    }

    /// Key of the record of a volume; asks the store for one that this process has not opened.
    fn record_key(&self, vid: VolumeId) -> Result<String, VolumeError> {
        {
            let table = self.table.lock();
            if table.removed.contains(&vid) {
                return Err(VolumeError::VolumeGone);
            }
            if let Some(key) = table.keys.get(&vid) {
                return Ok(key.clone());
            }
        }
        let mut after: Option<String> = None;
        loop {
            let ListedPage { objects, is_last } =
                self.requests.page(keys::VOLUMES, after.as_deref(), PAGE)?;
            for (object, found) in objects.iter().zip(self.records(&objects)) {
                if found? == Some(vid) {
                    return Ok(object.key.clone());
                }
            }
            match objects.into_iter().last() {
                Some(last) if !is_last => after = Some(last.key),
                _ => return Err(VolumeError::VolumeGone),
            }
        }
    }

    /// Ids in listed records; `None`: it is gone.
    fn records(&self, page: &[ListedObject]) -> Vec<Result<Option<VolumeId>, VolumeError>> {
        parallel::map(page, self.requests.connections, |object| match self.known_record(object) {
            Some(vid) => Ok(Some(vid)),
            None => self.ask_record(&object.key),
        })
    }

    /// The id in a listed record, if this process or an earlier one has read it.
    fn known_record(&self, object: &ListedObject) -> Option<VolumeId> {
        if object.tag.is_empty() {
            return None;
        }
        let known = self.table.lock().records.get(&object.key).cloned();
        if let Some((_, vid)) = known.filter(|(tag, _)| *tag == object.tag) {
            return Some(vid);
        }
        let front = self.requests.kept(&object.key, Some(&object.tag))?;
        self.open_record(&object.key, front).ok()
    }

    /// Opens and remembers a record.
    fn open_record(&self, key: &str, front: ObjectFront) -> Result<VolumeId, VolumeError> {
        let vid = open_record(key, &front.bytes).map_err(|why| corrupt(key, why))?;
        self.remember(key, front.tag, vid);
        Ok(vid)
    }

    fn read_record(&self, key: &str) -> Result<Option<VolumeId>, VolumeError> {
        match self.requests.held.object(key) {
            HeldObject::Absent => Ok(None),
            HeldObject::Listed(object) => match self.known_record(&object) {
                Some(vid) => Ok(Some(vid)),
                None => self.ask_record(key),
            },
            HeldObject::Unknown => self.ask_record(key),
        }
    }

    fn ask_record(&self, key: &str) -> Result<Option<VolumeId>, VolumeError> {
        let front = match self.requests.rules.repeat(|| self.requests.service.front(key, RECORD_BYTES)) {
            Err(ServiceError::NotFound) => return Ok(None),
            front => front.map_err(|error| of_service(&error))?,
        };
        if let Some(disk) = self.requests.disk.get() {
            disk.write(key, &front);
        }
        self.open_record(key, front).map(Some)
    }

    fn remember(&self, key: &str, tag: String, vid: VolumeId) {
        let mut table = self.table.lock();
        if !table.removed.contains(&vid) {
            table.keys.insert(vid, key.to_owned());
            table.records.insert(key.to_owned(), (tag, vid));
        }
    }

    /// # Errors
    /// `NotFound`: no volume at the path.
    fn check_parent(&self, path: &[&str]) -> Result<(), VolumeError> {
        if path.is_empty() {
            return Ok(());
        }
        match self.read_record(&keys::volume_key(path)?)? {
            Some(_) => Ok(()),
            None => Err(VolumeError::NotFound),
        }
    }

    pub(super) fn create_volume(
        &self,
        parent: &str,
        name: &str,
        options: &VolumeOptions,
    ) -> Result<VolumeId, VolumeError> {
        let mut path = split_path(parent)?;
        check_volume_name(name)?;
        if options.quota_bytes.is_some() {
            return Err(VolumeError::Denied {
                reason: "an object store has no quotas of volumes".to_owned(),
            });
        }
        self.check_parent(&path)?;
        path.push(name);
        let key = keys::volume_key(&path)?;
        let vid = VolumeId(loop {
            let random = copal_volume::random_incarnation()
                .map_err(|error| VolumeError::Unavailable { reason: error.to_string() })?;
            if random != 0 {
                break random;
            }
        });
        let record = Bytes::from(volume_record(&key, vid));
        let _change = self.requests.held.change();
        loop {
            match self.requests.rules.repeat(|| self.requests.service.create(&key, record.clone())) {
                Ok(tag) => {
                    self.remember(&key, tag, vid);
                    return Ok(vid);
                }
                Err(ServiceError::Taken) => match self.read_record(&key)? {
                    // The answer to an earlier try was lost.
                    Some(holder) if holder == vid => return Ok(vid),
                    Some(holder) => return Err(VolumeError::VolumeExists { vid: holder }),
                    None => {}
                },
                Err(error) => return Err(of_service(&error)),
            }
        }
    }

    pub(super) fn open_volume(&self, path: &str) -> Result<VolumeId, VolumeError> {
        let (mut components, name) = split_parent(path)?;
        components.push(name);
        self.read_record(&keys::volume_key(&components)?)?.ok_or(VolumeError::NotFound)
    }

    pub(super) fn list_volumes(
        &self,
        parent: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(String, VolumeId)>, VolumeError> {
        let path = split_path(parent)?;
        self.check_parent(&path)?;
        let prefix = keys::children_prefix(&path)?;
        let mut after = after.map(|name| format!("{prefix}{}", keys::name_key(name.as_bytes())));
        let mut found = Vec::new();
        while found.len() < limit {
            let ListedPage { objects: mut page, is_last } =
                self.requests.page(&prefix, after.as_deref(), PAGE)?;
            let Some(last) = page.last() else { break };
            after = Some(last.key.clone());
            // Not the volumes below these.
            page.retain(|object| !object.key[prefix.len()..].contains(keys::BELOW));
            page.truncate(limit - found.len());
            let records = self.records(&page);
            for (object, vid) in page.iter().zip(records) {
                let name =
                    keys::name_of(&object.key[prefix.len()..]).and_then(|name| String::from_utf8(name).ok());
                if let (Some(name), Some(vid)) = (name, vid?) {
                    found.push((name, vid));
                }
            }
            if is_last {
                break;
            }
        }
        Ok(found)
    }

    pub(super) fn remove_volume(&self, vid: VolumeId, how: RemoveMode) -> Result<(), VolumeError> {
        let _change = self.requests.held.change();
        let key = self.record_key(vid)?;
        let has_children =
            !self.requests.page(&format!("{key}{}", keys::BELOW), None, PAGE)?.objects.is_empty();
        // Whether it is empty cannot be held while another host puts a file there; an empty one costs nothing.
        if has_children || how == RemoveMode::IfEmpty {
            return Err(VolumeError::NotEmpty);
        }
        // The name first: files that stay after a failure are in no volume.
        self.table.lock().removed.insert(vid);
        let removed = match self.read_record(&key)? {
            Some(holder) if holder == vid => {
                // By its tag: another volume may have the path by the time at which a late delete comes about.
                let tag = self.table.lock().records.get(&key).map(|(tag, _)| tag.clone());
                self.requests.rules.repeat(|| self.requests.service.delete(&key, tag.as_deref()))
            }
            _ => Ok(()),
        };
        removed.or_else(|error| match error {
            ServiceError::NotFound | ServiceError::Taken => Ok(()),
            error => Err(of_service(&error)),
        })?;
        {
            let mut table = self.table.lock();
            table.keys.remove(&vid);
            table.records.remove(&key);
        }
        self.remove_files(vid).map(drop)
    }

    /// See [`copal_volume::VolumeStore::sweep`].
    ///
    /// Prefixes of files are listed before records are. A record is older than each file of its volume, so a volume with
    /// listed files whose record is missing now was removed. Its id is random, so no later record has it.
    pub(super) fn sweep(&self) -> Result<u64, VolumeError> {
        // A held list of records is older than the prefixes.
        let _change = self.requests.held.change();
        let groups = self.requests.rules.repeat(|| self.requests.service.groups(keys::FILES));
        let groups = groups.map_err(|error| of_service(&error))?;
        let mut without: HashSet<VolumeId> =
            groups.iter().filter_map(|group| keys::volume_of(group)).collect();
        // This process has read the records of these.
        without.retain(|vid| !self.table.lock().keys.contains_key(vid));
        let mut after: Option<String> = None;
        while !without.is_empty() {
            let ListedPage { objects, is_last } =
                self.requests.page(keys::VOLUMES, after.as_deref(), PAGE)?;
            for found in self.records(&objects) {
                if let Some(vid) = found? {
                    without.remove(&vid);
                }
            }
            match objects.into_iter().last() {
                Some(last) if !is_last => after = Some(last.key),
                _ => break,
            }
        }
        let mut removed = self
            .requests
            .rules
            .repeat(|| self.requests.service.sweep_unfinished())
            .map_err(|error| of_service(&error))?;
        for vid in without {
            removed += self.remove_files(vid)?;
        }
        Ok(removed)
    }

    /// Deletes the files of a volume; returns their number.
    fn remove_files(&self, vid: VolumeId) -> Result<u64, VolumeError> {
        let prefix = keys::files_prefix(vid);
        let mut after: Option<String> = None;
        let mut count = 0;
        loop {
            let ListedPage { objects, is_last } = self.requests.page(&prefix, after.as_deref(), PAGE)?;
            count += objects.len() as u64;
            let removed = parallel::map(&objects, self.requests.connections, |object| {
                self.requests.rules.repeat(|| self.requests.service.delete(&object.key, None))
            });
            for outcome in removed {
                outcome.map_err(|error| of_service(&error))?;
            }
            match objects.into_iter().last() {
                Some(last) if !is_last => after = Some(last.key),
                _ => return Ok(count),
            }
        }
    }
}
