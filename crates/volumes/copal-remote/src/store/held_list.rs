//! Lists of volumes as a command saw them when it began.
//!
//! Invariants
//! - A list was complete when it was read, and this process has changed nothing since.
//! - A listed object that is gone ends the hold, so the next list is current.

use crate::service::{ListedObject, ListedPage};
use parking_lot::Mutex;
use std::sync::Arc;

/// The lists that are held.
#[derive(Default)]
pub(super) struct HeldLists(Mutex<Vec<Arc<HeldList>>>);

struct HeldList {
    prefix: String,
    /// In the order of keys.
    objects: Vec<ListedObject>,
}

/// An object in the held lists.
pub(super) enum HeldObject {
    /// No list holds its volume, so the store has to be asked.
    Unknown,
    Absent,
    Listed(ListedObject),
}

impl HeldLists {
    /// Holds all objects below a prefix.
    pub(super) fn hold(&self, prefix: String, objects: Vec<ListedObject>) {
        let mut held = self.0.lock();
        held.retain(|list| list.prefix != prefix);
        held.push(Arc::new(HeldList { prefix, objects }));
    }

    pub(super) fn has(&self, prefix: &str) -> bool {
        self.0.lock().iter().any(|list| list.prefix == prefix)
    }

    /// Ends all holds: a request changes something, or something has changed.
    pub(super) fn release(&self) {
        self.0.lock().clear();
    }

    fn of(&self, key: &str) -> Option<Arc<HeldList>> {
        self.0.lock().iter().find(|list| key.starts_with(&list.prefix)).cloned()
    }

    /// The object of a key, as it was listed.
    pub(super) fn object(&self, key: &str) -> HeldObject {
        let Some(list) = self.of(key) else { return HeldObject::Unknown };
        match list.objects.binary_search_by(|object| object.key.as_str().cmp(key)) {
            Ok(index) => HeldObject::Listed(list.objects[index].clone()),
            Err(_) => HeldObject::Absent,
        }
    }

    /// A page of a list; `None`: the store has to be asked.
    pub(super) fn page(&self, prefix: &str, after: Option<&str>, limit: usize) -> Option<ListedPage> {
        let list = self.of(prefix)?;
        let first = list.objects.partition_point(|object| {
            object.key.as_str() < prefix || after.is_some_and(|after| object.key.as_str() <= after)
        });
        let rest = &list.objects[first..];
        let end = rest.partition_point(|object| object.key.starts_with(prefix));
        let objects = rest[..end.min(limit)].to_vec();
        Some(ListedPage { objects, is_last: end <= limit })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys;
    use copal_volume::VolumeId;

    #[test]
    fn a_held_list_answers_as_the_store_did() {
        let vid = VolumeId(7);
        let of = |name: &str| format!("{}{name}", keys::files_prefix(vid));
        let object = |name: &&str| ListedObject { key: of(name), bytes: 1, tag: "t".to_owned() };
        let held = HeldLists::default();
        assert!(held.page(&of(""), None, 9).is_none());
        held.hold(of(""), ["61", "6161", "6162", "62"].iter().map(object).collect());
        let names = |prefix: &str, after: Option<&str>, limit| {
            let page = held.page(&of(prefix), after.map(of).as_deref(), limit).unwrap();
            let names: Vec<String> =
                page.objects.iter().map(|object| object.key[of("").len()..].to_owned()).collect();
            (names.join(" "), page.is_last)
        };
        assert_eq!(names("", None, 9), ("61 6161 6162 62".to_owned(), true));
        assert_eq!(names("61", None, 3), ("61 6161 6162".to_owned(), true));
        assert_eq!(names("61", None, 2), ("61 6161".to_owned(), false));
        assert_eq!(names("61", Some("6161"), 2), ("6162".to_owned(), true));
        assert_eq!(names("63", None, 2), (String::new(), true));
        assert!(matches!(held.object(&of("62")), HeldObject::Listed(_)));
        assert!(matches!(held.object(&of("63")), HeldObject::Absent));
        let other = keys::files_prefix(VolumeId(8));
        assert!(matches!(held.object(&other), HeldObject::Unknown) && held.page(&other, None, 9).is_none());
        held.hold(other.clone(), Vec::new());
        assert!(held.page(&of(""), None, 9).is_some() && held.page(&other, None, 9).is_some());
        held.release();
        assert!(held.page(&of(""), None, 9).is_none());
    }
}
