//! Files of the catalog volume: reading, writing, listing and deleting them.
//!
//! Not here: their names and contents (`log`, `checkpoint`, `epoch`, `heartbeats`, `agents`, `pins`,
//! `removals`).

use crate::keys::DomainKeys;
use crate::keys::role::Role;
use crate::packs::volumes::{for_each_file, settled};
use crate::request::error::{Error, Result};
use bytes::Bytes;
use copal_volume::{FileId, FileInfo, FilePage, PutOptions, ReadOptions, VolumeError, VolumeId, VolumeStore};
use std::sync::Arc;

/// Files in one page of a listing.
pub(super) const PAGE: usize = 1000;

/// The catalog volume of one repository, with the keys that its files are encoded with.
#[derive(Clone)]
pub(crate) struct CatalogFiles {
    store: Arc<dyn VolumeStore>,
    vid: VolumeId,
    keys: Arc<DomainKeys>,
}

impl CatalogFiles {
    pub(super) fn new(store: Arc<dyn VolumeStore>, vid: VolumeId, keys: Arc<DomainKeys>) -> CatalogFiles {
        CatalogFiles { store, vid, keys }
    }

    pub(crate) fn vid(&self) -> VolumeId {
        self.vid
    }

    pub(super) fn store(&self) -> &dyn VolumeStore {
        &*self.store
    }

    pub(super) fn keys(&self) -> &DomainKeys {
        &self.keys
    }

    /// The first `limit` bytes of a file.
    /// # Errors
    /// Errors of the store.
    pub(super) fn get(&self, name: &[u8], limit: u64) -> std::result::Result<Bytes, VolumeError> {
        self.store.get(self.vid, name, 0..limit, &ReadOptions::default())
    }

    /// Creates a file; durable on return.
    /// # Errors
    /// `Exists`, `Unknown`, and other errors of the store.
    pub(super) fn put(&self, name: &[u8], body: Bytes) -> std::result::Result<FileInfo, VolumeError> {
        self.store.put(self.vid, name, body, &PutOptions::default())
    }

    /// Settles a create whose outcome is unknown: `true` if the file exists.
    /// # Errors
    /// Errors of the store.
    pub(super) fn settled(&self, fid: FileId) -> Result<bool> {
        settled(&*self.store, self.vid, fid)
    }

    /// One page of a strict listing, which shows every acknowledged file.
    /// # Errors
    /// Errors of the store.
    pub(super) fn strict_page(&self, prefix: &str, after: Option<&[u8]>) -> Result<FilePage> {
        Ok(self.store.list_page(self.vid, prefix.as_bytes(), after, PAGE, &ReadOptions::STRICT)?)
    }

    /// Calls `visit` for each file whose name begins with `prefix`, by a strict listing.
    /// # Errors
    /// Errors of the store, and errors of `visit`.
    pub(super) fn for_each(
        &self,
        prefix: &str,
        visit: impl FnMut(&[u8], &FileInfo) -> Result<()>,
    ) -> Result<()> {
        for_each_file(&*self.store, self.vid, prefix.as_bytes(), visit)
    }

    /// Deletes files.
    /// # Errors
    /// `Denied`: this process may not delete. Other errors of the store.
    pub(super) fn delete(&self, files: &[(Bytes, FileId)]) -> Result<()> {
        if files.is_empty() {
            return Ok(());
        }
        let outcomes = self.store.delete_batch(self.vid, files)?;
        Ok(outcomes.into_iter().collect::<std::result::Result<(), _>>()?)
    }

    /// Deletes files that are no longer needed. A process without the right to delete leaves them to another.
    /// # Errors
    /// Errors of the store other than `Denied`.
    pub(super) fn delete_unneeded(&self, files: &[(Bytes, FileId)]) -> Result<()> {
        match self.delete(files) {
            Err(Error::Volume(VolumeError::Denied { reason })) => {
                tracing::debug!(reason, "old files of the catalog stay");
                Ok(())
            }
            deleted => deleted,
        }
    }

    /// Refuses to write a record that would be ignored.
    /// # Errors
    /// `Denied`.
    pub(super) fn may_write(&self, role: Role) -> Result<()> {
        match role {
            Role::Delete if !self.keys.can_sign() => self.keys.roles().require(role),
            _ => Ok(()),
        }
    }
}
