//! The layers below a program: objects -> keys and values -> volumes, opened from the bottom up and closed
//! from the top down.

use crate::{error::NodeError, idle_marker::IdleMarker, location::Access, location::OpenedStore};
use copal_data::LocalStore;
use copal_object::RecoveryReport;
use std::{path::Path, sync::Arc};

/// An open store with all layers that a program uses.
pub struct Stack {
    objects: copal_object::Store,
    recovery: RecoveryReport,
    kv: copal_kv::Store,
    volumes: Arc<LocalStore>,
    access: Access,
    was_shrunk: bool,
    idle_marker: Option<IdleMarker>,
}

impl Stack {
    /// Opens engine and volumes on the result of [`StoreLocation::open`](crate::StoreLocation::open) or
    /// [`UnfinishedStore::open`](crate::UnfinishedStore::open); `path` is for messages. Blocks on the device.
    /// # Errors
    /// `Engine`, `Volumes`.
    pub fn open(
        path: &Path,
        (objects, recovery): OpenedStore,
        access: Access,
        engine_bytes: u64,
    ) -> Result<Stack, NodeError> {
        // Read before the engine reserves space for deletes.
        let was_shrunk = objects.space().hollow_bytes > 0;
        let options = copal_kv::Options {
            memory_bytes: engine_bytes,
            read_only: access == Access::Read,
            ..copal_kv::Options::default()
        };
        let kv = copal_kv::Store::open(objects.clone(), options)
            .map_err(|source| NodeError::Engine { path: path.to_owned(), source })?;
        let volumes = Arc::new(LocalStore::open(kv.clone())?);
        let idle_marker = (access == Access::Write).then(|| IdleMarker::start(objects.clone()));
        Ok(Stack { objects, recovery, kv, volumes, access, was_shrunk, idle_marker })
    }

    /// The objects.
    pub fn objects(&self) -> &copal_object::Store {
        &self.objects
    }

    /// Report of the store's recovery.
    pub fn recovery(&self) -> &RecoveryReport {
        &self.recovery
    }

    /// The engine on the objects.
    pub fn kv(&self) -> &copal_kv::Store {
        &self.kv
    }

    /// The volumes on the engine.
    pub fn volumes(&self) -> &Arc<LocalStore> {
        &self.volumes
    }

    /// Whether the store had given space back to its file system when it was opened.
    pub fn was_shrunk(&self) -> bool {
        self.was_shrunk
    }

    /// Closes all layers from the top down, durably; calls `last` on the objects once the layers above are
    /// closed. A store opened for reading is only dropped, without `last`.
    /// # Errors
    /// `Volumes`, `Close`.
    pub fn close<T: Default>(mut self, last: impl FnOnce(&copal_object::Store) -> T) -> Result<T, NodeError> {
        self.idle_marker = None;
        if self.access == Access::Read {
            return Ok(T::default());
        }
        self.volumes.close()?;
        let value = last(&self.objects);
        // A closed store ends with a checkpoint, so that later damage of its contents is distinguished from a
        // crash.
        self.objects.close().map_err(NodeError::Close)?;
        Ok(value)
    }
}
