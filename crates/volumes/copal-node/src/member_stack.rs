//! The layers below a data server: objects -> keys and values -> groups.

use crate::{error::NodeError, idle_marker::IdleMarker, location::OpenedStore};
use copal_data::MemberStore;
use copal_volume::SystemClock;
use std::{path::Path, sync::Arc};

/// An open store with the groups of a data server.
pub struct MemberStack {
    objects: copal_object::Store,
    members: MemberStore,
    idle_marker: Option<IdleMarker>,
}

impl MemberStack {
    /// Opens engine and groups on the result of [`StoreLocation::open`](crate::StoreLocation::open) or
    /// [`UnfinishedStore::open`](crate::UnfinishedStore::open); `path` is for messages. Blocks on the device.
    /// # Errors
    /// `Engine`, `Volumes`.
    pub fn open(path: &Path, (objects, _): OpenedStore, engine_bytes: u64) -> Result<MemberStack, NodeError> {
        let options = copal_kv::Options { memory_bytes: engine_bytes, ..copal_kv::Options::default() };
        let kv = copal_kv::Store::open(objects.clone(), options)
            .map_err(|source| NodeError::Engine { path: path.to_owned(), source })?;
        let members = MemberStore::open(kv, Arc::new(SystemClock))?;
        Ok(MemberStack { idle_marker: Some(IdleMarker::start(objects.clone())), objects, members })
    }

    /// The groups.
    pub fn members(&self) -> &MemberStore {
        &self.members
    }

    /// The objects.
    pub fn objects(&self) -> &copal_object::Store {
        &self.objects
    }

    /// Closes all layers from the top down, durably.
    /// # Errors
    /// `Volumes`, `Close`.
    pub fn close(mut self) -> Result<(), NodeError> {
        self.idle_marker = None;
        self.members.close()?;
        self.objects.close().map_err(NodeError::Close)
    }
}
