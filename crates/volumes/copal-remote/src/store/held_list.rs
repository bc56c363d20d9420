//! Lists of volumes as a command saw them when it began.
//!
//! Invariants
//! - A list was complete when it was read, and no change by this process was in progress then or has begun since.
//! - A listed object that is gone ends the hold, so the next list is current.

use crate::service::{ListedObject, ListedPage};
use parking_lot::Mutex;
use std::sync::Arc;

/// The lists that are held.
#[derive(Default)]
pub(super) struct HeldLists(Mutex<HeldState>);

#[derive(Default)]
struct HeldState {
    lists: Vec<Arc<HeldList>>,
    /// Changes in progress.
    changing: usize,
    /// Ended holds: a list that was begun before the last one is not held.
    ended: u64,
}

/// A change in progress: no list is held until it has ended.
pub(super) struct ChangeGuard<'a>(&'a HeldLists);

impl Drop for ChangeGuard<'_> {
    fn drop(&mut self) {
        let mut held = self.0.0.lock();
        held.changing -= 1;
        held.ended += 1;
    }
}

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
    /// State in which a list begins.
    pub(super) fn begin(&self) -> u64 {
        self.0.lock().ended
    }

    /// Holds all objects below a prefix, unless something has changed since the list was begun.
    pub(super) fn hold(&self, prefix: String, objects: Vec<ListedObject>, begun: u64) {
        let mut held = self.0.lock();
        if held.changing == 0 && held.ended == begun {
            held.lists.retain(|list| list.prefix != prefix);
            held.lists.push(Arc::new(HeldList { prefix, objects }));
        }
    }

    /// Ends all holds, and permits none until the change has ended.
    pub(super) fn change(&self) -> ChangeGuard<'_> {
        let mut held = self.0.lock();
        held.lists.clear();
        held.changing += 1;
        ChangeGuard(self)
    }

    pub(super) fn has(&self, prefix: &str) -> bool {
        self.0.lock().lists.iter().any(|list| list.prefix == prefix)
    }

    /// Ends all holds: something has changed.
    pub(super) fn release(&self) {
        let mut held = self.0.lock();
        held.lists.clear();
        held.ended += 1;
    }

    fn of(&self, key: &str) -> Option<Arc<HeldList>> {
        self.0.lock().lists.iter().find(|list| key.starts_with(&list.prefix)).cloned()
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
        held.hold(of(""), ["61", "6161", "6162", "62"].iter().map(object).collect(), held.begin());
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
        held.hold(other.clone(), Vec::new(), held.begin());
        assert!(held.page(&of(""), None, 9).is_some() && held.page(&other, None, 9).is_some());
        held.release();
        assert!(held.page(&of(""), None, 9).is_none());
        // A change that was in progress while the list was read may be missing in it.
        let during = held.change();
        let begun = held.begin();
        held.hold(other.clone(), Vec::new(), begun);
        drop(during);
        held.hold(other.clone(), Vec::new(), begun);
        assert!(held.page(&other, None, 9).is_none());
        held.hold(other.clone(), Vec::new(), held.begin());
        assert!(held.page(&other, None, 9).is_some());
        let _change = held.change();
        assert!(held.page(&other, None, 9).is_none());
    }
}
