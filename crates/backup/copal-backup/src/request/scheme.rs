//! Detects words that begin like an address: `s3://bucket/x` is not treated as a path, though a file may have
//! that name.
//!
//! Not here: the known schemes, and their addresses.

use std::net::Ipv4Addr;

/// Schemes that other programs write without a slash, as in `s3:host/bucket`, `rclone:remote:path` and
/// `nbd:unix:/socket`, and our own, which is mistaken for one of them.
const WITHOUT_SLASH: [&str; 12] =
    ["azure", "b2", "copal", "gs", "nbd", "rclone", "rest", "s3", "sftp", "ssh", "swift", "webdav"];

/// The scheme that a word begins with: a letter, then at least one more letter, digit, `+`, `-` or `.`, then
/// `:/`. `C:/x` has none, and `./s3:/x` is a path. Schemes of other programs need no slash, nor does an
/// account on a host, as in `user@host:backup`; an address of four numbers does.
pub fn scheme_of(word: &str) -> Option<&str> {
    let (scheme, rest) = word.trim_start().split_once(':')?;
    let is_account = |word: &str| matches!(word.split_once('@'), Some((user, host)) if !user.is_empty() && !host.is_empty());
    if is_account(scheme) && !scheme.contains(['/', ' ']) {
        return Some(scheme);
    }
    if scheme.parse::<Ipv4Addr>().is_ok() && rest.starts_with('/') {
        return Some(scheme);
    }
    let is_letter = |c: char| c.is_ascii_alphabetic();
    let is_of_scheme = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
    let is_scheme = scheme.len() >= 2 && scheme.starts_with(is_letter) && scheme.chars().all(is_of_scheme);
    let is_anothers = WITHOUT_SLASH.iter().any(|of| scheme.eq_ignore_ascii_case(of));
    (is_scheme && (rest.starts_with('/') || is_anothers)).then_some(scheme)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_distinguished_from_paths() {
        for (word, scheme) in [
            ("s3://b/x", "s3"),
            ("sftp://h/x", "sftp"),
            ("copal:/x", "copal"),
            ("COPAL://h:7400/v", "COPAL"),
            ("nbd+unix:///x", "nbd+unix"),
            ("file:///x", "file"),
            ("s3:host/bucket", "s3"),
            (" s3://b/x", "s3"),
            ("copal:x", "copal"),
            ("nbd:unix:/x", "nbd"),
            ("sftp:user@host:/x", "sftp"),
            ("rclone:remote:x", "rclone"),
            ("user@host:/x", "user@host"),
            ("user@host:x", "user@host"),
            ("10.0.0.5:/x", "10.0.0.5"),
        ] {
            assert_eq!(scheme_of(word), Some(scheme));
        }
        for path in [
            "/a",
            "a",
            "./s3:/x",
            "a/s3://x",
            "C:/x",
            "a:b",
            "./s3:x",
            "vm:x",
            "1a:/x",
            "a b:/x",
            ":/x",
            "",
            "a@b/c:/x",
            "@b:/x",
            "a@b",
            "10.0.0.5:x",
        ] {
            assert_eq!(scheme_of(path), None, "{path}");
        }
    }
}
