use super::*;
use bytes::Bytes;
use std::{os::unix::fs::PermissionsExt, time::SystemTime};

fn front(tag: &str, len: usize) -> ObjectFront {
    ObjectFront { bytes: Bytes::from(vec![7; len]), total: len as u64, tag: tag.to_owned() }
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        if entry.metadata().unwrap().is_dir() {
            found.extend(fs::read_dir(entry.path()).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    found
}

#[test]
fn an_object_comes_back_under_its_tag_only() {
    let scratch = tempfile::tempdir().unwrap();
    let at = scratch.path().join("cache/objects");
    let cache = ObjectCache::open(&at, 1 << 20).unwrap();
    assert_eq!(cache.read("k", None), None);
    cache.write("k", &front("1", 100));
    let again = ObjectCache::open(&at, 1 << 20).unwrap();
    assert_eq!(again.read("k", Some("1")), Some(front("1", 100)));
    assert_eq!(again.read("k", Some("2")), None);
    again.write("k", &front("2", 100));
    assert_eq!(cache.read("k", None), Some(front("2", 100)));
    cache.write("long", &front("1", MAX_OBJECT_BYTES as usize + 1));
    assert_eq!(cache.read("long", None), None);
    for path in [&at, &scratch.path().join("cache")] {
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    }
    assert!(files(&at).iter().all(|file| file.metadata().unwrap().permissions().mode() & 0o777 == 0o600));
}

#[test]
fn a_damaged_entry_is_removed_and_not_believed() {
    let scratch = tempfile::tempdir().unwrap();
    let cache = ObjectCache::open(scratch.path(), 1 << 20).unwrap();
    cache.write("k", &front("1", 100));
    let file = files(scratch.path()).remove(0);
    for damaged in [b"".to_vec(), vec![0; 200], vec![1; 200_000]] {
        fs::write(&file, damaged).unwrap();
        assert_eq!(cache.read("k", None), None);
        assert!(!file.exists());
    }
    // The entry of another key.
    cache.write("other", &front("1", 100));
    fs::rename(files(scratch.path()).remove(0), &file).unwrap();
    assert_eq!(cache.read("k", None), None);
}

#[test]
fn the_entries_that_were_used_last_stay_below_the_limit() {
    let scratch = tempfile::tempdir().unwrap();
    let cache = ObjectCache::open(scratch.path(), 64 << 10).unwrap();
    fs::write(scratch.path().join("mine"), "precious").unwrap();
    let long_ago = SystemTime::UNIX_EPOCH;
    for number in 0..14 {
        cache.write(&format!("k{number}"), &front("1", 10));
        File::open(cache.path_of(&format!("k{number}"))).unwrap().set_modified(long_ago).unwrap();
    }
    // A use makes it new.
    assert!(cache.read("k3", None).is_some());
    for number in 14..20 {
        cache.write(&format!("k{number}"), &front("1", 10));
    }
    sweep::sweep(scratch.path(), 64 << 10).unwrap();
    assert!(files(scratch.path()).len() <= 16, "{}", files(scratch.path()).len());
    assert!(cache.read("k3", None).is_some() && cache.read("k19", None).is_some());
    assert!(cache.read("k0", None).is_none());
    assert!(scratch.path().join("mine").exists());
}

/// A directory without room or rights makes no command fail.
#[test]
fn a_directory_that_takes_nothing_is_refused_at_once() {
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("file");
    fs::write(&file, "x").unwrap();
    assert!(ObjectCache::open(&file.join("cache"), 1 << 20).is_err());
    let cache = ObjectCache::open(&scratch.path().join("cache"), 1 << 20).unwrap();
    fs::remove_dir_all(scratch.path().join("cache")).unwrap();
    cache.write("k", &front("1", 10));
    assert_eq!(cache.read("k", None), None);
}
