//! Words that begin like an address: `s3://bucket/x` is no path, though a file may have that name.
//!
//! Not here: which schemes there are, and what their addresses name.

/// The scheme that a word begins with: a letter, then at least one more letter, digit, `+`, `-` or `.`, then `:/`. `C:/x` has
/// none, and `./s3:/x` is a path.
pub fn scheme_of(word: &str) -> Option<&str> {
    let (scheme, rest) = word.split_once(':')?;
    let is_letter = |c: char| c.is_ascii_alphabetic();
    let is_of_scheme = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
    let is_scheme = scheme.len() >= 2 && scheme.starts_with(is_letter) && scheme.chars().all(is_of_scheme);
    (is_scheme && rest.starts_with('/')).then_some(scheme)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_told_from_a_path() {
        for (word, scheme) in [
            ("s3://b/x", "s3"),
            ("sftp://h/x", "sftp"),
            ("copal:/x", "copal"),
            ("COPAL://h:7400/v", "COPAL"),
            ("nbd+unix:///x", "nbd+unix"),
            ("file:///x", "file"),
        ] {
            assert_eq!(scheme_of(word), Some(scheme));
        }
        for path in [
            "/a", "a", "./s3:/x", "a/s3://x", "C:/x", "a:b", "s3:x", "1a:/x", "a b:/x", ":/x", "",
        ] {
            assert_eq!(scheme_of(path), None, "{path}");
        }
    }
}
