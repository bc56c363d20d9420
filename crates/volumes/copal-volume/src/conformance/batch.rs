//! Calls that carry several files, and quotas.

use super::{body, volume};
use crate::error::VolumeError;
use crate::ids::FileId;
use crate::limits::{MAX_BATCH_BYTES, MAX_METADATA_BYTES};
use crate::store::{PutOptions, ReadOptions, VolumeOptions, VolumeStore};
use bytes::Bytes;

fn item(name: &'static [u8], seed: u64, len: usize) -> (Bytes, Bytes, PutOptions) {
    (Bytes::from_static(name), body(seed, len), PutOptions::default())
}

pub(super) fn item_by_item(store: &dyn VolumeStore) {
    let vid = volume(store, "v");
    let taken = store.put(vid, b"taken", body(9, 4), &PutOptions::default()).expect("put");
    let fat = PutOptions { metadata: body(1, MAX_METADATA_BYTES + 1) };
    let answers = store
        .put_batch(
            vid,
            vec![
                item(b"a", 1, 10),
                item(b"taken", 2, 10),
                item(b"", 3, 10),
                item(b"b", 4, 5000),
                item(b"a", 5, 10),
                (Bytes::from_static(b"fat"), body(6, 1), fat),
                item(b"c", 7, 100_000),
            ],
        )
        .expect("batch");
    assert_eq!(answers.len(), 7);
    let a = answers[0].as_ref().expect("a is new");
    assert_eq!(answers[1], Err(VolumeError::Exists { fid: taken.fid }));
    assert!(matches!(answers[2], Err(VolumeError::InvalidName { .. })));
    assert!(answers[3].is_ok());
    assert_eq!(
        answers[4],
        Err(VolumeError::Exists { fid: a.fid }),
        "the first of two equal names in a batch wins"
    );
    assert!(matches!(answers[5], Err(VolumeError::TooLarge { .. })));
    assert!(answers[6].is_ok());

    let asked: Vec<Bytes> =
        [&b"c"[..], b"nothing", b"a", b"taken", b"b", b""].into_iter().map(Bytes::from_static).collect();
    let read = store.get_batch(vid, &asked, &ReadOptions::default()).expect("get");
    assert_eq!(read[0], Ok(body(7, 100_000)));
    assert_eq!(read[1], Err(VolumeError::NotFound));
    assert_eq!(read[2], Ok(body(1, 10)));
    assert_eq!(read[3], Ok(body(9, 4)));
    assert_eq!(read[4], Ok(body(4, 5000)));
    assert!(matches!(read[5], Err(VolumeError::InvalidName { .. })));

    let b = answers[3].as_ref().expect("b is new");
    let deleted = store
        .delete_batch(
            vid,
            &[
                (Bytes::from_static(b"a"), a.fid),
                (Bytes::from_static(b"taken"), FileId(1)),
                (Bytes::from_static(b"b"), b.fid),
                (Bytes::from_static(b"nothing"), b.fid),
                (Bytes::new(), b.fid),
            ],
        )
        .expect("delete");
    assert!(deleted[..4].iter().all(Result::is_ok), "{deleted:?}");
    assert!(matches!(deleted[4], Err(VolumeError::InvalidName { .. })));
    let left = store.list(vid, b"", None, 10, &ReadOptions::STRICT).expect("list");
    let left: Vec<&[u8]> = left.iter().map(|(name, _)| name.as_ref()).collect();
    assert_eq!(left, [&b"c"[..], b"taken"]);
    assert_eq!(store.put_batch(vid, Vec::new()).expect("empty"), []);
}

pub(super) fn bounded(store: &dyn VolumeStore) {
    let vid = volume(store, "v");
    let half = MAX_BATCH_BYTES / 2;
    let refused = store.put_batch(vid, vec![item(b"a", 1, half), item(b"b", 2, half)]);
    assert!(
        matches!(refused, Err(VolumeError::TooLarge { .. })),
        "two halves and two names are above the limit"
    );
    assert_eq!(store.list(vid, b"", None, 10, &ReadOptions::STRICT).expect("list"), []);
    let fits = store.put_batch(vid, vec![item(b"a", 1, half), item(b"b", 2, half - 2)]);
    assert!(fits.expect("batch").iter().all(Result::is_ok));
    store.put(vid, b"c", body(3, half), &PutOptions::default()).expect("put");
    let names = [&b"a"[..], b"b", b"c"].map(Bytes::from_static);
    let read = store.get_batch(vid, &names, &ReadOptions::default()).expect("get");
    assert_eq!(read[0].as_ref().map(Bytes::len), Ok(half));
    assert_eq!(read[1].as_ref().map(Bytes::len), Ok(half - 2));
    assert!(matches!(read[2], Err(VolumeError::TooLarge { .. })), "an answer is bounded too");
    let alone = store.get_batch(vid, &names[2..], &ReadOptions::default()).expect("get");
    assert_eq!(alone[0].as_ref().map(Bytes::len), Ok(half));
}

pub(super) fn quotas(store: &dyn VolumeStore) {
    let options = VolumeOptions { quota_bytes: Some(100_000), ..VolumeOptions::default() };
    let made = store.create_volume("", "small", &options);
    if !store.limits().quotas {
        assert!(matches!(made, Err(VolumeError::Denied { .. })), "{made:?}");
        return;
    }
    let vid = made.expect("create a volume");
    let put = |name: &[u8], len| store.put(vid, name, body(1, len), &PutOptions::default());
    let first = put(b"a", 60_000).expect("within the quota");
    let refused = VolumeError::QuotaExceeded { quota: 100_000, used: 60_000, wanted: 40_001 };
    assert_eq!(put(b"b", 40_001), Err(refused));
    put(b"b", 40_000).expect("exactly the quota");
    assert!(matches!(put(b"c", 1), Err(VolumeError::QuotaExceeded { .. })));
    put(b"empty", 0).expect("an empty file fits");
    let streamed = store
        .writer(vid, b"s", &PutOptions::default())
        .and_then(|mut writer| writer.append(body(2, 10)).and_then(|()| writer.commit()));
    assert!(matches!(streamed, Err(VolumeError::QuotaExceeded { .. })), "{streamed:?}");
    assert_eq!(store.volume_stats(vid).expect("stats").files, 3);
    store.delete(vid, b"a", first.fid).expect("delete");
    put(b"c", 60_000).expect("deleting gives the quota back");
}
