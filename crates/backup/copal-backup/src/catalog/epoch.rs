//! Epochs: a counter that rises before packs are added or removed.
//!
//! Empty files `e.<number>`. A backup raises the epoch before its first pack, a prune before its first
//! removal. An index that is up to date in the newest epoch, or made all changes of that epoch itself, knows
//! all packs: nobody needs to list them.

use super::log::{Catalog, PAGE, number_of};
use crate::packs::volumes::settled;
use crate::request::error::Result;
use bytes::Bytes;
use copal_volume::{FileInfo, PutOptions, ReadOptions, VolumeError};

const PREFIX: &str = "e.";
/// Number of epoch files after which the older ones are deleted.
const CLEARED_AFTER: u64 = 64;

fn place(epoch: u64) -> String {
    format!("{PREFIX}{epoch:016x}")
}

impl Catalog {
    /// The newest epoch; 0: no pack was ever written.
    /// # Errors
    /// Errors of the store.
    pub(crate) fn epoch(&self) -> Result<u64> {
        let listed = self.epochs()?;
        listed.last().map_or(Ok(0), |(name, _)| number_of(PREFIX, name))
    }

    fn epochs(&self) -> Result<Vec<(Bytes, FileInfo)>> {
        let mut found = Vec::new();
        loop {
            let after = found.last().map(|(name, _): &(Bytes, FileInfo)| name.clone());
            // If no newer epoch is listed, an index counts as complete, so the listing is strict.
            let page =
                self.store.list(self.vid, PREFIX.as_bytes(), after.as_deref(), PAGE, &ReadOptions::STRICT)?;
            if page.is_empty() {
                return Ok(found);
            }
            found.extend(page);
        }
    }

    /// Creates the epoch after `from` and returns it; `None` if another process did.
    /// # Errors
    /// Errors of the store.
    pub(crate) fn raise_epoch(&self, from: u64) -> Result<Option<u64>> {
        let raised = from.saturating_add(1);
        let name = place(raised);
        match self.store.put(self.vid, name.as_bytes(), Bytes::new(), &PutOptions::default()) {
            Ok(_) => {}
            Err(VolumeError::Exists { .. }) => return Ok(None),
            Err(VolumeError::Unknown { fid }) => {
                if !settled(&*self.store, self.vid, fid)? {
                    return Ok(None);
                }
            }
            Err(error) => return Err(error.into()),
        }
        // The number may have been free because its file was deleted as an old one.
        let listed = self.epochs()?;
        if listed.last().is_some_and(|(newest, _)| newest.as_ref() > name.as_bytes()) {
            return Ok(None);
        }
        if listed.len() as u64 >= CLEARED_AFTER {
            let older = listed.iter().filter(|(older, _)| older.as_ref() < name.as_bytes());
            let older: Vec<_> = older.map(|(older, info)| (older.clone(), info.fid)).collect();
            self.delete_unneeded(&older)?;
        }
        Ok(Some(raised))
    }
}
