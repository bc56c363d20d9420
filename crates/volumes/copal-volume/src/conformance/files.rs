//! Single files: create, read, stat, delete, settle.

use super::{body, volume};
use crate::error::VolumeError;
use crate::ids::{FileId, VolumeId};
use crate::limits::MAX_METADATA_BYTES;
use crate::store::{Consistency, PutOptions, ReadOptions, SettleChoice, SettleOutcome, VolumeStore};
use bytes::Bytes;

const WHOLE: std::ops::Range<u64> = 0..u64::MAX;

pub(super) fn round_trip(store: &dyn VolumeStore) {
    let vid = volume(store, "v");
    let long_name = vec![0xFF; store.limits().file_name_bytes];
    let cases: [(&[u8], usize, usize); 7] = [
        (b"empty", 0, 0),
        (b"one", 1, 0),
        (b"a/b\0c\xfe", 100, MAX_METADATA_BYTES),
        (b"inline", 4096, 3),
        (b"above inline", 4097, 0),
        (b"above direct", 65_537, 1),
        (&long_name, 70, 20),
    ];
    for (n, (name, len, metadata_len)) in cases.iter().enumerate() {
        let bytes = body(n as u64, *len);
        let options = PutOptions { metadata: body(1000 + n as u64, *metadata_len) };
        let info = store.put(vid, name, bytes.clone(), &options).expect("put");
        assert_eq!(info.size, *len as u64);
        assert_eq!(info.crc32c, copal_codec::crc32c(0, &bytes));
        assert_eq!(info.metadata, options.metadata);
        assert_eq!(store.stat(vid, name, &ReadOptions::STRICT).expect("stat"), info);
        assert_eq!(store.get(vid, name, WHOLE, &ReadOptions::STRICT).expect("get"), bytes);
    }
    assert_eq!(store.get(vid, b"absent", WHOLE, &ReadOptions::STRICT), Err(VolumeError::NotFound));
    assert_eq!(store.stat(vid, b"absent", &ReadOptions::STRICT), Err(VolumeError::NotFound));
}

pub(super) fn exclusive(store: &dyn VolumeStore) {
    let vid = volume(store, "v");
    let other = volume(store, "other");
    let options = PutOptions::default();
    let first = store.put(vid, b"n", body(1, 10), &options).expect("first");
    for size in [0, 10, 10_000] {
        assert_eq!(
            store.put(vid, b"n", body(2, size), &options),
            Err(VolumeError::Exists { fid: first.fid })
        );
    }
    let elsewhere = store
        .put(other, b"n", body(3, 11), &options)
        .expect("the same name in another volume is another file");
    assert_ne!(elsewhere.fid, first.fid);
    let read = store.get(vid, b"n", WHOLE, &ReadOptions::STRICT).expect("get");
    assert_eq!(read, body(1, 10), "a refused create changed the file");
}

pub(super) fn conditional_delete(store: &dyn VolumeStore) {
    let vid = volume(store, "v");
    let options = PutOptions::default();
    for size in [20, 20_000] {
        let first = store.put(vid, b"n", body(1, size), &options).expect("put");
        store.delete(vid, b"n", first.fid).expect("delete");
        store.delete(vid, b"n", first.fid).expect("delete again");
        assert_eq!(store.get(vid, b"n", WHOLE, &ReadOptions::STRICT), Err(VolumeError::NotFound));
        let second = store.put(vid, b"n", body(2, size), &options).expect("re-use");
        assert!(second.fid != first.fid, "a file id was used twice");
        store.delete(vid, b"n", first.fid).expect("late delete");
        let read = store.get(vid, b"n", WHOLE, &ReadOptions::STRICT).expect("get");
        assert_eq!(read, body(2, size), "a late delete touched a later file");
        store.delete(vid, b"other name", second.fid).expect("wrong name");
        assert_eq!(store.stat(vid, b"n", &ReadOptions::STRICT).expect("stat").fid, second.fid);
        store.delete(vid, b"n", second.fid).expect("clean up");
    }
}

pub(super) fn ranges(store: &dyn VolumeStore) {
    let vid = volume(store, "v");
    for size in [0_usize, 1, 3000, 100_000] {
        let name = format!("f{size}");
        let bytes = body(size as u64, size);
        store.put(vid, name.as_bytes(), bytes.clone(), &PutOptions::default()).expect("put");
        let n = size as u64;
        let asked = [
            WHOLE,
            0..n,
            0..0,
            0..1,
            n / 2..n / 2 + 7,
            n.saturating_sub(1)..n,
            n.saturating_sub(1)..n + 10,
            n..n + 1,
            n + 5..n + 9,
            u64::MAX - 1..u64::MAX,
        ];
        for range in asked {
            let end = range.end.min(n);
            let start = range.start.min(end);
            let read =
                store.get(vid, name.as_bytes(), range.clone(), &ReadOptions::STRICT).expect("ranged get");
            assert!(
                read == bytes.slice(start as usize..end as usize),
                "range {range:?} of {n} bytes gave {} bytes",
                read.len()
            );
        }
    }
}

pub(super) fn if_file(store: &dyn VolumeStore) {
    let vid = volume(store, "v");
    let first = store.put(vid, b"n", body(1, 5000), &PutOptions::default()).expect("put");
    let only = |fid| ReadOptions { consistency: Consistency::Strict, if_file: Some(fid) };
    assert!(store.get(vid, b"n", WHOLE, &only(first.fid)).is_ok());
    assert!(store.stat(vid, b"n", &only(first.fid)).is_ok());
    let other_fid = FileId(first.fid.0 ^ 1);
    assert_eq!(store.get(vid, b"n", WHOLE, &only(other_fid)), Err(VolumeError::NotFound));
    assert_eq!(store.stat(vid, b"n", &only(other_fid)), Err(VolumeError::NotFound));
}

pub(super) fn creation_times(store: &dyn VolumeStore) {
    let vid = volume(store, "v");
    let mut last = 0;
    for n in 0..50_u64 {
        let name = format!("{n}");
        let info = store.put(vid, name.as_bytes(), body(n, 9), &PutOptions::default()).expect("put");
        assert!(info.created_ms >= last, "a later file has an earlier time");
        assert!(info.created_ms > 0);
        let seen = store.stat(vid, name.as_bytes(), &ReadOptions::STRICT).expect("stat");
        assert_eq!(seen.created_ms, info.created_ms);
        last = info.created_ms;
    }
    let mut writer = store.writer(vid, b"late", &PutOptions::default()).expect("writer");
    writer.append(body(1, 10)).expect("append");
    let before = store.put(vid, b"meanwhile", body(2, 10), &PutOptions::default()).expect("put");
    let late = writer.commit().expect("commit");
    assert!(late.created_ms >= before.created_ms, "the time is that of the commit, not of the start");
}

pub(super) fn refusals(store: &dyn VolumeStore) {
    let vid = volume(store, "v");
    let options = PutOptions::default();
    let too_long = vec![b'x'; store.limits().file_name_bytes + 1];
    for name in [&b""[..], &too_long] {
        let bad = |r: Result<(), VolumeError>| {
            assert!(matches!(r, Err(VolumeError::InvalidName { .. })), "{r:?}");
        };
        bad(store.put(vid, name, body(1, 1), &options).map(drop));
        bad(store.writer(vid, name, &options).map(drop));
        bad(store.get(vid, name, WHOLE, &ReadOptions::STRICT).map(drop));
        bad(store.stat(vid, name, &ReadOptions::STRICT).map(drop));
        bad(store.delete(vid, name, FileId(1)));
    }
    let fat = PutOptions { metadata: body(1, MAX_METADATA_BYTES + 1) };
    let refused = store.put(vid, b"n", body(1, 1), &fat);
    assert!(matches!(refused, Err(VolumeError::TooLarge { .. })), "{refused:?}");
    let refused = store.writer(vid, b"n", &fat).map(drop);
    assert!(matches!(refused, Err(VolumeError::TooLarge { .. })), "{refused:?}");
    let nowhere = VolumeId(u64::MAX - 7);
    let gone = Err(VolumeError::VolumeGone);
    assert_eq!(store.put(nowhere, b"n", body(1, 1), &options).map(drop), gone);
    assert_eq!(store.writer(nowhere, b"n", &options).map(drop), gone);
    assert_eq!(store.get(nowhere, b"n", WHOLE, &ReadOptions::STRICT).map(drop), gone);
    assert_eq!(store.stat(nowhere, b"n", &ReadOptions::STRICT).map(drop), gone);
    assert_eq!(store.list(nowhere, b"", None, 9, &ReadOptions::STRICT).map(drop), gone);
    assert_eq!(store.delete(nowhere, b"n", FileId(1)), gone);
    assert_eq!(store.volume_stats(nowhere).map(drop), gone);
    assert_eq!(store.reclaim(nowhere), gone);
    assert_eq!(store.settle(nowhere, FileId(1), SettleChoice::Commit).map(drop), gone);
    assert_eq!(
        store.list(vid, b"", None, 9, &ReadOptions::STRICT).expect("list"),
        [],
        "a refusal left a file"
    );
}

pub(super) fn settle(store: &dyn VolumeStore) {
    let vid = volume(store, "v");
    let info = store.put(vid, b"n", body(1, 9000), &PutOptions::default()).expect("put");
    for want in [SettleChoice::Commit, SettleChoice::Abort] {
        assert_eq!(
            store.settle(vid, info.fid, want).expect("settle"),
            SettleOutcome::Committed,
            "an acknowledged file stays for each wanted outcome"
        );
        assert_eq!(store.settle(vid, FileId(info.fid.0 ^ 3), want).expect("settle"), SettleOutcome::Aborted);
    }
    store.delete(vid, b"n", info.fid).expect("delete");
    assert_eq!(
        store.settle(vid, info.fid, SettleChoice::Commit).expect("settle"),
        SettleOutcome::Aborted,
        "a deleted file does not come back"
    );
}

pub(super) fn large(store: &dyn VolumeStore) {
    let vid = volume(store, "v");
    const PIECE: usize = 4 << 20;
    for (n, size) in [PIECE, PIECE + 1, 2 * PIECE + 12_345].into_iter().enumerate() {
        let name = [b'p', n as u8];
        let bytes = body(n as u64, size);
        let info = store.put(vid, &name, bytes.clone(), &PutOptions::default()).expect("put");
        assert_eq!(info.crc32c, copal_codec::crc32c(0, &bytes));
        let whole: Bytes = store.get(vid, &name, WHOLE, &ReadOptions::STRICT).expect("get");
        assert!(whole == bytes, "{size} bytes came back changed");
        let cut = PIECE as u64;
        for range in [cut - 3..cut + 3, cut..cut + 1, 1..size as u64 - 1, cut - 1..cut] {
            let end = range.end.min(size as u64) as usize;
            let read = store.get(vid, &name, range.clone(), &ReadOptions::STRICT).expect("ranged get");
            assert!(
                read == bytes.slice(range.start as usize..end.max(range.start as usize)),
                "range {range:?} of {size} bytes came back changed"
            );
        }
        store.delete(vid, &name, info.fid).expect("delete");
        assert_eq!(store.get(vid, &name, WHOLE, &ReadOptions::STRICT).map(drop), Err(VolumeError::NotFound));
    }
}
