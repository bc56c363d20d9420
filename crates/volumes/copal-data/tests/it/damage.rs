//! Changed rows: reads report them, and the check lists them and continues.

use crate::stack::{body, everything, fresh, get, put, volume};
use copal_data::{CheckOptions, LocalStore, VolumeCheckReport};
use copal_kv::{Durability, Keyspace};
use copal_volume::{FileInfo, ReadOptions, VolumeError, VolumeId, VolumeStore};

fn check(store: &LocalStore, read_data: bool) -> VolumeCheckReport {
    let options = CheckOptions { read_data, engine: true, verified: None };
    store.check(&options, &mut |_| {}).expect("check")
}

/// Findings of a check, one line each.
fn findings(store: &LocalStore, read_data: bool) -> Vec<String> {
    let report = check(store, read_data);
    report.damage.iter().map(ToString::to_string).collect()
}

fn space(store: &LocalStore, name: &str) -> Keyspace {
    let space = store.kv().open_keyspace(name).expect("open");
    space.expect("the keyspace is there")
}

/// Changes the one row of a keyspace whose key ends with `end`.
fn change(store: &LocalStore, keyspace: &str, end: &[u8], how: impl Fn(&mut Vec<u8>)) {
    let space = space(store, keyspace);
    let rows: Vec<_> =
        space.prefix(b"").map(|row| row.expect("row")).filter(|(key, _)| key.ends_with(end)).collect();
    assert_eq!(rows.len(), 1, "one row of {keyspace} ends with {end:?}");
    let mut row = rows[0].1.to_vec();
    how(&mut row);
    space.put(&rows[0].0, &row, Durability::Device).expect("put");
}

/// Deletes all rows of a keyspace whose keys end with `end`.
fn delete(store: &LocalStore, keyspace: &str, end: &[u8]) {
    let space = space(store, keyspace);
    for row in space.prefix(b"") {
        let (key, _) = row.expect("row");
        if key.ends_with(end) {
            space.delete(&key, Durability::Device).expect("delete");
        }
    }
}

fn piece_end(info: &FileInfo, index: u32) -> Vec<u8> {
    [&info.fid.0.to_be_bytes()[..], &index.to_be_bytes()].concat()
}

fn is_corrupt<T: std::fmt::Debug>(answer: Result<T, VolumeError>) {
    assert!(matches!(&answer, Err(error) if error.is_corruption()), "damage was not noticed: {answer:?}");
}

struct Files {
    vid: VolumeId,
    small: FileInfo,
    medium: FileInfo,
    large: FileInfo,
}

/// A store with one file per layout: inline, one block, three pieces.
fn example(store: &LocalStore) -> Files {
    let vid = volume(store, "v");
    Files {
        vid,
        small: put(store, vid, b"small", body(1, 100)).expect("put"),
        medium: put(store, vid, b"medium", body(2, 30_000)).expect("put"),
        large: put(store, vid, b"large", body(3, 9_000_000)).expect("put"),
    }
}

#[test]
fn a_sound_store_has_no_findings() {
    let store = fresh();
    let files = example(&store);
    volume(&store, "empty");
    let mut calls = 0;
    let options = everything();
    let mut count = |so_far: &VolumeCheckReport| calls += u32::from(so_far.engine_bytes == 0);
    let report = store.check(&options, &mut count).expect("check");
    assert_eq!(report.damage, []);
    assert!(report.is_clean());
    assert_eq!(report.volumes, 2);
    assert_eq!(calls, 3 + 2, "once for each file and each volume");
    assert_eq!(report.files, 3);
    assert_eq!(report.bytes, 100 + 30_000 + 9_000_000);
    assert_eq!(report.verified_bytes, report.bytes);
    assert_eq!(report.pieces, 1 + 3);
    assert_eq!(check(&store, false).verified_bytes, files.small.size);
}

/// Symptom: the progress of a check stopped while the engine read its tables and values. Cause: the engine
/// reported only at its end. Fix: it reports after every table, and after every few values.
#[test]
fn the_progress_of_the_engine_is_reported() {
    let store = fresh();
    let vid = volume(&store, "v");
    for i in 0..300u32 {
        put(&store, vid, &i.to_be_bytes(), body(u64::from(i), 20_000)).expect("put");
    }
    store.kv().flush().expect("flush");
    let mut told = Vec::new();
    let mut note = |so_far: &VolumeCheckReport| told.push(so_far.engine_bytes);
    let report = store.check(&everything(), &mut note).expect("check");
    assert!(report.is_clean() && report.engine_bytes > 300 * 20_000, "{report:?}");
    told.retain(|bytes| *bytes > 0);
    assert!(told.is_sorted() && told.len() > 300 / 64, "{told:?}");
    assert!(told[0] < report.engine_bytes / 3, "{told:?}");
}

#[test]
fn a_damaged_head_is_corrupt_and_the_others_read_on() {
    let store = fresh();
    let files = example(&store);
    change(&store, "files", b"medium", |row| row[40] ^= 1);
    is_corrupt(get(&store, files.vid, b"medium"));
    is_corrupt(store.stat(files.vid, b"medium", &ReadOptions::default()));
    is_corrupt(put(&store, files.vid, b"medium", body(9, 1)));
    is_corrupt(store.list(files.vid, b"", None, 10, &ReadOptions::default()));
    assert_eq!(get(&store, files.vid, b"small"), Ok(body(1, 100)));
    assert_eq!(store.list(files.vid, b"s", None, 10, &ReadOptions::default()).expect("list").len(), 1);
    let found = findings(&store, false);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("\"medium\": its head"), "{found:?}");
    assert_eq!(check(&store, false).files, 2);
}

#[test]
fn a_damaged_inline_body_is_corrupt_although_its_head_is_valid() {
    let store = fresh();
    let files = example(&store);
    change(&store, "files", b"small", |row| {
        let last = row.len() - 1;
        row[last] ^= 0x80;
    });
    let stat = store.stat(files.vid, b"small", &ReadOptions::default());
    assert_eq!(stat, Ok(files.small));
    is_corrupt(get(&store, files.vid, b"small"));
    let options = ReadOptions::default();
    is_corrupt(store.get(files.vid, b"small", 0..1, &options));
    let found = findings(&store, false);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("its checksum differs"), "{found:?}");
}

#[test]
fn a_flipped_byte_in_a_piece_spoils_its_block_and_no_other() {
    let store = fresh();
    let files = example(&store);
    // Piece 1, block 2.
    let at = 2 * 65_536 + 77;
    change(&store, "extents", &piece_end(&files.large, 1), |row| {
        row[at] ^= 4;
    });
    let options = ReadOptions::default();
    let read = |range| store.get(files.vid, b"large", range, &options);
    let whole = body(3, 9_000_000);
    let block = (4 << 20) + 2 * 65_536;
    is_corrupt(read(0..u64::MAX));
    is_corrupt(read(block..block + 1));
    is_corrupt(read(block - 1..block + 65_537));
    for range in [block - 70_000..block, block + 65_536..block + 200_000, 0..4 << 20] {
        let expected = whole.slice(range.start as usize..range.end as usize);
        assert!(read(range) == Ok(expected), "a sound block");
    }
    assert_eq!(findings(&store, false), [""; 0], "bodies were not read");
    let found = findings(&store, true);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("piece 1, block 2"), "{found:?}");
}

/// Ranges of several sizes all over the file, one after the other: only those on the damage fail.
#[test]
fn damage_fails_only_the_ranges_on_it() {
    let store = fresh();
    let files = example(&store);
    change(&store, "extents", &piece_end(&files.large, 0), |row| {
        row[3 * 65_536 + 9] ^= 4;
    });
    // The checksums of the last piece.
    change(&store, "sums", &piece_end(&files.large, 2), |row| {
        row[0] ^= 4;
    });
    let whole = body(3, 9_000_000);
    let ranges: Vec<_> = (0..250u64)
        .flat_map(|n| [n * 36_000..n * 36_000 + 20_000, n * 36_000 + 25_000..n * 36_000 + 26_000])
        .collect();
    let mut answers = vec![None; ranges.len()];
    let read =
        store.read_ranges(files.vid, b"large", &ranges, &ReadOptions::default(), &mut |index, answer| {
            assert!(answers[index].replace(answer).is_none(), "range {index} was answered twice");
            std::ops::ControlFlow::Continue(())
        });
    assert_eq!(read, Ok(()));
    let mut damaged = 0;
    for (range, answer) in ranges.iter().zip(answers) {
        let answer = answer.expect("an answer");
        if range.start < 4 * 65_536 && range.end > 3 * 65_536 || range.end > 8 << 20 {
            damaged += 1;
            is_corrupt(answer);
        } else {
            assert!(answer == Ok(whole.slice(range.start as usize..range.end as usize)), "{range:?}");
        }
    }
    assert!((20..60).contains(&damaged), "{damaged} ranges");
}

#[test]
fn a_flipped_byte_in_a_body_of_one_block_is_corrupt() {
    let store = fresh();
    let files = example(&store);
    change(&store, "extents", &piece_end(&files.medium, 0), |row| {
        row[29_999] ^= 1;
    });
    is_corrupt(get(&store, files.vid, b"medium"));
    is_corrupt(store.get(files.vid, b"medium", 0..1, &ReadOptions::default()));
    let found = findings(&store, true);
    assert_eq!(found.len(), 1, "{found:?}");
}

#[test]
fn missing_and_cut_pieces_are_found() {
    let store = fresh();
    let files = example(&store);
    delete(&store, "extents", &piece_end(&files.large, 2));
    change(&store, "extents", &piece_end(&files.medium, 0), |row| {
        row.pop();
    });
    is_corrupt(get(&store, files.vid, b"large"));
    let options = ReadOptions::default();
    is_corrupt(store.get(files.vid, b"large", 8_999_999..9_000_000, &options));
    assert!(store.get(files.vid, b"large", 0..9, &options).is_ok());
    is_corrupt(get(&store, files.vid, b"medium"));
    let found = findings(&store, false).join("\n");
    assert!(found.contains("\"large\": piece 2 is missing"), "{found}");
    let found = findings(&store, true).join("\n");
    assert!(found.contains("\"medium\": piece 0 has 29999 bytes"), "{found}");
}

#[test]
fn damaged_checksums_are_corrupt_and_not_trusted() {
    let store = fresh();
    let files = example(&store);
    change(&store, "sums", &piece_end(&files.large, 0), |row| row[9] ^= 1);
    let options = ReadOptions::default();
    is_corrupt(store.get(files.vid, b"large", 0..9, &options));
    assert!(get(&store, files.vid, b"large").is_ok(), "the whole file has a checksum of its own");
    let found = findings(&store, false).join("\n");
    assert!(found.contains("checksums of piece 0"), "{found}");
}

#[test]
fn space_that_belongs_to_nothing_is_found() {
    let store = fresh();
    let files = example(&store);
    let extents = space(&store, "extents");
    let mut key = 0_u32.to_be_bytes().to_vec();
    key.extend_from_slice(&files.vid.0.to_be_bytes());
    key.extend_from_slice(&[7; 20]);
    extents.put(&key, b"stray", Durability::Device).expect("put");
    key[11] = 99;
    extents.put(&key, b"stray", Durability::Device).expect("put");
    let found = findings(&store, false);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].contains("which does not exist, takes space"));
    assert!(found[1].contains("of a volume that does not exist take space"));
}

#[test]
fn volumes_and_names_must_lead_to_one_another() {
    let store = fresh();
    example(&store);
    let other = volume(&store, "other");
    delete(&store, "names", b"v");
    let vid_end = other.0.to_be_bytes();
    delete(&store, "volumes", &vid_end);
    let found = findings(&store, false).join("\n");
    assert!(found.contains("its name \"v\" is missing"), "{found}");
    assert!(found.contains("the name \"other\" leads to it, but it has no row"), "{found}");
}

#[test]
fn a_damaged_volume_row_is_a_finding_and_its_files_are_still_checked() {
    let store = fresh();
    let files = example(&store);
    let end = files.vid.0.to_be_bytes();
    change(&store, "volumes", &end, |row| row[9] ^= 1);
    let report = check(&store, true);
    assert_eq!(report.files, 3);
    assert_eq!(report.verified_bytes, report.bytes);
    assert_eq!(report.damage.len(), 1, "{:?}", report.damage);
    assert_eq!(report.damage[0].volume, Some(files.vid));
    let reopened = LocalStore::open(store.kv().clone()).expect("open");
    assert_eq!(get(&reopened, files.vid, b"small"), Ok(body(1, 100)));
    is_corrupt(put(&reopened, files.vid, b"new", body(1, 1)));
}

#[test]
fn rows_about_the_store_are_checked() {
    let store = fresh();
    example(&store);
    for key in [&b"identity"[..], b"next-vid"] {
        change(&store, "node", key, |row| {
            let last = row.len() - 1;
            row[last] ^= 1;
        });
    }
    let found = findings(&store, false).join("\n");
    assert!(found.contains("identity"), "{found}");
    assert!(found.contains("next volume id"), "{found}");
    let refused = store.create_volume("", "new", &copal_volume::VolumeOptions::default());
    is_corrupt(refused);
    let refused = LocalStore::open(store.kv().clone()).map(drop);
    is_corrupt(refused);
}

#[test]
fn a_row_of_another_release_is_named() {
    let store = fresh();
    let files = example(&store);
    change(&store, "files", b"small", |row| row[0] = 2);
    let error = get(&store, files.vid, b"small").expect_err("unknown version");
    let text = error.to_string();
    assert!(text.contains("row version 2"), "{text}");
}

/// A caller that has read the body of a file spares it a second reading; all other bodies are read.
#[test]
fn a_body_that_the_caller_has_verified_is_not_read_again() {
    let store = fresh();
    let files = example(&store);
    for info in [&files.medium, &files.large] {
        change(&store, "extents", &piece_end(info, 0), |piece| piece[7] ^= 1);
    }
    let damaged = |verified: &[&FileInfo]| {
        let verified = Some(verified.iter().map(|info| info.fid).collect());
        let options = CheckOptions { verified, ..everything() };
        let report = store.check(&options, &mut |_| {}).expect("check");
        (report.damage.len(), report.verified_bytes)
    };
    assert_eq!(damaged(&[]), (2, files.small.size));
    assert_eq!(damaged(&[&files.medium]), (1, files.small.size));
    assert_eq!(damaged(&[&files.medium, &files.large]), (0, files.small.size));
    // Its rows are checked nevertheless.
    delete(&store, "extents", &piece_end(&files.medium, 0));
    assert_eq!(damaged(&[&files.medium, &files.large]).0, 1);
}
