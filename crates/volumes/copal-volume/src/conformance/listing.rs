//! Listing and counting.

use super::{body, volume};
use crate::store::{PutOptions, ReadOptions, VolumeStats, VolumeStore};

fn put(store: &dyn VolumeStore, vid: crate::VolumeId, name: &[u8]) {
    store.put(vid, name, body(name.len() as u64, name.len()), &PutOptions::default()).expect("put");
}

fn names(
    store: &dyn VolumeStore,
    vid: crate::VolumeId,
    prefix: &[u8],
    after: Option<&[u8]>,
    limit: usize,
) -> Vec<Vec<u8>> {
    let list = |options| store.list(vid, prefix, after, limit, options).expect("list");
    let page = list(&ReadOptions::STRICT);
    assert_eq!(page, list(&ReadOptions::default()), "nothing is under way");
    let told = store.list_page(vid, prefix, after, limit, &ReadOptions::STRICT).expect("list");
    assert_eq!(told.files, page);
    let last = page.last().map(|(name, _)| &name[..]).or(after);
    if told.is_last && limit > 0 {
        let behind = store.list(vid, prefix, last, 1, &ReadOptions::STRICT).expect("list");
        assert_eq!(behind, [], "nothing follows the last page");
    }
    page.iter().map(|(name, _)| name.to_vec()).collect()
}

pub(super) fn pages(store: &dyn VolumeStore) {
    let before = volume(store, "before");
    let vid = volume(store, "v");
    let behind = volume(store, "behind");
    let all: Vec<&[u8]> = vec![
        b"\0",
        b"\0\0",
        b"a",
        b"a\0",
        b"a\0b",
        b"a/1",
        b"a/2",
        b"aa",
        b"b",
        b"b\xff",
        b"b\xff\xff",
        b"c",
        b"\xff",
        b"\xff\xff",
    ];
    for name in all.iter().rev() {
        put(store, vid, name);
        put(store, before, name);
        put(store, behind, name);
    }
    assert_eq!(names(store, vid, b"", None, 1000), all, "bytewise order");
    assert_eq!(names(store, vid, b"", None, 0), Vec::<Vec<u8>>::new());
    for limit in 1..=all.len() {
        let mut seen: Vec<Vec<u8>> = Vec::new();
        loop {
            let page = names(store, vid, b"", seen.last().map(Vec::as_slice), limit);
            assert!(page.len() <= limit);
            if page.is_empty() {
                break;
            }
            assert!(page.first() > seen.last(), "a page begins above the last one");
            seen.extend(page);
        }
        assert_eq!(seen, all, "pages of {limit}");
    }
    let with = |prefix: &[u8]| -> Vec<Vec<u8>> {
        let of = all.iter().filter(|name| name.starts_with(prefix));
        of.map(|name| name.to_vec()).collect()
    };
    for prefix in [&b"a"[..], b"a/", b"b\xff", b"\xff", b"\xff\xff", b"none"] {
        assert_eq!(names(store, vid, prefix, None, 100), with(prefix));
        for after in &all {
            let mut expected = with(prefix);
            expected.retain(|name| name.as_slice() > *after);
            assert_eq!(names(store, vid, prefix, Some(after), 100), expected);
        }
    }
    assert_eq!(names(store, vid, b"", Some(b"a/15"), 2), [&b"a/2"[..], b"aa"]);
    let page = store.list(vid, b"b", None, 1, &ReadOptions::default()).expect("list");
    let stat = store.stat(vid, b"b", &ReadOptions::default()).expect("stat");
    assert_eq!(page[0].1, stat, "list and stat agree");
}

pub(super) fn stats(store: &dyn VolumeStore) {
    let vid = volume(store, "v");
    let mut expected = VolumeStats::default();
    assert_eq!(store.volume_stats(vid).expect("stats"), expected);
    let mut last = None;
    for size in [0_u64, 100, 5000, 70_000] {
        let name = size.to_be_bytes();
        let info = store.put(vid, &name, body(size, size as usize), &PutOptions::default());
        last = Some((name, info.expect("put").fid));
        expected.files += 1;
        expected.bytes += size;
        assert_eq!(store.volume_stats(vid).expect("stats"), expected);
    }
    let (name, fid) = last.expect("four files");
    store.delete(vid, &name, fid).expect("delete");
    store.delete(vid, &name, fid).expect("delete again");
    store.reclaim(vid).expect("reclaim");
    expected.files -= 1;
    expected.bytes -= 70_000;
    assert_eq!(store.volume_stats(vid).expect("stats"), expected);
    assert_eq!(store.list(vid, b"", None, 10, &ReadOptions::default()).expect("list").len(), 3);
}
