//! Lists of packs that a prune is about to remove, for stores where a removal may take effect late (BAK-15).
//!
//! In a cluster a delete may reach one server before its client dies, and the others when that server is
//! back. So a prune lists its packs in files `r.<epoch>.<number>` of the catalog before it removes the first.
//! It deletes the lists when all packs are removed. The next writer removes the packs of a list of the newest
//! epoch before it looks for chunks. A list of an earlier epoch has no effect: the writer that began the next
//! epoch has already obeyed it, or no pack of it was removed.

use super::log::{Catalog, PAGE, damaged_record, number_of};
use super::record::{PackPlace, Record};
use crate::keys::role::Role;
use crate::packs::volumes::settled;
use crate::request::error::Result;
use bytes::Bytes;
use copal_volume::{FileId, PutOptions, ReadOptions, VolumeError};

const PREFIX: &str = "r.";
/// Largest list.
const MAX_LIST_BYTES: u64 = 64 << 10;

/// A list file in the catalog.
#[derive(Clone, Debug)]
pub(crate) struct RemovalList {
    name: String,
    fid: FileId,
    /// The epoch of its prune.
    pub(crate) epoch: u64,
}

impl Catalog {
    /// Writes list `number` of an epoch, with at most `MAX_LISTED` packs; durable on return.
    /// # Errors
    /// Errors of the store: then no pack may be removed.
    pub(crate) fn begin_removal(&self, epoch: u64, number: u32, packs: &[PackPlace]) -> Result<RemovalList> {
        let name = format!("{PREFIX}{epoch:016x}.{number:08x}");
        self.may_write(Role::Delete)?;
        let packs = packs.to_vec();
        let bytes = Record::Removing { packs }.encode(&name, &self.keys);
        let put = self.store.put(self.vid, name.as_bytes(), bytes.into(), &PutOptions::default());
        let fid = match put {
            Ok(info) => info.fid,
            Err(VolumeError::Unknown { fid }) if settled(&*self.store, self.vid, fid)? => fid,
            Err(error) => return Err(error.into()),
        };
        Ok(RemovalList { name, fid, epoch })
    }

    /// All lists.
    /// # Errors
    /// Errors of the store.
    pub(crate) fn removals(&self) -> Result<Vec<RemovalList>> {
        let mut found: Vec<RemovalList> = Vec::new();
        loop {
            let after = found.last().map(|removal| removal.name.clone().into_bytes());
            // The packs of a list that is not shown would be referred to, so the listing is strict.
            let page =
                self.store.list(self.vid, PREFIX.as_bytes(), after.as_deref(), PAGE, &ReadOptions::STRICT)?;
            if page.is_empty() {
                return Ok(found);
            }
            for (name, info) in page {
                let name = String::from_utf8_lossy(&name).into_owned();
                let (epoch, _) =
                    name.rsplit_once('.').ok_or_else(|| damaged_record(&name, "its name has no number"))?;
                let epoch = number_of(PREFIX, epoch.as_bytes())?;
                let fid = info.fid;
                found.push(RemovalList { name, fid, epoch });
            }
        }
    }

    /// The packs of a list.
    /// # Errors
    /// `Damaged`, and errors of the store.
    pub(crate) fn packs_of(&self, removal: &RemovalList) -> Result<Vec<PackPlace>> {
        let name = &removal.name;
        let read = ReadOptions::default();
        let bytes = self.store.get(self.vid, name.as_bytes(), 0..MAX_LIST_BYTES, &read)?;
        match Record::decode(&bytes, name, &self.keys) {
            Ok(Record::Removing { packs }) => Ok(packs),
            // Otherwise anyone able to write a file could remove packs.
            Ok(Record::Void { .. }) => {
                tracing::warn!(name, "removal list without the signature of the delete role ignored");
                Ok(Vec::new())
            }
            Ok(_) => Err(damaged_record(name, "it is no list of packs")),
            Err(detail) => Err(damaged_record(name, detail)),
        }
    }

    /// Deletes lists that are done, or of an earlier epoch.
    /// # Errors
    /// Errors of the store.
    pub(crate) fn end_removals(&self, removals: &[RemovalList]) -> Result<()> {
        let named: Vec<(Bytes, FileId)> =
            removals.iter().map(|removal| (Bytes::from(removal.name.clone()), removal.fid)).collect();
        match named.is_empty() {
            true => Ok(()),
            false => self.delete(&named),
        }
    }
}
