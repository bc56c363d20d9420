//! Keys of the data node's rows.
//!
//! Format: docs/formats/data-rows.md v1
//! Invariants
//! - Every key is big-endian and begins with the group (u32). In most keyspaces the volume (u64) follows. The
//!   keys of a group, and of a volume in it, therefore form one range.
//! - A volume's rows lie in its birth group.
//! - A name is the last part of a key and is not escaped, so rows have the order of names.

use copal_volume::{
    FileId, OpId, VolumeId,
    group::{Bucket, GroupId},
};
use std::ops::Bound;

/// The only group of an embedded store: its volumes have small numbers.
pub(crate) const GROUP: u32 = 0;
/// Length of a group in a key, bytes.
pub(crate) const GROUP_LEN: usize = 4;
/// Length of group and volume in a key, bytes: rows with the same prefix share value objects.
pub(crate) const VOLUME_PREFIX_LEN: usize = 12;

/// Prefix of all rows of a group in one keyspace, and key of the member's own state (`groups`).
pub(crate) fn group(group: GroupId) -> [u8; GROUP_LEN] {
    group.0.to_be_bytes()
}

/// Key of a tombstone (`tombs`).
pub(crate) fn tombstone(of: GroupId, fid: FileId) -> [u8; 20] {
    let mut key = [0; 20];
    key[..4].copy_from_slice(&group(of));
    key[4..].copy_from_slice(&fid.0.to_be_bytes());
    key
}

/// Key of a further tombstone of the same file id, for another volume or name (`tombs`). It follows the
/// first.
pub(crate) fn second_tombstone(of: GroupId, fid: FileId, vid: VolumeId, name: &[u8]) -> Vec<u8> {
    let mut key = tombstone(of, fid).to_vec();
    key.extend_from_slice(&vid.0.to_be_bytes());
    key.extend_from_slice(name);
    key
}

/// Key of an accepted operation (`journal`). Operations of one bucket are adjacent.
pub(crate) fn journal(of: GroupId, op: OpId) -> [u8; 28] {
    let mut key = [0; 28];
    key[..12].copy_from_slice(&journal_bucket(of, Bucket::of(op).0));
    key[12..].copy_from_slice(&op.0.to_be_bytes());
    key
}

/// Operation of a journal key.
pub(crate) fn split_journal(key: &[u8]) -> Option<OpId> {
    Some(OpId(u128::from_be_bytes(key.get(12..)?.try_into().ok()?)))
}

/// Prefix of the journal keys of one bucket.
pub(crate) fn journal_bucket(of: GroupId, bucket: u64) -> [u8; 12] {
    let mut key = [0; 12];
    key[..4].copy_from_slice(&group(of));
    key[4..].copy_from_slice(&bucket.to_be_bytes());
    key
}

/// Key of a file beside another one of the same name (`siblings`).
pub(crate) fn sibling(vid: VolumeId, name: &[u8], fid: FileId) -> Vec<u8> {
    let mut key = named(vid, name);
    key.extend_from_slice(&fid.0.to_be_bytes());
    key
}

/// Name and file of a sibling key without its volume.
pub(crate) fn split_sibling(rest: &[u8]) -> Option<(&[u8], FileId)> {
    let (name, fid) = rest.split_at_checked(rest.len().checked_sub(16)?)?;
    Some((name, FileId(u128::from_be_bytes(fid.try_into().ok()?))))
}

/// Prefix of all rows of a volume in one keyspace, or of all names below a parent.
pub(crate) fn volume(vid: VolumeId) -> [u8; VOLUME_PREFIX_LEN] {
    let mut key = [0; VOLUME_PREFIX_LEN];
    key[..4].copy_from_slice(&group(vid.birth_group()));
    key[4..].copy_from_slice(&vid.0.to_be_bytes());
    key
}

/// Key of a file's head (`files`), or of a volume's name below its parent (`names`).
pub(crate) fn named(vid: VolumeId, name: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(VOLUME_PREFIX_LEN + name.len());
    key.extend_from_slice(&volume(vid));
    key.extend_from_slice(name);
    key
}

/// Key of a staged upload (`uploads`), and prefix of the pieces of a file.
pub(crate) fn upload(vid: VolumeId, fid: FileId) -> [u8; 28] {
    let mut key = [0; 28];
    key[..12].copy_from_slice(&volume(vid));
    key[12..].copy_from_slice(&fid.0.to_be_bytes());
    key
}

/// Key of one piece of a file (`extents`), of its checksums (`sums`), and of its row in an upload
/// (`uploads`).
pub(crate) fn piece(vid: VolumeId, fid: FileId, index: u32) -> [u8; 32] {
    let mut key = [0; 32];
    key[..28].copy_from_slice(&upload(vid, fid));
    key[28..].copy_from_slice(&index.to_be_bytes());
    key
}

/// Volume and the rest of a key; `None` if the key is too short, or its group is not the volume's.
pub(crate) fn split(key: &[u8]) -> Option<(VolumeId, &[u8])> {
    let (prefix, rest) = key.split_at_checked(VOLUME_PREFIX_LEN)?;
    let (group, vid) = prefix.split_at_checked(4)?;
    let vid = VolumeId(u64::from_be_bytes(vid.try_into().ok()?));
    if group != vid.birth_group().0.to_be_bytes() {
        return None;
    }
    Some((vid, rest))
}

/// File and index of a piece key without its volume.
pub(crate) fn split_piece(rest: &[u8]) -> Option<(FileId, u32)> {
    let (fid, index) = rest.split_at_checked(16)?;
    let fid = FileId(u128::from_be_bytes(fid.try_into().ok()?));
    Some((fid, u32::from_be_bytes(index.try_into().ok()?)))
}

/// File of an upload key without its volume.
pub(crate) fn split_upload(rest: &[u8]) -> Option<FileId> {
    Some(FileId(u128::from_be_bytes(rest.try_into().ok()?)))
}

/// The first key above all keys with this prefix; `None` if there is none.
pub(crate) fn above(prefix: &[u8]) -> Option<Vec<u8>> {
    let keep = prefix.iter().rposition(|&byte| byte != 0xFF)? + 1;
    let mut above = prefix[..keep].to_vec();
    above[keep - 1] += 1;
    Some(above)
}

/// A range of keys in the engine's form.
pub(crate) type KeyRange = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// All keys with this prefix, or only those above `after`. The start is never above the end.
pub(crate) fn range(prefix: &[u8], after: Option<&[u8]>) -> KeyRange {
    let end = above(prefix);
    let start = match (after, &end) {
        (Some(after), Some(end)) if after >= end.as_slice() => Bound::Included(end.clone()),
        (Some(after), _) if after >= prefix => Bound::Excluded(after.to_vec()),
        _ => Bound::Included(prefix.to_vec()),
    };
    (start, end.map_or(Bound::Unbounded, Bound::Excluded))
}

/// The same range as borrowed slices.
pub(crate) fn borrowed(range: &KeyRange) -> (Bound<&[u8]>, Bound<&[u8]>) {
    (range.0.as_ref().map(Vec::as_slice), range.1.as_ref().map(Vec::as_slice))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_a_volume_are_one_range_in_name_order() {
        let mut keys = [
            named(VolumeId(2), b"a"),
            named(VolumeId(1), b"\xff\xff"),
            named(VolumeId(1), b"a\0"),
            named(VolumeId(1), b"a"),
            named(VolumeId(0x0100), b""),
        ];
        keys.sort();
        let order: Vec<_> = keys.iter().map(|key| split(key).expect("own key")).collect();
        assert_eq!(
            order,
            [
                (VolumeId(1), &b"a"[..]),
                (VolumeId(1), b"a\0"),
                (VolumeId(1), b"\xff\xff"),
                (VolumeId(2), b"a"),
                (VolumeId(0x0100), b""),
            ]
        );
        let end = above(&volume(VolumeId(1))).expect("there is one");
        assert_eq!(end, volume(VolumeId(2)));
    }

    #[test]
    fn piece_keys_come_apart() {
        let fid = FileId::new(5, 6, 7);
        let key = piece(VolumeId(9), fid, 3);
        let (vid, rest) = split(&key).expect("own key");
        assert_eq!((vid, split_piece(rest)), (VolumeId(9), Some((fid, 3))));
        let key = upload(VolumeId(9), fid);
        let (_, rest) = split(&key).expect("own key");
        assert_eq!(split_upload(rest), Some(fid));
        assert_eq!(split_piece(&rest[1..]), None);
        assert_eq!(split(&key[..11]), None);
        assert_eq!(split(&[1; 20]), None, "another group");
    }

    #[test]
    fn the_key_above_a_prefix() {
        assert_eq!(above(b"ab"), Some(b"ac".to_vec()));
        assert_eq!(above(b"a\xff\xff"), Some(b"b".to_vec()));
        assert_eq!(above(b"\xff\xff"), None);
        assert_eq!(above(b""), None);
    }

    #[test]
    fn a_range_never_starts_above_its_end() {
        let bounds = |prefix: &[u8], after: &[u8]| range(prefix, Some(after));
        let (start, end) = bounds(b"b", b"a");
        assert_eq!(start, Bound::Included(b"b".to_vec()));
        assert_eq!(end, Bound::Excluded(b"c".to_vec()));
        assert_eq!(bounds(b"b", b"bx").0, Bound::Excluded(b"bx".to_vec()));
        let (start, end) = bounds(b"b", b"cx");
        assert_eq!(start, Bound::Included(b"c".to_vec()));
        assert_eq!(end, Bound::Excluded(b"c".to_vec()), "empty");
        assert_eq!(range(b"\xff", None).1, Bound::Unbounded);
    }
}
