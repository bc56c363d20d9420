//! Comparison of members: counts and hashes of a group's live files, with verification of their bodies on
//! request.

use super::{disk_state::MemberCore, heads};
use crate::{error::of_engine, format::FileHead, keys, local::read_body};
use bytes::Bytes;
use copal_volume::{VolumeError, group::GroupId};
use xxhash_rust::xxh3::Xxh3;

/// A span of the live files of a group, in the order of their keys.
#[derive(Clone, Copy, Debug)]
pub struct VerifySpan<'a> {
    /// Start, exclusive; `None`: from the first file.
    pub after: Option<&'a [u8]>,
    /// End, inclusive; `None`: up to `limit` files.
    pub until: Option<&'a [u8]>,
    /// Maximum number of files.
    pub limit: usize,
}

/// Result for a span.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifiedSpan {
    /// Number of files.
    pub files: u64,
    /// Bytes of their bodies.
    pub bytes: u64,
    /// Hash of keys and heads: equal for equal files.
    pub digest: u128,
    /// Key of the last file.
    pub last: Bytes,
    /// Whether the limit ended the span.
    pub more: bool,
    /// Unreadable items, a sentence each.
    pub damaged: Vec<String>,
}

/// See `MemberStore::verify`.
pub(super) fn verify(
    core: &MemberCore,
    group: GroupId,
    span: VerifySpan<'_>,
    deep: bool,
) -> Result<VerifiedSpan, VolumeError> {
    let range = keys::range(&keys::group(group), span.after);
    let mut found = VerifiedSpan::default();
    let mut hash = Xxh3::new();
    for row in core.spaces.files.iter(keys::borrowed(&range)) {
        let (key, row) = match row {
            Ok(row) => row,
            Err(error) if error.is_corruption() => {
                found.damaged.push(error.to_string());
                break;
            }
            Err(error) => return Err(of_engine(&error)),
        };
        if span.until.is_some_and(|until| &*key > until) {
            break;
        }
        if found.files == span.limit as u64 {
            found.more = true;
            break;
        }
        found.files += 1;
        found.last = Bytes::copy_from_slice(&key);
        hash.update(&(key.len() as u64).to_be_bytes());
        hash.update(&key);
        match FileHead::parse(&key, &row) {
            Ok(head) => {
                found.bytes += head.size;
                let numbers = [
                    &head.fid.0.to_be_bytes()[..],
                    &head.op.0.to_be_bytes(),
                    &head.size.to_be_bytes(),
                    &head.crc32c.to_be_bytes(),
                ];
                numbers.into_iter().for_each(|number| hash.update(number));
                hash.update(&head.metadata);
                if deep && let Some(damage) = find_damage(core, &key, &head)? {
                    found.damaged.push(damage);
                }
            }
            Err(error) => found.damaged.push(error.to_string()),
        }
    }
    found.digest = hash.digest128();
    Ok(found)
}

/// Reads a body piece by piece. Returns its damage, unless it was deleted meanwhile.
pub(super) fn find_damage(
    core: &MemberCore,
    key: &[u8],
    head: &FileHead,
) -> Result<Option<String>, VolumeError> {
    const AT_A_TIME: u64 = 4 << 20;
    let Some((vid, _)) = keys::split(key) else {
        return Ok(Some("the key of a file is cut".to_owned()));
    };
    let mut start = 0;
    while start < head.size {
        let end = head.size.min(start + AT_A_TIME);
        match read_body(&core.spaces, vid, head, start..end) {
            Ok(_) => start = end,
            Err(VolumeError::Corrupt { what }) => {
                let now = heads::find_head(&core.spaces.files, key)?;
                let is_there = now.is_some_and(|now| now.fid == head.fid);
                return Ok(is_there.then_some(what));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}
