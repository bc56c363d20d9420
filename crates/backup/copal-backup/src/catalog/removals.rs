//! Lists of packs that a prune is about to remove, where a removal may come about late (BAK-15).
//!
//! In a cluster a delete may have reached one server when whoever began it dies, and reach the others
//! whenever that server comes back. So a prune lists what it removes before it begins, in files
//! `r.<epoch>.<number>` of the catalog, and takes the lists away when all of it is gone. Whoever writes next
//! finds a list of the newest epoch and removes what stands in it before it looks for chunks. A list of an
//! earlier epoch is none: nothing was removed by it before the next epoch began, since a prune begins when
//! its list is safe, and whoever began that epoch would have found it.

use super::log::{Catalog, PAGE, damaged_record, number_of};
use super::record::{PackPlace, Record};
use crate::keys::role::Role;
use crate::packs::volumes::settled;
use crate::request::error::Result;
use bytes::Bytes;
use copal_volume::{FileId, PutOptions, ReadOptions, VolumeError};

const PREFIX: &str = "r.";
/// No list is longer.
const MAX_LIST_BYTES: u64 = 64 << 10;

/// A list as it lies in the catalog.
#[derive(Clone, Debug)]
pub(crate) struct Removal {
    name: String,
    fid: FileId,
    /// The epoch in which its prune runs.
    pub(crate) epoch: u64,
}

impl Catalog {
    /// Lists packs, at most `MAX_LISTED`, that are removed in an epoch; safe on return. `number`: of the list
    /// in its epoch.
    /// # Errors
    /// Those of the store: then nothing may be removed.
    pub(crate) fn begin_removal(&self, epoch: u64, number: u32, packs: &[PackPlace]) -> Result<Removal> {
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
        Ok(Removal { name, fid, epoch })
    }

    /// All lists that are there.
    /// # Errors
    /// Those of the store.
    pub(crate) fn removals(&self) -> Result<Vec<Removal>> {
        let mut found: Vec<Removal> = Vec::new();
        loop {
            let after = found.last().map(|removal| removal.name.clone().into_bytes());
            // A list that is not shown is not finished, and its packs would be referred to.
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
                found.push(Removal { name, fid, epoch });
            }
        }
    }

    /// The packs of a list.
    /// # Errors
    /// `Damaged`, and those of the store.
    pub(crate) fn packs_of(&self, removal: &Removal) -> Result<Vec<PackPlace>> {
        let name = &removal.name;
        let read = ReadOptions::default();
        let bytes = self.store.get(self.vid, name.as_bytes(), 0..MAX_LIST_BYTES, &read)?;
        match Record::decode(&bytes, name, &self.keys) {
            Ok(Record::Removing { packs }) => Ok(packs),
            // Whoever can write a file would remove what he likes.
            Ok(Record::Void { .. }) => {
                tracing::warn!(
                    name,
                    "a list of packs without the signature of the delete role removes nothing"
                );
                Ok(Vec::new())
            }
            Ok(_) => Err(damaged_record(name, "it is no list of packs")),
            Err(detail) => Err(damaged_record(name, detail)),
        }
    }

    /// Takes lists away: nothing of them is left, or they are of an earlier epoch.
    /// # Errors
    /// Those of the store.
    pub(crate) fn end_removals(&self, removals: &[Removal]) -> Result<()> {
        let named: Vec<(Bytes, FileId)> =
            removals.iter().map(|removal| (Bytes::from(removal.name.clone()), removal.fid)).collect();
        match named.is_empty() {
            true => Ok(()),
            false => self.delete(&named),
        }
    }
}
