//! Reads of many ranges of a file with one call.

use super::{Random, body, volume};
use crate::error::VolumeError;
use crate::ids::{FileId, VolumeId};
use crate::store::{Consistency, PutOptions, ReadOptions, VolumeStore};
use bytes::Bytes;
use std::ops::{ControlFlow, Range};

/// All answers; each range must have exactly one.
fn read(
    store: &dyn VolumeStore,
    vid: VolumeId,
    name: &[u8],
    ranges: &[Range<u64>],
    options: &ReadOptions,
) -> Result<Vec<Bytes>, VolumeError> {
    let mut answers: Vec<Option<Bytes>> = vec![None; ranges.len()];
    store.read_ranges(vid, name, ranges, options, &mut |index, answer| {
        let answer = answer.expect("a range of a sound file");
        assert!(answers[index].replace(answer).is_none(), "range {index} was answered twice");
        ControlFlow::Continue(())
    })?;
    Ok(answers.into_iter().map(|answer| answer.expect("an answer for each range")).collect())
}

pub(super) fn as_one_by_one(store: &dyn VolumeStore) {
    let vid = volume(store, "v");
    let mut random = Random::new(21);
    for size in [0_u64, 1, 3000, 60_000, 300_000, 9_000_000] {
        let name = format!("f{size}").into_bytes();
        let bytes = body(size, size as usize);
        store.put(vid, &name, bytes.clone(), &PutOptions::default()).expect("put");
        let mut ranges = vec![0..u64::MAX, 0..0, size..size + 1, u64::MAX - 1..u64::MAX];
        for _ in 0..60 {
            let start = random.next_u64() % (size + 10);
            let len = random.next_u64() % (1 << (random.next_u64() % 22));
            ranges.push(start..start + len);
            // Reversed, and one that overlaps.
            ranges.push(start + len + 1..start);
            ranges.push(start + len / 2..start + len);
        }
        let found = read(store, vid, &name, &ranges, &ReadOptions::STRICT).expect("ranges");
        for (range, found) in ranges.iter().zip(found) {
            let end = range.end.min(size);
            let start = range.start.min(end);
            let wanted = bytes.slice(start as usize..end as usize);
            assert!(found == wanted, "range {range:?} of {size} bytes gave {} other bytes", found.len());
        }
    }
}

pub(super) fn sink_ends(store: &dyn VolumeStore) {
    let vid = volume(store, "v");
    store.put(vid, b"n", body(1, 200_000), &PutOptions::default()).expect("put");
    let ranges: Vec<Range<u64>> = (0..50).map(|n| n * 4000..n * 4000 + 100).collect();
    let mut answers = 0;
    let ended = store.read_ranges(vid, b"n", &ranges, &ReadOptions::STRICT, &mut |_, answer| {
        answer.expect("a range of a sound file");
        answers += 1;
        if answers < 3 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    assert_eq!((ended, answers), (Ok(()), 3), "the call goes on although the sink ended it");
}

pub(super) fn tails(store: &dyn VolumeStore) {
    let vid = volume(store, "v");
    let sizes = [0_u64, 1, 3000, 70_000, 300_000, (4 << 20) + 100, 9_000_000];
    let files: Vec<_> = sizes
        .into_iter()
        .map(|size| {
            let (name, bytes) = (format!("f{size}").into_bytes(), body(size, size as usize));
            let info = store.put(vid, &name, bytes.clone(), &PutOptions::default()).expect("put");
            (name, bytes, info)
        })
        .collect();
    let mut names: Vec<&[u8]> = files.iter().map(|(name, _, _)| &name[..]).collect();
    names.push(b"absent");
    for tail_bytes in [0, 1, 1000, 64 << 10, 5 << 20, u64::MAX] {
        let mut answers: Vec<Option<_>> = vec![None; names.len()];
        let done = store.tails(vid, &names, tail_bytes, &ReadOptions::STRICT, &mut |index, answer| {
            assert!(answers[index].replace(answer).is_none(), "file {index} was answered twice");
            ControlFlow::Continue(())
        });
        done.expect("a volume that exists");
        for ((_, bytes, info), answer) in files.iter().zip(&answers) {
            let (found, tail) = answer.as_ref().expect("an answer for each file").as_ref().expect("a file");
            assert_eq!(found, info);
            let wanted = &bytes[(info.size.saturating_sub(tail_bytes)) as usize..];
            assert!(tail == wanted, "{tail_bytes} bytes of {} gave {} other ones", info.size, tail.len());
        }
        assert_eq!(answers.last().cloned().flatten(), Some(Err(VolumeError::NotFound)));
    }
    let mut answers = 0;
    let ended = store.tails(vid, &names, 1000, &ReadOptions::STRICT, &mut |_, _| {
        answers += 1;
        if answers < 3 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    assert_eq!((ended, answers), (Ok(()), 3), "the call goes on although the sink ended it");
}

pub(super) fn no_file(store: &dyn VolumeStore) {
    let vid = volume(store, "v");
    let file = store.put(vid, b"n", body(1, 100_000), &PutOptions::default()).expect("put");
    let only = |fid| ReadOptions { consistency: Consistency::Strict, if_file: Some(fid) };
    let ranges = [0..100, 50_000..60_000];
    assert!(read(store, vid, b"n", &ranges, &only(file.fid)).is_ok());
    let other = only(FileId(file.fid.0 ^ 1));
    assert_eq!(read(store, vid, b"n", &ranges, &other), Err(VolumeError::NotFound));
    assert_eq!(read(store, vid, b"absent", &ranges, &ReadOptions::STRICT), Err(VolumeError::NotFound));
    let nowhere = VolumeId(u64::MAX - 7);
    assert_eq!(read(store, nowhere, b"n", &ranges, &ReadOptions::STRICT), Err(VolumeError::VolumeGone));
    let bad = read(store, vid, b"", &ranges, &ReadOptions::STRICT);
    assert!(matches!(bad, Err(VolumeError::InvalidName { .. })), "{bad:?}");
    store.delete(vid, b"n", file.fid).expect("delete");
    assert_eq!(read(store, vid, b"n", &ranges, &ReadOptions::STRICT), Err(VolumeError::NotFound));
}
