//! Heads of objects, and their memory.

use super::{cache::MAX_OBJECT_BYTES, corrupt, held_list::HeldObject, of_service, requests::RequestRules};
use crate::{
    format::{ObjectHead, ObjectKind, SumsPlace, TAIL_BYTES, sums_bytes},
    service::{ObjectFront, ObjectTag, ServiceError},
};
use bytes::Bytes;
use copal_volume::{Consistency, FileInfo, ReadOptions, VolumeError};
use quick_cache::{Weighter, sync::Cache};
use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
};

/// Bytes of the first read of an object: head and checksums of a pack.
pub(super) const FIRST_READ: u64 = 1536;
/// Longest object that a first read takes as a whole.
pub(super) const WHOLE_READ: u64 = 128 << 10;
/// Memory for heads and short objects.
const CACHE_BYTES: u64 = 8 << 20;
/// Bytes of an entry beside key, front and metadata.
const ENTRY_BYTES: u64 = 256;

/// An object as it is known by a certain tag.
#[derive(Debug)]
pub(super) struct KnownObject {
    pub(super) kind: ObjectKind,
    pub(super) info: FileInfo,
    pub(super) head: ObjectHead,
    pub(super) tag: ObjectTag,
    /// First bytes of the object; the whole object, if it is short.
    pub(super) front: Bytes,
    /// A list has just shown it, and no read has used it since.
    pub(super) is_fresh: AtomicBool,
}

impl KnownObject {
    /// Whether one read may be answered from memory. A read of a longer object goes to the store under the tag of its
    /// head, so it notices that the object is gone. A short object is as new as the list that showed it.
    fn may_answer(&self) -> bool {
        let is_whole = self.front.len() as u64 == self.head.places().total;
        !is_whole || self.is_fresh.swap(false, Relaxed)
    }
}

/// Reads objects, and remembers their heads by key.
pub(super) struct ObjectReader {
    pub(super) requests: RequestRules,
    cache: Cache<String, Arc<KnownObject>, ObjectBytes>,
    /// Latest time of a file that this process saw.
    seen_ms: AtomicU64,
}

#[derive(Clone)]
struct ObjectBytes;

impl Weighter<String, Arc<KnownObject>> for ObjectBytes {
    fn weight(&self, key: &String, object: &Arc<KnownObject>) -> u64 {
        ENTRY_BYTES + (key.len() + object.front.len() + object.info.metadata.len()) as u64
    }
}

impl ObjectReader {
    pub(super) fn new(requests: RequestRules) -> ObjectReader {
        let expected = (CACHE_BYTES / 2048) as usize;
        ObjectReader {
            requests,
            cache: Cache::with_weighter(expected, CACHE_BYTES, ObjectBytes),
            seen_ms: AtomicU64::new(0),
        }
    }

    /// The object, if it was read under this tag: by this process, or by an earlier one on this machine.
    pub(super) fn with_tag(&self, key: &str, tag: &str) -> Option<Arc<KnownObject>> {
        if tag.is_empty() {
            return None;
        }
        match self.cache.get(key).filter(|object| object.tag == tag) {
            None => self.on_disk(key, Some(tag)),
            known => known,
        }
    }

    /// The object as an earlier process kept it; with `tag` only in this version.
    fn on_disk(&self, key: &str, tag: Option<&str>) -> Option<Arc<KnownObject>> {
        let front = self.requests.kept(key, tag)?;
        // Without the whole object, a streamed one would ask for its tail.
        let Ok(known) = self.open(key, front) else {
            self.requests.disk.get()?.remove(key);
            return None;
        };
        let known = Arc::new(known);
        self.cache.insert(key.to_owned(), known.clone());
        Some(known)
    }

    /// Keeps an object that this process created or read, for itself and for later ones.
    fn keep(&self, key: &str, known: Arc<KnownObject>) {
        let may_be_opened =
            known.head.sums == SumsPlace::Front || known.front.len() as u64 == known.head.places().total;
        if let Some(disk) = self.requests.disk.get()
            && may_be_opened
        {
            let (total, tag) = (known.head.places().total, known.tag.clone());
            let bytes = match known.front.len() as u64 <= MAX_OBJECT_BYTES {
                true => known.front.clone(),
                false => known.front.slice(..FIRST_READ as usize),
            };
            disk.write(key, &ObjectFront { bytes, total, tag });
        }
        self.cache.insert(key.to_owned(), known);
    }

    /// Keeps an object that this process has just created.
    pub(super) fn created(&self, key: &str, object: &Bytes, tag: ObjectTag) {
        let is_short = object.len() as u64 <= MAX_OBJECT_BYTES;
        let limit = if is_short { object.len() } else { FIRST_READ as usize };
        let front = ObjectFront { bytes: object.slice(..limit), total: object.len() as u64, tag };
        if let Ok(known) = self.open(key, front) {
            self.keep(key, Arc::new(known));
        }
    }

    #[cfg(test)]
    pub(super) fn forget_memory(&self) {
        self.cache.clear();
    }

    /// The object is gone, or it is another one.
    pub(super) fn forget(&self, key: &str) {
        self.requests.held.release();
        self.cache.remove(key);
        if let Some(disk) = self.requests.disk.get() {
            disk.remove(key);
        }
    }

    /// Time of a file that becomes visible now: not below that of any file that this process saw.
    pub(super) fn stamp_ms(&self) -> u64 {
        let now = self.requests.service.now_ms();
        self.seen_ms.fetch_max(now, Relaxed).max(now)
    }

    /// The file under a key, asked from the store if the answer must be current. `wanted`: bytes of the object that the
    /// caller reads next, from its start.
    /// # Errors
    /// `NotFound`, `Corrupt`.
    pub(super) fn look_up(
        &self,
        key: &str,
        options: &ReadOptions,
        wanted: u64,
    ) -> Result<Arc<KnownObject>, VolumeError> {
        let held = match self.requests.held.object(key) {
            HeldObject::Absent => return Err(VolumeError::NotFound),
            HeldObject::Listed(object) => self.with_tag(key, &object.tag),
            HeldObject::Unknown => None,
        };
        let known = held.or_else(|| match options.consistency {
            Consistency::Available => self.cache.get(key).filter(|object| object.may_answer()),
            Consistency::Strict => None,
            // No other file ever has the name, so the copy is right.
            Consistency::AnyCopy => self.cache.get(key).or_else(|| self.on_disk(key, None)),
        });
        let object = match known {
            Some(object) => object,
            None => self.fetch(key, wanted)?,
        };
        let is_wanted =
            object.kind == ObjectKind::File && options.if_file.is_none_or(|fid| fid == object.info.fid);
        if is_wanted {
            return Ok(object);
        }
        // Another file may have the name by now.
        let current = self.fetch(key, wanted)?;
        match current.kind == ObjectKind::File && options.if_file.is_none_or(|fid| fid == current.info.fid) {
            true => Ok(current),
            false => Err(VolumeError::NotFound),
        }
    }

    /// Reads the head of an object, and up to `wanted` bytes more.
    /// # Errors
    /// `NotFound`, `Corrupt`.
    pub(super) fn fetch(&self, key: &str, wanted: u64) -> Result<Arc<KnownObject>, VolumeError> {
        let limit = wanted.saturating_add(FIRST_READ).min(WHOLE_READ);
        let front =
            self.requests.rules.repeat(|| self.requests.service.front(key, limit)).map_err(|error| {
                if error == ServiceError::NotFound {
                    self.forget(key);
                }
                of_service(&error)
            })?;
        let object = Arc::new(self.open(key, front)?);
        self.seen_ms.fetch_max(object.info.created_ms, Relaxed);
        self.keep(key, object.clone());
        Ok(object)
    }

    fn open(&self, key: &str, front: ObjectFront) -> Result<KnownObject, VolumeError> {
        let mut head = ObjectHead::decode(key, &front.bytes)
            .map_err(|why| corrupt(key, why))?
            .ok_or_else(|| corrupt(key, "its head is cut"))?;
        if head.kind == ObjectKind::File && head.sums == SumsPlace::Behind {
            let start = front.total.checked_sub(TAIL_BYTES).ok_or_else(|| corrupt(key, "it is cut"))?;
            let tail = match front.bytes.len() as u64 == front.total {
                true => front.bytes.slice(start as usize..),
                false => self
                    .requests
                    .rules
                    .repeat(|| self.requests.service.read(key, start..front.total))
                    .map_err(|error| of_service(&error))?,
            };
            head.add_tail(&tail).map_err(|why| corrupt(key, why))?;
        }
        let places = head.places();
        if places.total != front.total {
            return Err(corrupt(key, format!("it has {} bytes instead of {}", front.total, places.total)));
        }
        // Beyond head and checksums, only a whole object is worth its memory.
        let keep = match front.bytes.len() as u64 == front.total {
            true => front.bytes,
            false => {
                let end =
                    (places.sums + sums_bytes(head.info.size)).min(FIRST_READ).min(front.bytes.len() as u64);
                Bytes::copy_from_slice(&front.bytes[..end as usize])
            }
        };
        Ok(KnownObject {
            kind: head.kind,
            info: head.info.clone(),
            head,
            tag: front.tag,
            front: keep,
            is_fresh: AtomicBool::new(false),
        })
    }
}
