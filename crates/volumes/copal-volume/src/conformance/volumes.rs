//! The tree of volumes.

use super::{body, volume};
use crate::VolumeId;
use crate::error::VolumeError;
use crate::store::{PutOptions, ReadOptions, RemoveMode, VolumeOptions, VolumeStore};

fn child(store: &dyn VolumeStore, parent: &str, name: &str) -> Result<VolumeId, VolumeError> {
    store.create_volume(parent, name, &VolumeOptions::default())
}

pub(super) fn tree(store: &dyn VolumeStore) {
    let a = child(store, "", "a").expect("a");
    let b = child(store, "a", "b").expect("a/b");
    let c = child(store, "a/b", "c").expect("a/b/c");
    assert_eq!(store.open_volume("a"), Ok(a));
    assert_eq!(store.open_volume("a/b"), Ok(b));
    assert_eq!(store.open_volume("a/b/c"), Ok(c));
    assert_eq!(store.open_volume("a/c"), Err(VolumeError::NotFound));
    assert_eq!(store.open_volume("b"), Err(VolumeError::NotFound));
    assert_eq!(child(store, "nowhere", "x"), Err(VolumeError::NotFound));
    assert_eq!(child(store, "a", "b"), Err(VolumeError::VolumeExists { vid: b }));
    let long = "x".repeat(256);
    for bad in ["", ".", "..", "a/b", "a\u{7}", &long] {
        let refused = child(store, "", bad);
        assert!(matches!(refused, Err(VolumeError::InvalidName { .. })), "{refused:?}");
    }
    for bad in ["", "/", "/a", "a/", "a//b"] {
        let refused = store.open_volume(bad);
        assert!(matches!(refused, Err(VolumeError::InvalidName { .. })), "{refused:?}");
    }
    for name in ["z", "m", "é", "Z", "b-c", "b0"] {
        child(store, "a", name).expect("create");
    }
    let all = store.list_volumes("a", None, 100).expect("list");
    let names: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["Z", "b", "b-c", "b0", "m", "z", "é"]);
    assert_eq!(all[1].1, b);
    let page = store.list_volumes("a", Some("b"), 2).expect("list");
    let names: Vec<&str> = page.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["b-c", "b0"]);
    let top = store.list_volumes("", None, 10).expect("list");
    assert_eq!(top, [("a".to_owned(), a)]);
    assert_eq!(store.list_volumes("a/b/c", None, 10).expect("list"), []);
    assert_eq!(store.list_volumes("nowhere", None, 10), Err(VolumeError::NotFound));
}

pub(super) fn rename(store: &dyn VolumeStore) {
    let a = child(store, "", "a").expect("a");
    let b = child(store, "a", "b").expect("a/b");
    let c = child(store, "a/b", "c").expect("a/b/c");
    if !store.limits().renames {
        let refused = store.rename_volume("a/b", "a/moved");
        assert!(matches!(refused, Err(VolumeError::Denied { .. })), "{refused:?}");
        assert_eq!((store.open_volume("a/b"), store.open_volume("a/b/c")), (Ok(b), Ok(c)));
        return;
    }
    let other = child(store, "", "other").expect("other");
    store.put(b, b"f", body(1, 6000), &PutOptions::default()).expect("put");
    store.rename_volume("a/b", "other/moved").expect("rename");
    assert_eq!(store.open_volume("other/moved"), Ok(b));
    assert_eq!(store.open_volume("other/moved/c"), Ok(c), "volumes below move along");
    assert_eq!(store.open_volume("a/b"), Err(VolumeError::NotFound));
    let read = store.get(b, b"f", 0..u64::MAX, &ReadOptions::default());
    assert_eq!(read.expect("files stay"), body(1, 6000));
    assert_eq!(store.rename_volume("a/b", "x"), Err(VolumeError::NotFound), "the old path is gone");
    assert_eq!(store.rename_volume("other/moved", "a"), Err(VolumeError::VolumeExists { vid: a }));
    assert_eq!(store.rename_volume("other/moved", "nowhere/x"), Err(VolumeError::NotFound));
    for below in ["other/inside", "other/moved/c/other"] {
        let refused = store.rename_volume("other", below);
        assert!(matches!(refused, Err(VolumeError::InvalidName { .. })), "moved below itself: {refused:?}");
    }
    store.rename_volume("other", "other").expect("to itself");
    assert_eq!(store.open_volume("other"), Ok(other));
    assert_eq!(store.open_volume("other/moved/c"), Ok(c));
}

pub(super) fn remove(store: &dyn VolumeStore) {
    let keep = volume(store, "keep");
    store.put(keep, b"f", body(9, 5000), &PutOptions::default()).expect("put");
    let a = volume(store, "a");
    let b = child(store, "a", "b").expect("a/b");
    let mut last = None;
    for n in 0..20_u64 {
        let size = [10, 5000, 70_000][n as usize % 3];
        let info = store.put(b, &n.to_be_bytes(), body(n, size), &PutOptions::default());
        last = Some(info.expect("put"));
    }
    for how in [RemoveMode::IfEmpty, RemoveMode::WithFiles] {
        assert_eq!(
            store.remove_volume(a, how),
            Err(VolumeError::NotEmpty),
            "volumes below are never removed along"
        );
    }
    assert_eq!(store.remove_volume(b, RemoveMode::IfEmpty), Err(VolumeError::NotEmpty));
    assert_eq!(store.volume_stats(b).expect("stats").files, 20);
    let mut open_stream = store.writer(b, b"stream", &PutOptions::default()).expect("writer");
    open_stream.append(body(1, 5 << 20)).expect("append");
    store.remove_volume(b, RemoveMode::WithFiles).expect("remove");
    let gone = VolumeError::VolumeGone;
    assert_eq!(open_stream.commit(), Err(gone.clone()), "a stream into a removed volume");
    assert_eq!(store.open_volume("a/b"), Err(VolumeError::NotFound));
    assert_eq!(store.list_volumes("a", None, 9).expect("list"), []);
    assert_eq!(store.list(b, b"", None, 9, &ReadOptions::STRICT), Err(gone.clone()));
    assert_eq!(store.remove_volume(b, RemoveMode::WithFiles), Err(gone.clone()), "a second removal");
    let fid = last.expect("twenty files").fid;
    assert_eq!(store.delete(b, &19_u64.to_be_bytes(), fid), Err(gone.clone()));
    assert_eq!(store.put(b, b"x", body(1, 1), &PutOptions::default()), Err(gone));
    let again = child(store, "a", "b").expect("the name is free");
    assert_ne!(again, b, "a volume id was used twice");
    assert_eq!(store.list(again, b"", None, 9, &ReadOptions::STRICT).expect("list"), []);
    if !store.limits().removes_empty {
        let refused = store.remove_volume(again, RemoveMode::IfEmpty);
        assert_eq!(refused, Err(VolumeError::NotEmpty), "emptiness that the store cannot hold");
    }
    store.remove_volume(again, remove_empty(store)).expect("empty now");
    store.remove_volume(a, remove_empty(store)).expect("empty now");
    let top = store.list_volumes("", None, 9).expect("list");
    assert_eq!(top, [("keep".to_owned(), keep)]);
    let kept = store.get(keep, b"f", 0..u64::MAX, &ReadOptions::default());
    assert_eq!(kept.expect("a neighbour stays"), body(9, 5000));
}

/// The way to remove an empty volume.
pub(super) fn remove_empty(store: &dyn VolumeStore) -> RemoveMode {
    match store.limits().removes_empty {
        true => RemoveMode::IfEmpty,
        false => RemoveMode::WithFiles,
    }
}

pub(super) fn ids(store: &dyn VolumeStore) {
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..20 {
        let vid = volume(store, "again");
        assert!(vid != VolumeId::ROOT && seen.insert(vid), "a volume id was used twice");
        store.remove_volume(vid, remove_empty(store)).expect("remove");
    }
}
