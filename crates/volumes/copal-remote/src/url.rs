//! Addresses of repositories in an object store.
//!
//! `s3://BUCKET/PREFIX?endpoint=&region=&style=path|host`, `az://ACCOUNT/CONTAINER/PREFIX?endpoint=`,
//! `gs://BUCKET/PREFIX?endpoint=`, and for all of them `ca=FILE`, `tls=none`, `rps=N`, `connections=N`; for S3 and Google
//! `imds=yes`. With the feature `hdfs` also `hdfs://HOST[:PORT]/PATH` with `tls=none` and `connections=N`.
//!
//! Invariant: an address holds no credentials, so it may be printed. One that does is refused and not repeated.

use crate::error::{RemoteError, RemoteFailure};
use std::{fmt, path::PathBuf};

/// Kind of object store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloudKind {
    /// S3, and every server with its interface.
    S3,
    /// Blobs of Azure.
    Azure,
    /// Google Cloud Storage.
    Google,
    /// Hadoop's file system.
    Hdfs,
}

impl CloudKind {
    const ALL: [CloudKind; 4] = [CloudKind::S3, CloudKind::Azure, CloudKind::Google, CloudKind::Hdfs];

    /// Scheme of its addresses, with the slashes.
    fn scheme(self) -> &'static str {
        match self {
            CloudKind::S3 => "s3://",
            CloudKind::Azure => "az://",
            CloudKind::Google => "gs://",
            CloudKind::Hdfs => "hdfs://",
        }
    }

    fn example(self) -> &'static str {
        match self {
            CloudKind::S3 => "s3://BUCKET/PREFIX?region=eu-central-1",
            CloudKind::Azure => "az://ACCOUNT/CONTAINER/PREFIX",
            CloudKind::Google => "gs://BUCKET/PREFIX",
            CloudKind::Hdfs => "hdfs://HOST:PORT/PATH",
        }
    }

    /// Words for the place of a repository, and for its holder.
    fn place(self) -> (&'static str, &'static str) {
        match self {
            CloudKind::Hdfs => ("path", "host"),
            _ => ("prefix", "bucket"),
        }
    }
}

/// Connections to an object store, unless the address says otherwise.
const DEFAULT_CONNECTIONS: u32 = 8;
const MOST_CONNECTIONS: u32 = 256;
const MOST_RPS: u32 = 1_000_000;
/// Longest prefix, in bytes: the rest of a key's 1,024 is for names.
const MAX_PREFIX_BYTES: usize = 128;

/// Address of a repository in an object store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteUrl {
    /// Kind of object store.
    pub kind: CloudKind,
    /// Account; Azure only.
    pub account: Option<String>,
    /// Bucket or container; of HDFS the name node, with its port.
    pub bucket: String,
    /// Prefix of all keys, without slashes at its ends; of HDFS the directory.
    pub prefix: String,
    /// Address of the server; `None`: the provider's own.
    pub endpoint: Option<String>,
    /// Region of the bucket; S3 only.
    pub region: Option<String>,
    /// The name of the bucket is part of the host's name; S3 only.
    pub virtual_host: bool,
    /// File with certificates of authorities to trust besides the system's.
    pub ca: Option<PathBuf>,
    /// Most requests a second; `None`: no limit.
    pub rps: Option<u32>,
    /// Most requests at the same time.
    pub connections: u32,
    /// Credentials may come from the machine's metadata service.
    pub instance_credentials: bool,
}

/// Whether a text begins like an address of this kind.
pub fn is_remote(text: &str) -> bool {
    CloudKind::ALL.iter().any(|kind| text.starts_with(kind.scheme()))
}

fn usage(sentence: String) -> RemoteError {
    RemoteError::new(RemoteFailure::Usage, sentence)
}

/// Replaces %XX by the byte it names. `None`: not UTF-8, or no hex.
fn unescape(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        if byte == b'%' {
            let (digits, after) = after.split_at_checked(2)?;
            bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
            rest = after;
        } else {
            bytes.push(byte);
            rest = after;
        }
    }
    String::from_utf8(bytes).ok()
}

impl RemoteUrl {
    /// Parses an address; `None` for a text without one of the schemes.
    /// # Errors
    /// `Usage`: the sentence names the fault, and does not repeat an address with credentials.
    pub fn parse(text: &str) -> Option<Result<RemoteUrl, RemoteError>> {
        let kind = CloudKind::ALL.into_iter().find(|kind| text.starts_with(kind.scheme()))?;
        Some(RemoteUrl::parse_rest(kind, &text[kind.scheme().len()..]))
    }

    fn parse_rest(kind: CloudKind, rest: &str) -> Result<RemoteUrl, RemoteError> {
        if kind == CloudKind::Hdfs && !cfg!(feature = "hdfs") {
            return Err(usage(
                "this build of copal has no HDFS; build it with `cargo build --release --package copal --features hdfs`"
                    .to_owned(),
            ));
        }
        let scheme = kind.scheme();
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let is_open =
            |word: &str| is_secret(word) || word.contains('@') || word.to_ascii_lowercase().contains("%40");
        if path.contains('@') || query.split('&').any(is_open) {
            return Err(usage(format!(
                "the {scheme} address holds credentials, which others can read there; give them by environment variables \
                 or by ~/.aws, and change these"
            )));
        }
        let malformed = |why: &str| usage(format!("{scheme}{path}: {why}; give {}", kind.example()));
        let mut parts = path.split('/');
        let mut next = || parts.next().filter(|part| !part.is_empty()).map(str::to_owned);
        let account = match kind {
            CloudKind::Azure => Some(next().ok_or_else(|| malformed("no account"))?),
            _ => None,
        };
        let (of_prefix, of_bucket) = kind.place();
        let bucket = next().ok_or_else(|| malformed(&format!("no {of_bucket}")))?;
        let prefix: Vec<&str> = parts.collect();
        let prefix = prefix.join("/");
        let prefix = prefix.trim_end_matches('/').to_owned();
        if prefix.is_empty() {
            let why = format!("no {of_prefix}: a repository does not take a whole {of_bucket}");
            return Err(malformed(&why));
        }
        let has_bad_part = prefix.split('/').any(|part| part.is_empty() || part == "." || part == "..")
            || (kind == CloudKind::Hdfs && prefix.contains(':'));
        if has_bad_part || prefix.len() > MAX_PREFIX_BYTES || prefix.chars().any(char::is_control) {
            return Err(malformed(&format!(
                "the {of_prefix} has an empty part, `.`, `..`, a control character, or more than {MAX_PREFIX_BYTES} bytes"
            )));
        }
        let mut url = RemoteUrl {
            kind,
            account,
            bucket,
            prefix,
            endpoint: None,
            region: None,
            virtual_host: false,
            ca: None,
            rps: None,
            connections: DEFAULT_CONNECTIONS,
            instance_credentials: false,
        };
        let mut plain_allowed = false;
        for word in query.split('&').filter(|word| !word.is_empty()) {
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            let value = unescape(value).ok_or_else(|| malformed(&format!("{name} is not valid text")))?;
            url.set(name, value, &mut plain_allowed).map_err(|why| malformed(&why))?;
        }
        url.check_endpoint(plain_allowed).map_err(|why| malformed(&why))?;
        Ok(url)
    }

    fn set(&mut self, name: &str, value: String, plain_allowed: &mut bool) -> Result<(), String> {
        let number = |most: u32| match value.parse() {
            Ok(number) if (1..=most).contains(&number) => Ok(number),
            _ => Err(format!("{name} is a number from 1 to {most}")),
        };
        match (name, self.kind) {
            ("endpoint" | "ca" | "rps" | "imds", CloudKind::Hdfs) => {
                return Err(format!("there is no parameter `{name}`"));
            }
            ("endpoint", _) => self.endpoint = Some(value.trim_end_matches('/').to_owned()),
            ("region", CloudKind::S3) => self.region = Some(value),
            ("style", CloudKind::S3) => {
                self.virtual_host = match value.as_str() {
                    "path" => false,
                    "host" => true,
                    _ => return Err("style is path or host".to_owned()),
                }
            }
            ("ca", _) => self.ca = Some(PathBuf::from(value)),
            ("tls", _) if value == "none" => *plain_allowed = true,
            ("tls", _) => return Err("tls is none or left out".to_owned()),
            ("rps", _) => self.rps = Some(number(MOST_RPS)?),
            ("connections", _) => self.connections = number(MOST_CONNECTIONS)?,
            ("imds", CloudKind::S3 | CloudKind::Google) if value == "yes" => self.instance_credentials = true,
            ("imds", _) => return Err("imds is yes or left out".to_owned()),
            _ => return Err(format!("there is no parameter `{name}`")),
        }
        Ok(())
    }

    fn check_endpoint(&self, plain_allowed: bool) -> Result<(), String> {
        if self.kind == CloudKind::Hdfs {
            return match plain_allowed || is_loopback(&self.bucket) {
                true => Ok(()),
                false => Err("requests to HDFS are not encrypted: others on the way can read and change them. Add tls=none if \
                              the network is trusted"
                    .to_owned()),
            };
        }
        let Some(endpoint) = &self.endpoint else { return Ok(()) };
        if let Some(rest) = endpoint.strip_prefix("http://") {
            if rest.is_empty() {
                return Err("the endpoint has no host".to_owned());
            }
            return match plain_allowed || is_loopback(rest) {
                true => Ok(()),
                false => Err(format!(
                    "{endpoint} is not encrypted: others on the way can read and change requests. Use https, or add tls=none \
                     if the network is trusted"
                )),
            };
        }
        match endpoint.strip_prefix("https://").is_some_and(|rest| !rest.is_empty()) {
            true => Ok(()),
            false => Err(format!("the endpoint {endpoint} needs http:// or https:// before the host")),
        }
    }

    /// Whether requests travel unencrypted to another machine.
    pub fn is_plain(&self) -> bool {
        if self.kind == CloudKind::Hdfs {
            return !is_loopback(&self.bucket);
        }
        self.endpoint
            .as_deref()
            .and_then(|endpoint| endpoint.strip_prefix("http://"))
            .is_some_and(|rest| !is_loopback(rest))
    }
}

/// Whether a parameter carries a secret by its name.
fn is_secret(word: &str) -> bool {
    let name = word.split('=').next().unwrap_or("").to_ascii_lowercase();
    ["key", "secret", "token", "password", "credential", "signature"].iter().any(|part| name.contains(part))
        || name == "sig"
}

/// Whether the host of `host[:port][/path]` is this machine.
fn is_loopback(rest: &str) -> bool {
    let authority = rest.split('/').next().unwrap_or("");
    let host = match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(""),
        None => authority.split(':').next().unwrap_or(""),
    };
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

impl fmt::Display for RemoteUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.scheme())?;
        if let Some(account) = &self.account {
            write!(f, "{account}/")?;
        }
        write!(f, "{}/{}", self.bucket, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<RemoteUrl, String> {
        RemoteUrl::parse(text).expect("a known scheme").map_err(|error| error.to_string())
    }

    #[test]
    fn addresses_of_the_three_kinds() {
        let url = parse("s3://vms-bucket/office/a/?endpoint=http://127.0.0.1:5099&region=us-east-1&rps=30")
            .unwrap();
        assert_eq!((url.bucket.as_str(), url.prefix.as_str()), ("vms-bucket", "office/a"));
        assert_eq!(url.endpoint.as_deref(), Some("http://127.0.0.1:5099"));
        assert_eq!((url.region.as_deref(), url.rps, url.connections), (Some("us-east-1"), Some(30), 8));
        assert_eq!(url.to_string(), "s3://vms-bucket/office/a");
        let url = parse("az://acc/box/p?ca=%2Ftmp%2Fa%20b.pem").unwrap();
        assert_eq!((url.account.as_deref(), url.bucket.as_str()), (Some("acc"), "box"));
        assert_eq!(url.ca, Some(PathBuf::from("/tmp/a b.pem")));
        assert_eq!(parse("gs://b/p?imds=yes").map(|url| url.instance_credentials), Ok(true));
        assert!(RemoteUrl::parse("copal://h:1/p").is_none());
        assert!(is_remote("s3://x") && !is_remote("/s3://x"));
    }

    #[test]
    fn addresses_that_cannot_be_used_are_refused_with_a_reason() {
        for (text, part) in [
            ("s3://", "no bucket"),
            ("s3://b", "no prefix"),
            ("s3://b/", "no prefix"),
            ("s3://b/a//c", "empty part"),
            ("s3://b/../c", "`..`"),
            ("az://acc", "no bucket"),
            ("s3://b/p?endpoint=host:1", "needs http:// or https://"),
            ("s3://b/p?endpoint=http://host:1", "not encrypted"),
            ("s3://b/p?color=red", "no parameter `color`"),
            ("gs://b/p?region=x", "no parameter `region`"),
            ("s3://b/p?rps=0", "a number from 1"),
            ("s3://b/p?style=round", "style is path or host"),
            ("s3://b/p?region=%zz", "not valid text"),
        ] {
            let sentence = parse(text).unwrap_err();
            assert!(sentence.contains(part), "{text}: {sentence}");
        }
        assert!(parse("s3://b/p?endpoint=http://host:1&tls=none").unwrap().is_plain());
        assert!(!parse("s3://b/p?endpoint=http://[::1]:1").unwrap().is_plain());
    }

    #[test]
    #[cfg(not(feature = "hdfs"))]
    fn hdfs_is_refused_without_its_feature() {
        assert!(is_remote("hdfs://h:1/p"));
        assert!(parse("hdfs://h:1/p").unwrap_err().contains("--features hdfs"));
    }

    #[test]
    #[cfg(feature = "hdfs")]
    fn addresses_in_hdfs() {
        let url = parse("hdfs://127.0.0.1:8020/vms/office?connections=4").unwrap();
        assert_eq!((url.bucket.as_str(), url.prefix.as_str()), ("127.0.0.1:8020", "vms/office"));
        assert_eq!((url.to_string().as_str(), url.is_plain()), ("hdfs://127.0.0.1:8020/vms/office", false));
        assert!(parse("hdfs://namenode:8020/vms?tls=none").unwrap().is_plain());
        for (text, part) in [
            ("hdfs:///p", "no host"),
            ("hdfs://127.0.0.1:1/", "no path"),
            ("hdfs://127.0.0.1:1/a:b", "the path has"),
            ("hdfs://namenode:8020/vms", "not encrypted"),
            ("hdfs://127.0.0.1:1/p?rps=3", "no parameter `rps`"),
            ("hdfs://user@127.0.0.1:1/p", "credentials"),
        ] {
            let sentence = parse(text).unwrap_err();
            assert!(sentence.contains(part), "{text}: {sentence}");
        }
    }

    #[test]
    fn credentials_in_an_address_are_refused_and_not_repeated() {
        for text in [
            "s3://AK:hush@b/p",
            "s3://b/p?secret_access_key=hush",
            "az://a/b/p?sig=hush",
            "s3://b/p?endpoint=http://u:hush@h:1",
        ] {
            let sentence = parse(text).unwrap_err();
            assert!(sentence.contains("credentials") && !sentence.contains("hush"), "{sentence}");
        }
    }
}
