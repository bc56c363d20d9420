//! Location of a repository: a store of this machine, a volume of a cluster, or a prefix in an object store.

pub(crate) mod remote;

use crate::{
    arguments::CommonArgs,
    cluster,
    failure::{Failure, Outcome},
};
use copal_backup::scheme_of;
use copal_client::ClusterStore;
use copal_node::StoreLocation;
use copal_remote::RemoteUrl;
use copal_volume::split_path;
use std::path::{Path, PathBuf};

/// Prefix of a repository in a cluster: copal://HOST:PORT/PATH, with ?profile=FILE if no option or variable
/// names the profile.
const SCHEME: &str = "copal://";
/// Separator before the name of a profile.
pub(crate) const PROFILE: &str = "?profile=";

/// Location of a repository.
pub(crate) enum RepositoryPlace {
    /// A directory or a block device.
    Store(StoreLocation),
    /// Volumes of a cluster.
    Cluster(ClusterPlace),
    /// A prefix of a bucket in an object store.
    Remote(RemoteUrl),
}

/// A repository in a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClusterPlace {
    /// Address of a master, host:port.
    pub(crate) master: String,
    /// Path of the volume that holds the repository.
    pub(crate) path: String,
    /// Profile of the cluster, if the address names one.
    pub(crate) profile: Option<PathBuf>,
}

impl ClusterPlace {
    /// Parses an address in a cluster; `None` for a local path.
    /// # Errors
    /// The text has the prefix of an address, but is not a valid one.
    pub(crate) fn parse(named: &Path) -> Outcome<Option<ClusterPlace>> {
        let text = named.to_string_lossy();
        let Some(rest) = text.strip_prefix(SCHEME) else {
            return match scheme_of(&text) {
                Some(scheme) => Err(unknown_scheme(&text, scheme)),
                None => Ok(None),
            };
        };
        if named.to_str().is_none() {
            return Err(Failure::usage(format!("{text} is not UTF-8, which an address has to be")));
        }
        let malformed = || {
            Failure::usage(format!(
                "{} names no repository in a cluster; give copal://HOST:PORT/PATH, such as copal://127.0.0.1:7400/vms",
                named.display()
            ))
        };
        let (rest, profile) = match rest.split_once(PROFILE) {
            Some((rest, profile)) => (rest, Some(PathBuf::from(profile))),
            None => (rest, None),
        };
        let (master, path) = rest.split_once('/').ok_or_else(malformed)?;
        let port = master.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
        let path = path.trim_end_matches('/');
        if port.is_none() || path.is_empty() || split_path(path).is_err() {
            return Err(malformed());
        }
        Ok(Some(ClusterPlace { master: master.to_owned(), path: path.to_owned(), profile }))
    }

    /// Connects to the cluster; the volumes below the path become the store.
    /// # Errors
    /// Missing profile, no master, or options that only a store of this machine has.
    pub(crate) fn connect(&self, common: &CommonArgs) -> Outcome<ClusterStore> {
        if common.store_limit.is_some() {
            return Err(Failure::usage(
                "--store-limit is for a store of this machine; the servers of a cluster have limits of their own \
                 (`copal data --limit`)",
            ));
        }
        let file = common.cluster.as_ref().or(self.profile.as_ref());
        let named = match file {
            Some(file) => cluster::read_profile(file)?,
            None => cluster::profile(common)?,
        };
        let profile = named.with_first_master(&self.master);
        let store = cluster::connect_within(&profile, common.threads)?;
        if let Some(file) = file {
            cluster::keep_renewed(&store, file);
        }
        store.rooted(&self.path).map_err(cluster::of_volume)
    }
}

/// The failure for an address whose scheme this release does not know; such a text is not taken for a path.
fn unknown_scheme(named: &str, scheme: &str) -> Failure {
    Failure::usage(format!(
        "{named} names no repository: there are no repositories at {scheme}:. One in a cluster is written {SCHEME}HOST:PORT/PATH, and one in an \
         object store s3://BUCKET/PREFIX, az://ACCOUNT/CONTAINER/PREFIX or gs://BUCKET/PREFIX; give one of these, a directory or \
         a block device, and write a path of this name as ./{named}"
    ))
}

/// Refuses an address where only a path of this machine serves.
pub(crate) fn refuse_address(named: &Path) -> Outcome<()> {
    let text = named.to_string_lossy();
    match text.starts_with(SCHEME) || scheme_of(&text).is_some() {
        true => Err(Failure::usage(format!(
            "{text} is an address, and `copal device` needs a path of this machine: give a directory, a file or a block \
             device; in a cluster, run it where the data server is"
        ))),
        false => Ok(()),
    }
}

impl RepositoryPlace {
    /// Finds the repository that the options name.
    pub(crate) fn find(common: &CommonArgs) -> Outcome<RepositoryPlace> {
        let named = common.repository()?;
        match RepositoryPlace::shared(named)? {
            Some(place) => Ok(place),
            None => Ok(RepositoryPlace::Store(StoreLocation::find(named)?)),
        }
    }

    /// Parses an address of a repository that is not on this machine; `None` for a local path.
    /// # Errors
    /// The text has the form of an address, but is not a valid one.
    pub(crate) fn shared(named: &Path) -> Outcome<Option<RepositoryPlace>> {
        match RemoteUrl::parse(&named.to_string_lossy()) {
            Some(url) => Ok(Some(RepositoryPlace::Remote(url.map_err(remote::of_remote)?))),
            None => Ok(ClusterPlace::parse(named)?.map(RepositoryPlace::Cluster)),
        }
    }

    /// Whether other machines may use the repository at the same time.
    pub(crate) fn is_shared(&self) -> bool {
        !matches!(self, RepositoryPlace::Store(_))
    }

    /// Whether a file or device is part of the repository's store or shares bytes with it.
    pub(crate) fn holds(&self, path: &Path) -> bool {
        match self {
            RepositoryPlace::Store(location) => location.holds(path),
            RepositoryPlace::Cluster(_) | RepositoryPlace::Remote(_) => false,
        }
    }

    /// Bytes that the store uses on its file system; `None` if unknown.
    pub(crate) fn allocated_bytes(&self) -> Option<u64> {
        match self {
            RepositoryPlace::Store(location) => location.allocated_bytes(),
            RepositoryPlace::Cluster(_) | RepositoryPlace::Remote(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_in_a_cluster_are_distinguished_from_directories() {
        let parse = |text: &str| ClusterPlace::parse(Path::new(text));
        let place = parse("copal://127.0.0.1:7400/vms/a/").unwrap().unwrap();
        assert_eq!((place.master.as_str(), place.path.as_str()), ("127.0.0.1:7400", "vms/a"));
        assert_eq!(place.profile, None);
        let place = parse("copal://h:7400/vms?profile=/tmp/a?b/client.json").unwrap().unwrap();
        assert_eq!(
            (place.path.as_str(), place.profile.as_deref()),
            ("vms", Some(Path::new("/tmp/a?b/client.json")))
        );
        assert_eq!(parse("/backup/copal").unwrap(), None);
        for broken in ["copal://host/vms", "copal://host:7400", "copal://host:7400/", "copal://host:x/y"] {
            assert!(parse(broken).is_err(), "{broken}");
        }
        // Symptom: `--repo s3://b/x` created a local directory and reported success. Cause: every text
        // without copal:// was a path. Fix: a text with an unknown scheme is refused.
        for other in ["b2://b/x", "sftp://h/x", "copal:/x", "COPAL://h:7400/v", "file:///x"] {
            let failure = parse(other).unwrap_err();
            assert_eq!(failure.exit_code, crate::failure::exit::USAGE, "{other}");
            assert!(failure.sentence.contains("copal://"), "{other}");
        }
        for path in ["./s3:/x", "C:/x", "a:b"] {
            assert_eq!(parse(path).unwrap(), None, "{path}");
        }
    }
}
