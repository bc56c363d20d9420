//! Files that are streamed.

use super::{body, volume};
use crate::error::VolumeError;
use crate::store::{PutOptions, ReadOptions, VolumeStats, VolumeStore};

pub(super) fn visible_at_commit(store: &dyn VolumeStore) {
    let vid = volume(store, "v");
    let options = PutOptions { metadata: body(5, 17) };
    let bytes = body(1, 5_000_000);
    let mut writer = store.writer(vid, b"n", &options).expect("writer");
    for piece in 0..5 {
        writer.append(bytes.slice(piece * 1_000_000..(piece + 1) * 1_000_000)).expect("append");
        assert_eq!(store.stat(vid, b"n", &ReadOptions::default()), Err(VolumeError::NotFound));
        assert_eq!(store.list(vid, b"", None, 10, &ReadOptions::STRICT).expect("list"), []);
        assert_eq!(store.volume_stats(vid).expect("stats"), VolumeStats::default());
    }
    let info = writer.commit().expect("commit");
    assert_eq!(info.size, bytes.len() as u64);
    assert_eq!(info.crc32c, copal_codec::crc32c(0, &bytes));
    assert_eq!(info.metadata, options.metadata);
    let stat = store.stat(vid, b"n", &ReadOptions::default());
    assert_eq!(stat.expect("stat"), info);
    let read = store.get(vid, b"n", 0..u64::MAX, &ReadOptions::default());
    assert!(read.expect("get") == bytes, "streamed bytes changed");
}

pub(super) fn dropped(store: &dyn VolumeStore) {
    let vid = volume(store, "v");
    for size in [0, 10, 5 << 20] {
        let mut writer = store.writer(vid, b"n", &PutOptions::default()).expect("writer");
        writer.append(body(1, size)).expect("append");
        drop(writer);
        assert_eq!(store.list(vid, b"", None, 10, &ReadOptions::STRICT).expect("list"), []);
        let info = store.put(vid, b"n", body(2, 8), &PutOptions::default());
        let fid = info.expect("the name is free after a dropped writer").fid;
        store.delete(vid, b"n", fid).expect("delete");
    }
    store.reclaim(vid).expect("reclaim");
}

pub(super) fn two_writers(store: &dyn VolumeStore) {
    let vid = volume(store, "v");
    for size in [1000, 5 << 20] {
        let options = PutOptions::default();
        let mut first = store.writer(vid, b"n", &options).expect("first");
        let mut second = store.writer(vid, b"n", &options).expect("second");
        first.append(body(1, size)).expect("append");
        second.append(body(2, size)).expect("append");
        let winner = second.commit().expect("the first to commit wins");
        assert_eq!(
            first.commit(),
            Err(VolumeError::Exists { fid: winner.fid }),
            "the second to commit loses"
        );
        let read = store.get(vid, b"n", 0..u64::MAX, &ReadOptions::default());
        assert!(read.expect("get") == body(2, size));
        // A stream onto a taken name fails, at once or at the commit.
        let late = store
            .writer(vid, b"n", &options)
            .and_then(|mut late| late.append(body(3, 9)).and_then(|()| late.commit()));
        assert_eq!(late, Err(VolumeError::Exists { fid: winner.fid }));
        store.delete(vid, b"n", winner.fid).expect("delete");
    }
}

pub(super) fn sizes(store: &dyn VolumeStore) {
    let vid = volume(store, "v");
    const PIECE: usize = 4 << 20;
    let sizes = [0, 1, 4096, 4097, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE];
    for (n, size) in sizes.into_iter().enumerate() {
        let bytes = body(n as u64, size);
        let mut writer = store.writer(vid, &[n as u8], &PutOptions::default()).expect("writer");
        // Uneven appends, an empty one among them.
        let mut at = 0;
        let mut step = 1;
        while at < size {
            let end = (at + step).min(size);
            writer.append(bytes.slice(at..end)).expect("append");
            at = end;
            step = step * 7 + 1;
            writer.append(body(0, 0)).expect("empty append");
        }
        let info = writer.commit().expect("commit");
        assert_eq!(info.size, size as u64);
        assert_eq!(info.crc32c, copal_codec::crc32c(0, &bytes));
        let read = store.get(vid, &[n as u8], 0..u64::MAX, &ReadOptions::default());
        assert!(read.expect("get") == bytes, "{size} bytes changed");
    }
}
