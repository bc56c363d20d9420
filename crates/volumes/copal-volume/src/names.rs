//! Rules for the names of files and volumes.
//!
//! A file name is 1 to 1280 arbitrary bytes, zero bytes and slashes included, ordered bytewise.
//! A volume has a path of UTF-8 components joined by `/`; each is 1 to 255 bytes, without `/`
//! and control characters, and neither `.` nor `..`.

use crate::error::VolumeError;
use crate::limits::{MAX_FILE_NAME_BYTES, MAX_VOLUME_DEPTH, MAX_VOLUME_NAME_BYTES};

/// The name in a delete of a file that its caller knows by its id alone: members find the file by that id. A
/// file may have this name, too.
pub const UNKNOWN_FILE_NAME: &[u8] = b"?";

fn invalid(reason: impl Into<String>) -> VolumeError {
    VolumeError::InvalidName { reason: reason.into() }
}

/// Refuses a file name that is empty or longer than [`MAX_FILE_NAME_BYTES`].
/// # Errors
/// `InvalidName`.
pub fn check_file_name(name: &[u8]) -> Result<(), VolumeError> {
    if name.is_empty() {
        return Err(invalid("a file name is empty"));
    }
    if name.len() > MAX_FILE_NAME_BYTES {
        return Err(invalid(format!(
            "a file name has {} bytes, at most {MAX_FILE_NAME_BYTES} are allowed",
            name.len()
        )));
    }
    Ok(())
}

/// Refuses one component of a volume path that breaks the rules of this module.
/// # Errors
/// `InvalidName`.
pub fn check_volume_name(name: &str) -> Result<(), VolumeError> {
    if name.is_empty() {
        return Err(invalid("a volume name is empty"));
    }
    if name.len() > MAX_VOLUME_NAME_BYTES {
        return Err(invalid(format!(
            "a volume name has {} bytes, at most {MAX_VOLUME_NAME_BYTES} are allowed",
            name.len()
        )));
    }
    if name == "." || name == ".." {
        return Err(invalid(format!("a volume cannot be called {name:?}")));
    }
    if name.contains('/') || name.chars().any(char::is_control) {
        return Err(invalid(format!("the volume name {name:?} contains '/' or a control character")));
    }
    Ok(())
}

/// The checked components of a path; empty for the root `""`.
/// # Errors
/// `InvalidName`: a component breaks the rules, or the path is deeper than [`MAX_VOLUME_DEPTH`].
pub fn split_path(path: &str) -> Result<Vec<&str>, VolumeError> {
    if path.is_empty() {
        return Ok(Vec::new());
    }
    let components: Vec<&str> = path.split('/').collect();
    if components.len() > MAX_VOLUME_DEPTH {
        return Err(invalid(format!(
            "a volume path has {} components, at most {MAX_VOLUME_DEPTH} are allowed",
            components.len()
        )));
    }
    for component in &components {
        check_volume_name(component)?;
    }
    Ok(components)
}

/// Splits a checked path into the components of its parent and its own name.
/// # Errors
/// `InvalidName`: as [`split_path`], and for the root, which has no name.
pub fn split_parent(path: &str) -> Result<(Vec<&str>, &str), VolumeError> {
    let mut components = split_path(path)?;
    match components.pop() {
        Some(name) => Ok((components, name)),
        None => Err(invalid("the root is not a volume")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_are_any_bytes_within_the_limit() {
        assert!(check_file_name(b"a").is_ok());
        assert!(check_file_name(b"a/b\0c\xff").is_ok());
        assert!(check_file_name(&[0; MAX_FILE_NAME_BYTES]).is_ok());
        assert!(check_file_name(b"").is_err());
        assert!(check_file_name(&[1; MAX_FILE_NAME_BYTES + 1]).is_err());
    }

    #[test]
    fn paths_split_into_checked_components() {
        assert_eq!(split_path("").expect("root"), Vec::<&str>::new());
        assert_eq!(split_path("a/b/c").expect("path"), ["a", "b", "c"]);
        assert_eq!(split_parent("a/b/c").expect("path"), (vec!["a", "b"], "c"));
        for bad in ["/", "/a", "a/", "a//b", ".", "a/..", "a\nb", "a/\u{0}"] {
            assert!(split_path(bad).is_err(), "{bad:?} was accepted");
        }
        assert!(split_parent("").is_err());
        let deep = vec!["d"; MAX_VOLUME_DEPTH].join("/");
        assert!(split_path(&deep).is_ok());
        assert!(split_path(&format!("{deep}/d")).is_err());
        assert!(check_volume_name(&"x".repeat(MAX_VOLUME_NAME_BYTES)).is_ok());
        assert!(check_volume_name(&"x".repeat(MAX_VOLUME_NAME_BYTES + 1)).is_err());
    }
}
