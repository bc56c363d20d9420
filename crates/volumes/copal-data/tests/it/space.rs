//! Space: a full store refuses cleanly, and deletes free space.

use crate::stack::{MIB, blank, body, get, open, put, volume};
use bytes::Bytes;
use copal_data::LocalStore;
use copal_volume::{PutOptions, RemoveMode, VolumeError, VolumeId, VolumeStore};

fn free(store: &LocalStore) -> u64 {
    store.kv().objects().space().free_bytes
}

/// Fills the store with files of 2 MiB. Returns their names.
fn fill(store: &LocalStore, vid: VolumeId) -> Vec<Vec<u8>> {
    let mut names = Vec::new();
    loop {
        let name = (names.len() as u32).to_be_bytes().to_vec();
        match put(store, vid, &name, body(names.len() as u64, 2 << 20)) {
            Ok(_) => names.push(name),
            Err(VolumeError::NoSpace) => return names,
            Err(error) => panic!("a full store answers NoSpace, not: {error}"),
        }
        assert!(names.len() < 1000, "the store never fills");
    }
}

#[test]
fn a_full_store_refuses_and_deletes_free_its_space() {
    let device = blank(96 * MIB);
    let store = open(&device);
    let vid = volume(&store, "v");
    let other = volume(&store, "other");
    put(&store, other, b"keep", body(7, 100_000)).expect("put");
    let names = fill(&store, vid);
    assert!(names.len() > 10, "only {} files fitted", names.len());
    for (n, name) in names.iter().enumerate() {
        assert!(get(&store, vid, name) == Ok(body(n as u64, 2 << 20)));
    }
    // A stream reaches the end of the space too, and leaves nothing.
    let mut writer = store.writer(vid, b"stream", &PutOptions::default()).expect("writer");
    let failed = (0..64_u64).map(|n| writer.append(body(n, 2 << 20))).find(Result::is_err);
    assert_eq!(failed, Some(Err(VolumeError::NoSpace)));
    drop(writer);
    for name in &names[..names.len() / 2] {
        let info = store.stat(vid, name, &Default::default()).expect("stat");
        store.delete(vid, name, info.fid).expect("delete when full");
    }
    store.reclaim(vid).expect("reclaim");
    let again = names.len() / 2 - 3;
    for n in 0..again as u64 {
        let name = [b"again", &n.to_be_bytes()[..]].concat();
        put(&store, vid, &name, body(n, 2 << 20)).expect("the space is back");
    }
    assert_eq!(get(&store, other, b"keep"), Ok(body(7, 100_000)));
    drop(store);
    let store = open(&device);
    assert_eq!(get(&store, other, b"keep"), Ok(body(7, 100_000)));
    assert_eq!(store.volume_stats(vid).expect("stats").files, (names.len() - names.len() / 2 + again) as u64);
}

#[test]
fn deleting_filling_and_deleting_again_leaks_nothing() {
    let store = open(&blank(256 * MIB));
    let vid = volume(&store, "v");
    let round = |seed: u64| {
        for n in 0..12_u64 {
            let info = put(&store, vid, &n.to_be_bytes(), body(seed + n, 3 << 20)).expect("put");
            store.delete(vid, &n.to_be_bytes(), info.fid).expect("delete");
        }
        let mut writer = store.writer(vid, b"dropped", &PutOptions::default()).expect("writer");
        writer.append(body(seed, 9 << 20)).expect("append");
        drop(writer);
        store.reclaim(vid).expect("reclaim");
        free(&store)
    };
    let first = round(0);
    for n in 1..8 {
        let now = round(n * 100);
        assert!(now + 4 * MIB > first, "round {n}: {now} bytes free, {first} after the first round");
    }
}

#[test]
fn a_removed_volume_gives_its_space_back_without_being_read() {
    let device = blank(256 * MIB);
    let store = open(&device);
    let keep = volume(&store, "keep");
    put(&store, keep, b"f", body(1, 3 << 20)).expect("put");
    store.kv().flush().expect("flush");
    let before = free(&store);
    let vid = volume(&store, "v");
    for n in 0..20_u64 {
        put(&store, vid, &n.to_be_bytes(), body(n, 5 << 20)).expect("put");
    }
    store.kv().flush().expect("flush");
    assert!(free(&store) + 90 * MIB < before, "100 MiB are stored");
    let reads = device.counters().read_bytes;
    store.remove_volume(vid, RemoveMode::WithFiles).expect("remove");
    store.reclaim(keep).expect("reclaim");
    assert!(free(&store) + 8 * MIB > before, "{} bytes free, {before} before the volume came", free(&store));
    let read = device.counters().read_bytes - reads;
    assert!(read < 16 * MIB, "removing 100 MiB read {read} bytes");
    assert_eq!(get(&store, keep, b"f"), Ok(body(1, 3 << 20)));
}

/// Symptom: an engine with little memory refused tens of thousands of small files, put or deleted in one
/// call. An engine that lacked memory for a moment accepted no writes until it was reopened. Cause: all files
/// went into one batch, regardless of the engine's memory, and a refusal for lack of memory counted as a
/// write that may have happened. Fix: a batch has as many files as fit, and such a refusal is reported as
/// one.
#[test]
fn batches_of_many_files_need_little_memory() {
    const FILES: u32 = 20_000;
    let device = blank(256 * MIB);
    let memory = copal_kv::Options { memory_bytes: 4 * MIB, ..copal_kv::Options::default() };
    let objects = copal_object::Store::open(device, &copal_object::OpenOptions::default());
    let kv = copal_kv::Store::open(objects.expect("objects").0, memory).expect("engine");
    let store = LocalStore::open(kv).expect("volumes");
    let vid = volume(&store, "v");
    let name = |n: u32| Bytes::from([&[b'x'; 100][..], &n.to_be_bytes()].concat());
    let file = |n: u32| (name(n), body(u64::from(n), 20), PutOptions::default());
    // A taken name in between.
    put(&store, vid, &name(15_000), body(1, 10)).expect("put");
    let answers = store.put_batch(vid, (0..FILES).map(file).collect()).expect("a batch");
    let refused: Vec<_> = answers.iter().filter(|answer| answer.is_err()).collect();
    assert!(matches!(refused[..], [Err(VolumeError::Exists { .. })]), "{refused:?}");
    assert_eq!(store.volume_stats(vid).expect("stats").files, u64::from(FILES));
    assert_eq!(get(&store, vid, &name(FILES - 1)), Ok(body(u64::from(FILES - 1), 20)));
    let created =
        answers.iter().zip(0..).filter_map(|(answer, n)| Some((name(n), answer.as_ref().ok()?.fid)));
    let created: Vec<_> = created.collect();
    let deleted = store.delete_batch(vid, &created).expect("a batch");
    assert!(deleted.iter().all(Result::is_ok));
    assert_eq!(store.volume_stats(vid).expect("stats").files, 1);
}
