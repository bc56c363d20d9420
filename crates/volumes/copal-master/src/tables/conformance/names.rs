//! Cases about volumes by name.

use super::{Subject, founded, reopened};
use crate::tables::meta_store::{MetaStore, QuotaRow, VolumePlace};
use copal_volume::{VolumeError, VolumeId, group::GroupId};

const ROOT: VolumeId = VolumeId::ROOT;

fn place(parent: VolumeId, name: &str, vid: VolumeId) -> VolumePlace<'_> {
    VolumePlace { parent, name, vid }
}

fn mkdir(store: &mut dyn MetaStore, parent: VolumeId, name: &str) -> VolumeId {
    store.mkdir(parent, name, GroupId(3), None).unwrap().unwrap()
}

fn resolve(store: &mut dyn MetaStore, path: &[&str]) -> Vec<VolumeId> {
    let found = store.resolve(path).unwrap();
    found.iter().map(|row| row.vid).collect()
}

pub(super) fn a_name_is_one_volumes(subject: &dyn Subject) {
    let mut store = founded(subject);
    let a = mkdir(&mut *store, ROOT, "a");
    assert_eq!(a.birth_group(), GroupId(3));
    let taken = store.mkdir(ROOT, "a", GroupId(4), None).unwrap();
    assert_eq!(taken, Err(VolumeError::VolumeExists { vid: a }));
    // Names are bytes: neither case nor blanks at the end are folded, and 255 of them fit.
    let long = "x".repeat(255);
    let mut seen = vec![a];
    for name in ["A", "a ", "ä", "á", long.as_str()] {
        seen.push(mkdir(&mut *store, ROOT, name));
    }
    let below = mkdir(&mut *store, a, "a");
    seen.push(below);
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 7);
    assert_eq!(resolve(&mut *store, &["a", "a", "a"]), [a, below]);
    assert_eq!(resolve(&mut *store, &["b", "a"]), []);
    let counts = store.volumes_by_group().unwrap();
    assert_eq!(counts[2], (GroupId(3), 7), "a refused wish takes no number");
    assert_eq!(counts[3], (GroupId(4), 0));
    let mut store = reopened(subject, store);
    assert_eq!(resolve(&mut *store, &["a", "a"]), [a, below]);
    assert!(mkdir(&mut *store, ROOT, "b") > below);
}

pub(super) fn lists_are_ordered_by_bytes_and_paged(subject: &dyn Subject) {
    let mut store = founded(subject);
    let mut names = ["b", "B", "a", "ab", "a!", "z", "ü", "a b"];
    for name in names {
        mkdir(&mut *store, ROOT, name);
    }
    let z = store.resolve(&["z"]).unwrap()[0].vid;
    mkdir(&mut *store, z, "below");
    names.sort_by_key(|name| name.as_bytes());
    let mut listed = Vec::new();
    loop {
        let after = listed.last().map(String::as_str);
        let page = store.list(ROOT, after, 3).unwrap();
        if page.is_empty() {
            break;
        }
        assert!(page.len() <= 3);
        listed.extend(page.into_iter().map(|row| row.name));
    }
    assert_eq!(listed, names);
    assert_eq!(store.list(z, None, usize::MAX).unwrap().len(), 1);
    assert_eq!(store.list(VolumeId(1), None, 10).unwrap(), []);
}

pub(super) fn removal_is_marked_undone_and_done(subject: &dyn Subject) {
    let mut store = founded(subject);
    let a = mkdir(&mut *store, ROOT, "a");
    let below = mkdir(&mut *store, a, "below");
    let (at, at_below) = (place(ROOT, "a", a), place(a, "below", below));
    assert_eq!(store.mark_removing(at, true).unwrap(), Err(VolumeError::NotEmpty));
    store.mark_removing(at_below, true).unwrap().unwrap();
    assert_eq!(resolve(&mut *store, &["a", "below"]), [a], "its name leads nowhere");
    assert_eq!(store.list(a, None, 10).unwrap(), []);
    let taken = store.mkdir(a, "below", GroupId(1), None).unwrap();
    assert_eq!(taken, Err(VolumeError::VolumeExists { vid: below }), "still there");
    assert_eq!(store.rename(at_below, ROOT, "b").unwrap(), Err(VolumeError::NotFound));
    assert_eq!(store.mark_removing(at, true).unwrap(), Err(VolumeError::NotEmpty), "it may yet be undone");
    let mut store = reopened(subject, store);
    assert_eq!(store.unmark_all().unwrap(), 1);
    assert_eq!(store.unmark_all().unwrap(), 0);
    store.mark_removing(at_below, true).unwrap().unwrap();
    store.mark_removing(at_below, false).unwrap().unwrap();
    assert_eq!(resolve(&mut *store, &["a", "below"]), [a, below]);
    // Neither another volume of that name nor another name of that volume.
    for wrong in [place(a, "below", VolumeId(below.0 + 9)), place(ROOT, "below", below), place(a, "b", below)]
    {
        let gone = Err(VolumeError::VolumeGone);
        assert_eq!(store.mark_removing(wrong, true).unwrap(), gone);
        assert_eq!(store.remove(wrong).unwrap().map(|_| ()), gone);
    }
    let before = store.cluster().unwrap().unwrap().map_version;
    store.mark_removing(at_below, true).unwrap().unwrap();
    let version = store.remove(at_below).unwrap().unwrap();
    assert!(version > before);
    assert_eq!(store.remove(at_below).unwrap(), Err(VolumeError::VolumeGone));
    store.mark_removing(at, true).unwrap().unwrap();
    let later = store.remove(at).unwrap().unwrap();
    assert_eq!(store.removed_volumes(0).unwrap(), [(below, version), (a, later)]);
    assert_eq!(store.removed_volumes(version).unwrap(), [(a, later)]);
    store.forget_removed_volume(below).unwrap();
    store.forget_removed_volume(below).unwrap();
    let mut store = reopened(subject, store);
    assert_eq!(store.removed_volumes(0).unwrap(), [(a, later)]);
    assert!(!([a, below].contains(&mkdir(&mut *store, ROOT, "a"))), "ids are given once");
}

pub(super) fn a_volume_moves_with_those_below_it(subject: &dyn Subject) {
    let mut store = founded(subject);
    let a = mkdir(&mut *store, ROOT, "a");
    let b = mkdir(&mut *store, ROOT, "b");
    let below = mkdir(&mut *store, a, "below");
    let at = place(ROOT, "a", a);
    assert_eq!(store.rename(at, ROOT, "b").unwrap(), Err(VolumeError::VolumeExists { vid: b }));
    assert_eq!(store.rename(at, ROOT, "a").unwrap(), Ok(()), "as it is");
    for wrong in [place(ROOT, "b", a), place(b, "a", a), place(ROOT, "none", a)] {
        assert_eq!(store.rename(wrong, b, "c").unwrap(), Err(VolumeError::NotFound));
    }
    store.rename(at, b, "c").unwrap().unwrap();
    assert_eq!(resolve(&mut *store, &["b", "c", "below"]), [b, a, below]);
    assert_eq!(resolve(&mut *store, &["a"]), []);
    assert_eq!(store.find(a).unwrap(), Some((b, "c".to_owned())));
    assert_eq!(store.find(VolumeId(1)).unwrap(), None);
    assert_ne!(mkdir(&mut *store, ROOT, "a"), a);
    let mut store = reopened(subject, store);
    assert_eq!(resolve(&mut *store, &["b", "c", "below"]), [b, a, below]);
}

pub(super) fn quotas_go_with_their_volume(subject: &dyn Subject) {
    let mut store = founded(subject);
    let before = store.cluster().unwrap().unwrap().map_version;
    mkdir(&mut *store, ROOT, "without");
    assert_eq!(store.cluster().unwrap().unwrap().map_version, before);
    let a = store.mkdir(ROOT, "a", GroupId(1), Some(100_000)).unwrap().unwrap();
    let b = store.mkdir(a, "b", GroupId(1), Some(0)).unwrap().unwrap();
    let mut store = reopened(subject, store);
    let rows = store.quotas(0).unwrap();
    let plain = |row: &QuotaRow| (row.vid, row.bytes);
    assert_eq!(rows.iter().map(plain).collect::<Vec<_>>(), [(a, 100_000), (b, 0)]);
    assert!(before < rows[0].version && rows[0].version < rows[1].version);
    assert_eq!(store.quotas(rows[0].version).unwrap(), rows[1..]);
    let taken = store.mkdir(ROOT, "a", GroupId(1), Some(1)).unwrap();
    assert_eq!(taken, Err(VolumeError::VolumeExists { vid: a }));
    store.remove(place(a, "b", b)).unwrap().unwrap();
    assert_eq!(store.quotas(0).unwrap(), rows[..1], "nothing of the refused one, nothing of the removed");
}
