//! Bundle: copies of all short objects of some volumes, in one object of the store.
//!
//! A prune writes one. A host whose cache lacks many objects reads the newest one into its cache, instead of each object
//! by a request of its own. So a host that has never read a repository needs a few large requests.
//! Format: docs/formats/remote-object.md
//!
//! Invariants
//! - A bundle is never needed. A missing, outdated or damaged one costs requests and nothing else.
//! - Its entries are those of the cache, and are verified like these: each is used only under its key and tag.

use super::{
    super::{of_service, parallel, requests::RequestRules},
    MAX_OBJECT_BYTES, ObjectCache, entry,
};
use crate::{
    keys,
    service::{ListedObject, ObjectFront, ServiceError},
};
use bytes::Bytes;
use copal_volume::{VolumeError, VolumeId};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use xxhash_rust::xxh3::Xxh3;

/// Objects that a process reads one by one before it looks for a bundle; fewer objects need none.
const FEW: usize = 32;
/// Longest bundle: about 50,000 objects.
const MOST_BYTES: u64 = 64 << 20;
/// Bytes of an entry beside key, tag and object, at most.
const FIELD_BYTES: u64 = 64;
/// Bytes of one request of a bundle.
const PIECE_BYTES: u64 = 4 << 20;
/// Objects of a bundle that are read at the same time, at most 64 KiB each.
const TOGETHER: usize = 64;
/// Names in one answer.
const PAGE: usize = 1000;

/// Whether this process has read a bundle.
#[derive(Debug, Default)]
pub(in crate::store) struct BundleReader {
    misses: AtomicUsize,
    is_read: AtomicBool,
    reading: Mutex<bool>,
}

impl BundleReader {
    /// Notes that the cache lacks an object. Whether a bundle was read meanwhile, which may hold it.
    pub(in crate::store) fn missed(&self, requests: &RequestRules, cache: &ObjectCache) -> bool {
        if self.is_read.load(Relaxed) || self.misses.fetch_add(1, Relaxed) < FEW {
            return false;
        }
        // Other threads wait for the bundle, instead of asking for its objects.
        let mut is_read = self.reading.lock();
        if !*is_read {
            if let Err(error) = read_newest(requests, cache) {
                tracing::debug!(%error, "the bundle of short objects cannot be used");
            }
            *is_read = true;
            self.is_read.store(true, Relaxed);
        }
        true
    }
}

/// Puts the entries of the newest bundle into the cache.
fn read_newest(requests: &RequestRules, cache: &ObjectCache) -> Result<(), VolumeError> {
    let Some(bundle) = bundles(requests)?.pop() else { return Ok(()) };
    if cache.has_bundle(&bundle.key) {
        return Ok(());
    }
    let total = bundle.bytes.min(MOST_BYTES);
    let (mut at, mut bytes) = (0, Vec::new());
    while at < total {
        let end = total.min(at + PIECE_BYTES);
        let piece = requests
            .rules
            .repeat(|| requests.service.read_tagged(&bundle.key, at..end, &bundle.tag))
            .map_err(|error| of_service(&error))?;
        at = end;
        bytes.extend_from_slice(&piece);
        let mut used = 0;
        while let Some((key, len)) = entry::first(&bytes[used..]) {
            if keys::is_kept(&key) {
                cache.add(&key, &bytes[used..used + len]);
            }
            used += len;
        }
        bytes.drain(..used);
        // An entry is shorter than this, so these bytes begin none.
        if bytes.len() as u64 > MAX_OBJECT_BYTES + entry::ENTRY_BYTES {
            tracing::debug!(bundle = bundle.key, at, "the bundle of short objects is damaged");
            break;
        }
    }
    cache.note_bundle(&bundle.key);
    Ok(())
}

/// The bundles, oldest first.
fn bundles(requests: &RequestRules) -> Result<Vec<ListedObject>, VolumeError> {
    let listed = requests.rules.repeat(|| requests.service.list(keys::BUNDLES, None, PAGE));
    Ok(listed.map_err(|error| of_service(&error))?.objects)
}

/// Makes a bundle of the short objects of these volumes and of all volume records, unless the newest one holds just
/// these. Removes older ones. Without a cache on this machine it does nothing.
/// # Errors
/// Of the store. An unfinished bundle is removed by the next call.
pub(in crate::store) fn write(requests: &RequestRules, vids: &[VolumeId]) -> Result<(), VolumeError> {
    let Some(cache) = requests.disk.get() else { return Ok(()) };
    let mut older = bundles(requests)?;
    let (mut listed, mut room) = (Vec::new(), MOST_BYTES);
    add_short(requests, keys::VOLUMES, &mut listed, &mut room)?;
    for vid in vids {
        add_short(requests, &keys::files_prefix(*vid), &mut listed, &mut room)?;
    }
    if listed.len() <= FEW {
        return Ok(());
    }
    let mut sum = Xxh3::new();
    for object in &listed {
        for text in [&object.key, &object.tag] {
            sum.update(&(text.len() as u32).to_le_bytes());
            sum.update(text.as_bytes());
        }
    }
    let content = format!("{:016x}", sum.digest());
    let is_current = older.last().is_some_and(|newest| newest.key.ends_with(&content));
    if is_current {
        older.pop();
    } else {
        let key = format!("{}{:016x}-{content}", keys::BUNDLES, requests.service.now_ms());
        send(requests, cache, &key, &listed)?;
        cache.note_bundle(&key);
    }
    for bundle in &older {
        match requests.rules.repeat(|| requests.service.delete(&bundle.key, None)) {
            Err(error) if error != ServiceError::NotFound => return Err(of_service(&error)),
            _ => {}
        }
    }
    Ok(())
}

/// Adds the short objects of a prefix, as far as there is room in a bundle.
fn add_short(
    requests: &RequestRules,
    prefix: &str,
    found: &mut Vec<ListedObject>,
    room: &mut u64,
) -> Result<(), VolumeError> {
    let mut after: Option<String> = None;
    loop {
        let page = requests.page(prefix, after.as_deref(), PAGE)?;
        let Some(last) = page.objects.last() else { return Ok(()) };
        after = Some(last.key.clone());
        for object in page.objects {
            if object.bytes > MAX_OBJECT_BYTES || object.tag.is_empty() {
                continue;
            }
            match room.checked_sub(object.bytes + (object.key.len() + object.tag.len()) as u64 + FIELD_BYTES)
            {
                None => return Ok(()),
                Some(left) => *room = left,
            }
            found.push(object);
        }
        if page.is_last {
            return Ok(());
        }
    }
}

fn send(
    requests: &RequestRules,
    cache: &ObjectCache,
    key: &str,
    listed: &[ListedObject],
) -> Result<(), VolumeError> {
    let mut upload = requests.service.upload(key).map_err(|error| of_service(&error))?;
    for together in listed.chunks(TOGETHER) {
        let mut bytes = Vec::new();
        for (object, front) in together
            .iter()
            .zip(parallel::map(together, requests.connections, |object| whole(requests, cache, object)))
        {
            if let Some(front) = front? {
                bytes.extend(entry::encode(&object.key, &front).unwrap_or_default());
            }
        }
        upload.append(Bytes::from(bytes)).map_err(|error| of_service(&error))?;
    }
    match upload.complete() {
        // Another try of this request, or another host with the same bytes, was first.
        Ok(_) | Err(ServiceError::Taken) => Ok(()),
        Err(error) => Err(of_service(&error)),
    }
}

/// A listed object: from the cache, or read now. `None`: it is another one by now, or gone.
fn whole(
    requests: &RequestRules,
    cache: &ObjectCache,
    object: &ListedObject,
) -> Result<Option<ObjectFront>, VolumeError> {
    let is_whole = |front: &ObjectFront| front.bytes.len() as u64 == object.bytes && front.tag == object.tag;
    if let Some(front) = requests.kept(&object.key, Some(&object.tag)).filter(is_whole) {
        return Ok(Some(front));
    }
    match requests.rules.repeat(|| requests.service.front(&object.key, object.bytes)) {
        Ok(front) if is_whole(&front) => {
            cache.write(&object.key, &front);
            Ok(Some(front))
        }
        Ok(_) | Err(ServiceError::NotFound) => Ok(None),
        Err(error) => Err(of_service(&error)),
    }
}
