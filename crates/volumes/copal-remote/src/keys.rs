//! Keys of objects: names of volumes and files in hexadecimal, so that the order of keys is the order of names.
//!
//! | key | object |
//! |---|---|
//! | `n/PATH` | volume record: the id of the volume at that path; components in hex, joined by `--/` |
//! | `f/VID/NAME` | file of a volume, both in hex |
//! | `p/RANDOM/...` | objects of a probe, which removes them |
//! | `b/TIME-CONTENT` | bundle: copies of short objects |
//!
//! Invariant: a part of a key between slashes has at most 255 bytes, and no object lies below the key of another one. Some
//! stores keep each key as the path of a file.

use copal_volume::{VolumeError, VolumeId};

/// Longest name of a file, in bytes: a key has at most 1,024 bytes, the prefix of the repository included.
pub(crate) const MAX_NAME_BYTES: usize = 400;
/// Longest path of a volume, in bytes.
const MAX_PATH_BYTES: usize = 400;

/// Prefix of all volume records.
pub(crate) const VOLUMES: &str = "n/";
/// Prefix of all files.
pub(crate) const FILES: &str = "f/";
/// Prefix of the objects of probes.
pub(crate) const PROBES: &str = "p/";

/// Prefix of all bundles.
pub(crate) const BUNDLES: &str = "b/";

/// Whether objects of this key are kept in caches.
pub(crate) fn is_kept(key: &str) -> bool {
    key.starts_with(VOLUMES) || key.starts_with(FILES)
}

/// Bytes of a name in one part of a key.
const PART_BYTES: usize = 125;
/// Between the parts of a long name; below all digits.
const CONTINUED: &str = "-/";
/// Between the components of a path.
pub(crate) const BELOW: &str = "--/";

/// The hex of a name, in parts. The form of a name begins with those of its beginnings.
pub(crate) fn name_key(name: &[u8]) -> String {
    let parts: Vec<String> = name.chunks(PART_BYTES).map(hex).collect();
    parts.join(CONTINUED)
}

/// The name of a text that [`name_key`] made; `None` for any other text.
pub(crate) fn name_of(text: &str) -> Option<Vec<u8>> {
    let parts: Option<Vec<Vec<u8>>> = text.split(CONTINUED).map(unhex).collect();
    let name = parts?.concat();
    (name_key(&name) == text).then_some(name)
}

/// Lower-case hex of `bytes`.
pub(crate) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    text
}

/// The bytes of a text that [`hex`] made; `None` for any other text.
fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let bytes = text.as_bytes();
    if !bytes.len().is_multiple_of(2) {
        return None;
    }
    bytes.chunks_exact(2).map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?)).collect()
}

/// Key of the record of the volume at a path of checked components.
/// # Errors
/// `InvalidName`: too long for a key.
pub(crate) fn volume_key(path: &[&str]) -> Result<String, VolumeError> {
    let bytes: usize = path.iter().map(|component| component.len() + 1).sum();
    if bytes > MAX_PATH_BYTES {
        return Err(VolumeError::InvalidName {
            reason: format!("the path of a volume has {bytes} bytes, an object store takes {MAX_PATH_BYTES}"),
        });
    }
    let parts: Vec<String> = path.iter().map(|component| name_key(component.as_bytes())).collect();
    Ok(format!("{VOLUMES}{}", parts.join(BELOW)))
}

/// Prefix of the records of all volumes below a path, at any depth.
/// # Errors
/// As [`volume_key`].
pub(crate) fn children_prefix(path: &[&str]) -> Result<String, VolumeError> {
    Ok(if path.is_empty() { VOLUMES.to_owned() } else { format!("{}{BELOW}", volume_key(path)?) })
}

/// Prefix of the files of a volume.
pub(crate) fn files_prefix(vid: VolumeId) -> String {
    format!("{FILES}{:016x}/", vid.0)
}

/// Volume whose files have this prefix; `None`: the prefix is not one of files.
pub(crate) fn volume_of(files_prefix: &str) -> Option<VolumeId> {
    let digits = files_prefix.strip_prefix(FILES)?.strip_suffix('/')?;
    let vid = VolumeId(u64::from_str_radix(digits, 16).ok()?);
    (self::files_prefix(vid) == files_prefix).then_some(vid)
}

/// Key of a file.
/// # Errors
/// `InvalidName`: too long for a key.
pub(crate) fn file_key(vid: VolumeId, name: &[u8]) -> Result<String, VolumeError> {
    copal_volume::check_file_name(name)?;
    if name.len() > MAX_NAME_BYTES {
        return Err(VolumeError::InvalidName {
            reason: format!("a file name has {} bytes, an object store takes {MAX_NAME_BYTES}", name.len()),
        });
    }
    Ok(format!("{}{}", files_prefix(vid), name_key(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_ordered_as_the_names_are() {
        let names: [&[u8]; 7] = [b"\0", b"\0a", b"-", b"a", b"a/b", b"a\xff", b"\xff"];
        let keys = names.map(|name| file_key(VolumeId(7), name).unwrap());
        assert!(keys.is_sorted(), "{keys:?}");
        assert_eq!(keys[3], "f/0000000000000007/61");
        for (name, key) in names.iter().zip(&keys) {
            assert_eq!(name_of(&key["f/0000000000000007/".len()..]).as_deref(), Some(*name));
        }
        for text in ["6", "6G", "AB", "é1", "61-/62", "61--/62", "-/61", "61/62"] {
            assert_eq!(name_of(text), None, "{text}");
        }
    }

    #[test]
    fn long_names_have_parts_that_file_systems_take() {
        let (long, exact) = ([0xff; 400], [0x61; PART_BYTES]);
        let mut names: Vec<Vec<u8>> =
            [1, 124, 125, 126, 250, 251, 400].map(|len| long[..len].to_vec()).into();
        names.extend([exact.to_vec(), [&exact[..], &[0]].concat(), [&exact[..124], b"b"].concat()]);
        names.sort();
        let keys: Vec<String> = names.iter().map(|name| name_key(name)).collect();
        assert!(keys.is_sorted(), "{keys:?}");
        for (name, key) in names.iter().zip(&keys) {
            assert_eq!(name_of(key).as_ref(), Some(name));
            assert!(key.split('/').all(|part| part.len() <= 255), "{key}");
            for end in 0..name.len() {
                assert!(key.starts_with(&name_key(&name[..end])), "{end}: {key}");
            }
            assert!(keys.iter().all(|other| !other.starts_with(&format!("{key}/"))), "below {key}");
            assert_eq!(name_of(&format!("{key}{CONTINUED}")), None);
        }
    }

    #[test]
    fn paths_of_volumes_keep_their_components_apart() {
        assert_eq!(volume_key(&["a", "b"]).unwrap(), "n/61--/62");
        assert_eq!(children_prefix(&[]).unwrap(), "n/");
        assert_eq!(children_prefix(&["a"]).unwrap(), "n/61--/");
        let long = "x".repeat(255);
        assert!(volume_key(&[&long, &long]).is_err());
        assert!(file_key(VolumeId(1), &[1; 401]).is_err());
        assert!(file_key(VolumeId(1), b"").is_err());
        assert_eq!(volume_of(&files_prefix(VolumeId(0xab))), Some(VolumeId(0xab)));
        for foreign in ["f/ab/", "f/00000000000000AB/", "f/00000000000000ab", "n/00000000000000ab/"] {
            assert_eq!(volume_of(foreign), None, "{foreign}");
        }
    }
}
