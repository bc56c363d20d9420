//! The cache of a repository in an object store: its directory, and the parts in it.
//!
//! `DIR/DOMAIN/objects` has heads and short objects, `DIR/DOMAIN/index` the chunk index. The domain names the
//! repository, so two endpoints of one repository share a cache, and a new repository at an old address gets its own.
//! `DIR/DOMAIN/address.json` has its bucket and prefix, and the endpoints whose properties were checked.
//!
//! Invariant: nothing in a cache makes a command fail before its work; it then runs without that part, and says so.

use super::MARK;
use crate::{
    arguments::CommonArgs,
    failure::{Failure, Outcome, exit},
};
use copal_node::{NewStore, Patience, Stack};
use copal_remote::{ObjectCache, RemoteUrl};
use serde::{Deserialize, Serialize};
use std::{
    ffi::OsString,
    fs::{DirBuilder, File},
    io::Read,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
};
use uuid::Uuid;

/// Bytes of the cache of one repository, unless `--cache-limit` says otherwise.
const LIMIT_BYTES: u64 = 2_000_000_000;
/// The least share of the limit with which the index is kept: the smallest store and its growth.
const LEAST_INDEX_BYTES: u64 = 128 << 20;

/// Longest file of an address that is read.
const MOST_ADDRESS_BYTES: u64 = 64 << 10;

/// Bucket and prefix of a repository, and the endpoints at which its store was checked.
#[derive(Default, Serialize, Deserialize)]
struct KnownAddress {
    address: String,
    checked: Vec<String>,
}

fn endpoint_of(url: &RemoteUrl) -> String {
    url.endpoint.clone().unwrap_or_default()
}

/// Cache of a repository.
pub(crate) struct CachePlace {
    directory: PathBuf,
    limit_bytes: u64,
}

impl CachePlace {
    /// The cache that options and environment name; `None`: the command runs without.
    /// # Errors
    /// `usage`: the options contradict each other.
    pub(crate) fn find(common: &CommonArgs, domain: Uuid) -> Outcome<Option<CachePlace>> {
        let limit_bytes = common.cache_limit.unwrap_or(LIMIT_BYTES);
        let root = match &common.cache {
            Some(word) if word.as_os_str() == "none" => return Ok(None),
            Some(directory) if directory.as_os_str().is_empty() => {
                return Err(Failure::usage("--cache names no directory; give one, or `none`"));
            }
            Some(directory) => Some(directory.clone()),
            None => usual(|name| std::env::var_os(name), rustix::process::geteuid().is_root()),
        };
        let Some(root) = root else {
            tracing::debug!(
                "neither XDG_CACHE_HOME nor HOME is set, so nothing is kept for the next command"
            );
            return Ok(None);
        };
        let directory = root.join(domain.to_string());
        if let Err(error) = DirBuilder::new().recursive(true).mode(0o700).create(&directory) {
            tracing::warn!(
                "{}: {error}; nothing is kept for the next command, which asks the store again; give another --cache",
                directory.display()
            );
            return Ok(None);
        }
        Ok(Some(CachePlace { directory, limit_bytes }))
    }

    /// Whether this host has checked the properties of the store at this endpoint.
    /// # Errors
    /// `denied`: this host uses the repository below another prefix, so one of the two is a copy.
    pub(crate) fn has_checked(&self, url: &RemoteUrl) -> Outcome<bool> {
        let known = self.known_address();
        match known.address.as_str() {
            "" => Ok(false),
            address if address == url.to_string() => Ok(known.checked.contains(&endpoint_of(url))),
            address => Err(Failure::new(
                exit::DENIED,
                "denied",
                format!(
                    "{url} and {address} hold the same repository, so one is a copy, and backups to both would contradict each \
                     other; use {address}, or remove {} if that is given up",
                    self.address_file().display()
                ),
            )),
        }
    }

    /// Notes that the properties of the store were checked.
    pub(crate) fn note_checked(&self, url: &RemoteUrl) {
        let mut known = self.known_address();
        known.address = url.to_string();
        known.checked.push(endpoint_of(url));
        let written = serde_json::to_vec(&known).map_err(std::io::Error::from).and_then(|text| {
            let file = self.address_file();
            let unfinished = file.with_extension(format!("{}.new", std::process::id()));
            std::fs::write(&unfinished, text)?;
            std::fs::rename(&unfinished, file)
        });
        if let Err(error) = written {
            tracing::debug!(%error, "the address of the repository is not remembered");
        }
    }

    fn address_file(&self) -> PathBuf {
        self.directory.join("address.json")
    }

    /// Without a readable file, nothing is known.
    fn known_address(&self) -> KnownAddress {
        let mut text = Vec::new();
        let read = File::open(self.address_file())
            .and_then(|file| file.take(MOST_ADDRESS_BYTES).read_to_end(&mut text));
        read.ok().and_then(|_| serde_json::from_slice(&text).ok()).unwrap_or_default()
    }

    /// Heads and short objects; `None` where the directory takes nothing.
    pub(crate) fn objects(&self) -> Option<ObjectCache> {
        let directory = self.directory.join("objects");
        match ObjectCache::open(&directory, self.limit_bytes / 2) {
            Ok(cache) => Some(cache),
            Err(error) => {
                tracing::warn!(
                    "{}: {error}; nothing is kept for the next command, which asks the store again; give another --cache",
                    directory.display()
                );
                None
            }
        }
    }

    /// The store of the chunk index; `None` where another process uses it, or it cannot be opened.
    pub(crate) fn index(&self, common: &CommonArgs) -> Option<Stack> {
        let directory = self.directory.join("index");
        let limit_bytes = self.limit_bytes / 2;
        if limit_bytes < LEAST_INDEX_BYTES {
            return None;
        }
        let used = directory.join("store.copal").metadata().map_or(0, |meta| meta.blocks() * 512);
        if used > limit_bytes && directory.join(MARK).exists() {
            tracing::warn!(
                "the index of {} is above half of --cache-limit and is made anew; a higher limit saves that",
                directory.display()
            );
            if let Err(failure) = super::remove_store(&directory) {
                tracing::warn!("{}", failure.sentence);
            }
        }
        // A cache may lie anywhere: all that it loses is made anew.
        let common = CommonArgs { allow_cow: true, allow_volatile: true, ..common.clone() };
        let plan = |_: &Path| Ok(NewStore::default());
        match super::open(&common, &directory, &plan, &Patience::none()) {
            Ok(stack) => Some(stack),
            Err(failure) => {
                let why = match failure.exit_code {
                    exit::BUSY => "another copal uses the index".to_owned(),
                    _ => failure.sentence,
                };
                tracing::warn!(
                    "{}: {why}; this command reads the tables of the packs again",
                    directory.display()
                );
                None
            }
        }
    }
}

/// The directory of caches of this user.
fn usual(variable: impl Fn(&str) -> Option<OsString>, is_root: bool) -> Option<PathBuf> {
    let named = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let caches = named("XDG_CACHE_HOME")
        .or_else(|| Some(named("HOME")?.join(".cache")))
        .or_else(|| is_root.then(|| PathBuf::from("/var/cache")))?;
    Some(caches.join("copal"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_directory_follows_the_environment() {
        let of = |xdg: &str, home: &str, is_root| {
            usual(
                |name| {
                    let value = if name == "HOME" { home } else { xdg };
                    (!value.is_empty()).then(|| value.into())
                },
                is_root,
            )
        };
        assert_eq!(of("/x", "/h", false), Some("/x/copal".into()));
        assert_eq!(of("relative", "/h", true), Some("/h/.cache/copal".into()));
        assert_eq!(of("", "", true), Some("/var/cache/copal".into()));
        assert_eq!(of("", "", false), None);
    }
}
