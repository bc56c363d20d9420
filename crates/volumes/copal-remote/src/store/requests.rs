//! The client with the rules of its requests.

use super::{
    cache::{ObjectCache, bundle::BundleReader},
    held_list::HeldLists,
    of_service,
    read::ReadFlight,
};
use crate::{
    retry::RetryRules,
    service::{ListedPage, ObjectFront, ObjectService},
};
use copal_volume::VolumeError;
use std::sync::{Arc, OnceLock};

/// See the module. Cheap to clone.
#[derive(Clone)]
pub(super) struct RequestRules {
    pub(super) service: Arc<dyn ObjectService>,
    pub(super) rules: RetryRules,
    /// Most requests at the same time.
    pub(super) connections: usize,
    /// Copies of objects on a disk, once the directory is known.
    pub(super) disk: Arc<OnceLock<ObjectCache>>,
    pub(super) held: Arc<HeldLists>,
    pub(super) bundle: Arc<BundleReader>,
    pub(super) flight: Arc<ReadFlight>,
}

impl RequestRules {
    /// The object as an earlier process kept it on this machine; with `tag` only in this version.
    pub(super) fn kept(&self, key: &str, tag: Option<&str>) -> Option<ObjectFront> {
        let disk = self.disk.get()?;
        match disk.read(key, tag) {
            None if self.bundle.missed(self, disk) => disk.read(key, tag),
            front => front,
        }
    }

    /// A page of a list, as it is held or as the store shows it.
    pub(super) fn page(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<ListedPage, VolumeError> {
        if let Some(page) = self.held.page(prefix, after, limit) {
            return Ok(page);
        }
        let listed = self.rules.repeat(|| self.service.list(prefix, after, limit));
        listed.map_err(|error| of_service(&error))
    }
}
