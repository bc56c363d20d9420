//! Lists of packs that a prune is about to remove, for stores where a removal may take effect late (BAK-15).
//!
//! In a cluster a delete may reach one server before its client dies, and the others when that server is
//! back. So a prune lists its packs in files `r.<epoch>.<number>` of the catalog before it removes the first.
//! It deletes the lists when all packs are removed. The next writer removes the packs of a list of the newest
//! epoch before it looks for chunks. A list of an earlier epoch has no effect: the writer that began the next
//! epoch has already obeyed it, or no pack of it was removed.

use super::files::CatalogFiles;
use super::log::{damaged_record, number_of};
use super::record::{PackPlace, Record};
use crate::keys::role::Role;
use crate::request::error::Result;
use bytes::Bytes;
use copal_volume::{FileId, VolumeError};

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

/// Writes list `number` of an epoch, with at most `MAX_LISTED` packs; durable on return.
/// # Errors
/// Errors of the store: then no pack may be removed.
pub(crate) fn begin_removal(
    files: &CatalogFiles,
    epoch: u64,
    number: u32,
    packs: &[PackPlace],
) -> Result<RemovalList> {
    let name = format!("{PREFIX}{epoch:016x}.{number:08x}");
    files.may_write(Role::Delete)?;
    let packs = packs.to_vec();
    let bytes = Record::Removing { packs }.encode(&name, files.keys());
    let fid = match files.put(name.as_bytes(), bytes.into()) {
        Ok(info) => info.fid,
        Err(VolumeError::Unknown { fid }) if files.settled(fid)? => fid,
        Err(error) => return Err(error.into()),
    };
    Ok(RemovalList { name, fid, epoch })
}

/// All lists.
/// # Errors
/// Errors of the store.
pub(crate) fn list_removals(files: &CatalogFiles) -> Result<Vec<RemovalList>> {
    let mut found: Vec<RemovalList> = Vec::new();
    // The packs of a list that is not shown would be referred to; the listing is strict.
    files.for_each(PREFIX, |name, info| {
        let name = String::from_utf8_lossy(name).into_owned();
        let (epoch, _) =
            name.rsplit_once('.').ok_or_else(|| damaged_record(&name, "its name has no number"))?;
        let epoch = number_of(PREFIX, epoch.as_bytes())?;
        found.push(RemovalList { name, fid: info.fid, epoch });
        Ok(())
    })?;
    Ok(found)
}

/// The packs of a list.
/// # Errors
/// `Damaged`, and errors of the store.
pub(crate) fn packs_of(files: &CatalogFiles, removal: &RemovalList) -> Result<Vec<PackPlace>> {
    let name = &removal.name;
    let bytes = files.get(name.as_bytes(), MAX_LIST_BYTES)?;
    match Record::decode(&bytes, name, files.keys()) {
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
pub(crate) fn end_removals(files: &CatalogFiles, removals: &[RemovalList]) -> Result<()> {
    let named: Vec<(Bytes, FileId)> =
        removals.iter().map(|removal| (Bytes::from(removal.name.clone()), removal.fid)).collect();
    files.delete(&named)
}
