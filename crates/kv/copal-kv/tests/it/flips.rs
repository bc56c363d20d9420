//! Changes the bytes of a small store in turn: table, manifest, log, value objects. A changed byte may cost
//! an answer, but never changes one, and never makes a present key absent.
//!
//! The store is a directory of files, so that a byte of an object is a byte of a file, and nothing below the
//! engine repairs or refuses it.

use crate::support::*;
use copal_device::{
    Device, Image,
    fault::{CompletionOrder, Fault, FaultDevice, FaultOptions, WriteFault},
};
use copal_kv::{Error, KeyspaceOptions, Options, Store};
use copal_object::{MkfsOptions, OpenOptions, Store as Objects};
use std::{
    collections::BTreeMap,
    fs::OpenOptions as FileOpenOptions,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Arc,
};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// Separates early: every kind of value in few bytes.
fn tiny() -> KeyspaceOptions {
    KeyspaceOptions {
        group_prefix_len: 1,
        separate_from_bytes: 40,
        direct_from_bytes: 80,
        compress: false,
        ..KeyspaceOptions::default()
    }
}

fn read_only() -> Options {
    Options { read_only: true, ..small() }
}

/// A table at the bottom, one above it with a range tombstone, values of both kinds, and a log.
fn build(dir: &Path) -> Model {
    Objects::mkfs_dir(dir, &MkfsOptions::default()).unwrap();
    let objects = Objects::open_dir(dir, &OpenOptions::default()).unwrap().0;
    let store = Store::open(objects.clone(), small()).unwrap();
    let space = store.keyspace("a", tiny()).unwrap();
    let mut model = Model::new();
    let put = |model: &mut Model, name: &str, tag: u64, len: usize| {
        space.put(name.as_bytes(), &value(tag, len), PROCESS).unwrap();
        model.insert(name.as_bytes().to_vec(), value(tag, len));
    };
    for (i, name) in ["b", "d", "f", "h", "j", "l"].into_iter().enumerate() {
        put(&mut model, name, i as u64, [10, 50, 100][i % 3]);
    }
    store.keyspace("a", tiny()).unwrap().compact_range(all()).unwrap();
    put(&mut model, "c", 20, 12);
    let mut batch = store.batch();
    let space = store.keyspace("a", tiny()).unwrap();
    batch.delete_range(&space, b"h", b"k");
    batch.commit(PROCESS).unwrap();
    model.retain(|key, _| key[0] < b'h' || key[0] >= b'k');
    store.flush().unwrap();
    for (name, tag, len) in [("e", 30, 9), ("g", 31, 45), ("m", 32, 90)] {
        space.put(name.as_bytes(), &value(tag, len), PROCESS).unwrap();
        model.insert(name.as_bytes().to_vec(), value(tag, len));
    }
    space.delete(b"b", PROCESS).unwrap();
    model.remove(&b"b"[..]);
    store.close().unwrap();
    objects.close().unwrap();
    model
}

/// Permitted answers of a store with damage.
fn judge(store: &Store, model: &Model, what: &str) -> bool {
    let mut told = false;
    let mut refused = |error: Error| {
        assert!(error.is_corruption(), "{what}: {error}");
        told = true;
    };
    let Some(space) = store.open_keyspace("a").unwrap() else {
        panic!("{what}: the keyspace is gone");
    };
    for letter in b'a'..=b'n' {
        let key = vec![letter];
        match space.get(&key) {
            Ok(found) => assert_eq!(found.as_deref(), model.get(&key).map(Vec::as_slice), "{what}: {letter}"),
            Err(error) => refused(error),
        }
    }
    // In both directions: correct items first, then the end or an error.
    for back in [false, true] {
        let mut items = space.iter(all());
        let mut truth = model.iter();
        loop {
            let (item, expected) =
                if back { (items.next_back(), truth.next_back()) } else { (items.next(), truth.next()) };
            match item {
                None => {
                    assert_eq!(expected, None, "{what}: back {back}");
                    break;
                }
                Some(Ok((key, value))) => {
                    let expected = expected.unwrap_or_else(|| panic!("{what}: {key:?} is one too many"));
                    assert_eq!((&key[..], &value[..]), (&expected.0[..], &expected.1[..]), "{what}");
                }
                Some(Err(error)) => {
                    refused(error);
                    break;
                }
            }
        }
    }
    told
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(dir.join("objects")).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// Step between changed bytes in `make test`; `COPAL_FLIP_STRIDE=1` changes every one.
fn stride() -> usize {
    let wanted = std::env::var("COPAL_FLIP_STRIDE").ok();
    wanted.and_then(|text| text.parse().ok()).unwrap_or(5)
}

#[test]
fn any_changed_byte_of_any_object_is_reported_or_harmless() {
    let stride = stride();
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("store");
    let model = build(&dir);
    let (mut refused, mut damaged, mut harmless) = (0, 0, 0_usize);
    for path in files(&dir) {
        let file = FileOpenOptions::new().read(true).write(true).open(&path).unwrap();
        let len = file.metadata().unwrap().len();
        let mut content = vec![0; len as usize];
        file.read_exact_at(&mut content, 0).unwrap();
        let last = content.iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1);
        for at in (0..last).step_by(stride) {
            // Long stretches of zeros are padding: a few places in them are enough.
            let padding = content[at..last.min(at + 32)].iter().all(|byte| *byte == 0);
            if padding && at % 64 >= stride {
                continue;
            }
            let changed = content[at] ^ (1 << (at % 8));
            file.write_all_at(&[changed], at as u64).unwrap();
            let what = format!("byte {at} of {}", path.display());
            let options = OpenOptions { read_only: true, ..OpenOptions::default() };
            match Objects::open_dir(&dir, &options) {
                Err(_) => refused += 1,
                Ok((objects, _)) => {
                    // A dump shows the readable part and never fails.
                    if at % 16 < stride {
                        drop(crate::dump::everything(&objects));
                    }
                    match Store::open(objects, read_only()) {
                        Err(error) => {
                            assert!(error.is_corruption(), "{what}: {error}");
                            refused += 1;
                        }
                        Ok(store) => {
                            let told = judge(&store, &model, &what);
                            damaged += usize::from(told);
                            harmless += usize::from(!told);
                            if told {
                                assert!(!store.verify(true).unwrap().is_sound(), "{what}");
                            }
                        }
                    }
                }
            }
            file.write_all_at(&content[at..=at], at as u64).unwrap();
        }
    }
    let least = |of_all: usize| of_all / stride;
    assert!(refused > least(300), "{refused} openings were refused");
    assert!(damaged > least(500), "{damaged} damages were told");
    assert!(harmless > least(500), "{harmless} cost nothing");
}

/// The device silently loses one write, or writes it elsewhere. After a clean close every key is right or
/// reports damage; the only other permitted answer is a refusal of the object layer to open.
#[test]
fn one_lost_or_misdirected_write_is_reported_and_hides_nothing_else() {
    let mut told = 0;
    for seed in 0..160u64 {
        let mut random = Random::new(seed);
        let device = FaultDevice::with_options(
            Image::zeroed(64 * MIB),
            FaultOptions {
                order: CompletionOrder::Immediate,
                record: false,
                max_size: 64 * MIB,
                ..FaultOptions::default()
            },
        );
        let dynamic: Arc<dyn Device> = device.clone();
        format(&dynamic);
        let store = Store::open(open_objects(&dynamic), small()).unwrap();
        let space = store.keyspace("a", grouped()).unwrap();
        let skip = random.below(60) as u32;
        let fault = match seed % 2 {
            0 => WriteFault::Lost,
            _ => WriteFault::Misdirected { to: random.below(2000) * 4096 },
        };
        device.inject(Fault::Write { skip, fault });
        let content = |i: u64| value(i, [60, 800, 4000][(i % 3) as usize]);
        let mut whole = true;
        for i in 0..60u64 {
            // A merge or a put that meets the damage may refuse; the test then stops using the store.
            let put = space.put(&i.to_be_bytes(), &content(i), DEVICE);
            let flushed = if i % 20 == 19 { store.flush() } else { Ok(()) };
            whole = put.and(flushed).is_ok();
            if !whole {
                break;
            }
        }
        whole = whole && space.compact_range(all()).is_ok() && store.close().is_ok();
        whole = whole && store.objects().close().is_ok();
        drop((space, store));
        if !whole {
            told += 1;
            continue;
        }
        let device = device.reopen();
        let dynamic: Arc<dyn Device> = device;
        let Ok((objects, _)) = Objects::open(dynamic, &OpenOptions::default()) else {
            told += 1;
            continue;
        };
        let store = match Store::open(objects, small()) {
            Ok(store) => store,
            Err(error) => {
                assert!(error.is_corruption(), "seed {seed}: {error}");
                told += 1;
                continue;
            }
        };
        let space = store.open_keyspace("a").unwrap().expect("it was stored durably");
        let mut corrupt = 0;
        for i in 0..60u64 {
            match space.get(&i.to_be_bytes()) {
                Ok(found) => assert_eq!(found.as_deref(), Some(&content(i)[..]), "seed {seed}, key {i}"),
                Err(error) => {
                    assert!(error.is_corruption(), "seed {seed}: {error}");
                    corrupt += 1;
                }
            }
        }
        if corrupt > 0 {
            told += 1;
            assert!(!store.damaged_ranges().is_empty() || !store.verify(true).unwrap().is_sound());
        }
    }
    // One in five hits data that is still needed.
    assert!(told >= 20, "{told} of 160 faults were noticed");
}
