//! Buckets and their objects in memory, with conditions and lists that may lag. Time is passed in.
//!
//! Not here: parts of uploads (`uploads`), access, HTTP.

use super::{
    errors::{BUCKET_EXISTS, KEY_TOO_LONG, NO_SUCH_BUCKET, NO_SUCH_KEY, PRECONDITION_FAILED, S3Error},
    uploads::UploadTable,
};
use std::{
    collections::BTreeMap,
    ops::Bound,
    sync::Arc,
    time::{Duration, Instant},
};

/// The time of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct ServerTime {
    /// Orders changes and lists.
    pub(super) instant: Instant,
    /// Seconds since 1970 on the clock of the server.
    pub(super) unix: i64,
}

/// Longest part of a key between slashes, where each part is the name of a file.
const MOST_PART_BYTES: usize = 255;

/// An object as it was last written.
#[derive(Clone, Debug)]
pub(super) struct StoredObject {
    pub(super) body: Arc<Vec<u8>>,
    /// With its quotes.
    pub(super) etag: String,
    /// Seconds since 1970.
    pub(super) modified: i64,
}

/// Conditions of a request, from its headers.
#[derive(Clone, Debug, Default)]
pub(super) struct ObjectCondition {
    pub(super) if_match: Option<String>,
    pub(super) if_none_match: Option<String>,
}

impl ObjectCondition {
    /// Whether the present object permits a change.
    pub(super) fn check(&self, present: Option<&StoredObject>) -> Result<(), S3Error> {
        let matches = |etags: &str| present.is_some_and(|object| etag_matches(etags, &object.etag));
        match (&self.if_match, &self.if_none_match) {
            (Some(_), _) if present.is_none() => Err(NO_SUCH_KEY),
            (Some(etags), _) if !matches(etags) => Err(PRECONDITION_FAILED),
            (_, Some(etags)) if matches(etags) => Err(PRECONDITION_FAILED),
            _ => Ok(()),
        }
    }
}

/// Whether a list of ETags, quoted or not, has `etag` or is `*`.
pub(super) fn etag_matches(etags: &str, etag: &str) -> bool {
    let plain = etag.trim_matches('"');
    etags.split(',').map(str::trim).any(|one| one == "*" || one.trim_matches('"') == plain)
}

/// A state of a key, and the time from which lists show it.
#[derive(Debug)]
struct ObjectVersion {
    listed_from: Instant,
    /// Nothing after a deletion.
    object: Option<StoredObject>,
}

/// States of a key in the order of its changes. The last one is present; earlier ones are kept as long as
/// lists show them.
#[derive(Debug, Default)]
struct KeyHistory {
    versions: Vec<ObjectVersion>,
}

impl KeyHistory {
    fn present(&self) -> Option<&StoredObject> {
        self.versions.last()?.object.as_ref()
    }

    fn listed(&self, now: Instant) -> Option<&StoredObject> {
        self.versions.iter().rfind(|version| version.listed_from <= now)?.object.as_ref()
    }

    /// Drops the states before the one that lists show.
    fn prune(&mut self, now: Instant) {
        let shown = self.versions.iter().rposition(|version| version.listed_from <= now);
        self.versions.drain(..shown.unwrap_or(0));
    }
}

/// One bucket.
#[derive(Debug, Default)]
pub(super) struct BucketObjects {
    keys: BTreeMap<String, KeyHistory>,
    /// Each object is a file whose path is the key.
    pub(super) has_files: bool,
    pub(super) uploads: UploadTable,
}

impl BucketObjects {
    pub(super) fn object(&self, key: &str) -> Option<&StoredObject> {
        self.keys.get(key)?.present()
    }

    /// All present objects, in the order of their keys.
    pub(super) fn all(&self) -> impl Iterator<Item = (&str, &StoredObject)> {
        self.keys.iter().filter_map(|(key, history)| Some((key.as_str(), history.present()?)))
    }

    /// The objects that a list shows, from a key on, in bytewise order.
    pub(super) fn listed<'a>(
        &'a self,
        from: Bound<&'a str>,
        now: Instant,
    ) -> impl Iterator<Item = (&'a str, &'a StoredObject)> {
        let range = self.keys.range::<str, _>((from, Bound::Unbounded));
        let shown = range.filter(|(key, _)| !self.is_hidden(key));
        shown.filter_map(move |(key, history)| Some((key.as_str(), history.listed(now)?)))
    }

    /// Where keys are paths of files, lists do not enter an object.
    fn is_hidden(&self, key: &str) -> bool {
        self.has_files && key.match_indices('/').any(|(at, _)| self.object(&key[..at]).is_some())
    }

    /// Where keys are paths of files, the name of a directory is taken, and a part has a longest length.
    fn check_path(&self, key: &str, condition: &ObjectCondition) -> Result<(), S3Error> {
        if !self.has_files {
            return Ok(());
        }
        if key.split('/').any(|part| part.len() > MOST_PART_BYTES) {
            return Err(KEY_TOO_LONG);
        }
        let below = format!("{key}/");
        let mut behind = self.keys.range(below.clone()..).filter(|(_, history)| history.present().is_some());
        let is_directory = behind.next().is_some_and(|(next, _)| next.starts_with(&below));
        match is_directory && condition.if_none_match.is_some() {
            true => Err(PRECONDITION_FAILED),
            false => Ok(()),
        }
    }

    fn change(&mut self, key: &str, now: Instant, listed_from: Instant, object: Option<StoredObject>) {
        let history = self.keys.entry(key.to_owned()).or_default();
        history.versions.push(ObjectVersion { listed_from, object });
        history.prune(now);
        let is_forgotten = history.versions.iter().all(|version| version.object.is_none());
        if is_forgotten {
            self.keys.remove(key);
        }
    }
}

/// All buckets. Every write has an ETag of its own, also if contents are equal.
#[derive(Debug, Default)]
pub(super) struct ObjectStore {
    buckets: BTreeMap<String, BucketObjects>,
    /// Time after which lists show a change made from now on.
    pub(super) list_lag: Duration,
    /// Number of ids given out.
    ids: u64,
}

impl ObjectStore {
    pub(super) fn create_bucket(&mut self, name: &str) -> Result<(), S3Error> {
        if self.buckets.contains_key(name) {
            return Err(BUCKET_EXISTS);
        }
        self.buckets.insert(name.to_owned(), BucketObjects::default());
        Ok(())
    }

    pub(super) fn bucket(&self, name: &str) -> Result<&BucketObjects, S3Error> {
        self.buckets.get(name).ok_or(NO_SUCH_BUCKET)
    }

    pub(super) fn bucket_mut(&mut self, name: &str) -> Result<&mut BucketObjects, S3Error> {
        self.buckets.get_mut(name).ok_or(NO_SUCH_BUCKET)
    }

    /// 32 digits that no earlier call returned, in ascending order.
    pub(super) fn next_id(&mut self) -> String {
        self.ids += 1;
        format!("{:032x}", self.ids)
    }

    /// Writes an object if its present state permits; returns the new ETag.
    pub(super) fn write(
        &mut self,
        place: (&str, &str),
        body: Vec<u8>,
        condition: &ObjectCondition,
        now: ServerTime,
    ) -> Result<String, S3Error> {
        let (bucket, key) = place;
        self.bucket(bucket)?.check_path(key, condition)?;
        condition.check(self.bucket(bucket)?.object(key))?;
        let etag = format!("\"{}\"", self.next_id());
        let object = StoredObject { body: Arc::new(body), etag: etag.clone(), modified: now.unix };
        let listed_from = now.instant + self.list_lag;
        self.bucket_mut(bucket)?.change(key, now.instant, listed_from, Some(object));
        Ok(etag)
    }

    /// Deletes an object if its present state permits; returns whether there was one.
    pub(super) fn delete(
        &mut self,
        place: (&str, &str),
        condition: &ObjectCondition,
        now: ServerTime,
    ) -> Result<bool, S3Error> {
        let (bucket, key) = place;
        let listed_from = now.instant + self.list_lag;
        let objects = self.bucket_mut(bucket)?;
        let present = objects.object(key);
        condition.check(present)?;
        let is_present = present.is_some();
        if is_present {
            objects.change(key, now.instant, listed_from, None);
        }
        Ok(is_present)
    }

    /// Changes bytes of a present object behind its ETag; returns whether there is one.
    pub(super) fn damage(&mut self, place: (&str, &str), change: impl FnOnce(&mut Vec<u8>)) -> bool {
        let (bucket, key) = place;
        let history = self.buckets.get_mut(bucket).and_then(|objects| objects.keys.get_mut(key));
        let object = history.and_then(|history| history.versions.last_mut()?.object.as_mut());
        object.map(|object| change(Arc::make_mut(&mut object.body))).is_some()
    }
}
