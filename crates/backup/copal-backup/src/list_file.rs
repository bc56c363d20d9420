//! Lists of frames in the volume of a VM's manifests, which a record of its log names by number and hash.
//!
//! A list is durable before a record names it, and goes once none does.
//!
//! Not here: what a list says (`dead_frames`, `moved_frames`).

use crate::error::{Error, Result};
use crate::pack_store::PackStore;
use crate::volumes::{for_each_file, settled};
use bytes::Bytes;
use copal_volume::{PutOptions, ReadOptions, VolumeError};
use uuid::Uuid;

/// One kind of lists.
pub(crate) struct ListKind {
    /// What the names of its files begin with.
    pub(crate) prefix: &'static str,
    /// No list is longer.
    pub(crate) max_file_bytes: u64,
}

impl ListKind {
    /// Name of the file of a list.
    pub(crate) fn file_name(&self, number: u64) -> String {
        format!("{}{number:016x}", self.prefix)
    }

    /// The bytes of a list whose hash is known; inside, why they are not those.
    /// # Errors
    /// Those of the store that are no damage.
    pub(crate) fn read(
        &self,
        pack_store: &PackStore,
        vm: Uuid,
        number: u64,
        hash: &[u8; 32],
    ) -> Result<std::result::Result<Bytes, String>> {
        let Some(vid) = pack_store.volumes.meta(vm, false)? else {
            return Ok(Err("it is gone".into()));
        };
        let name = self.file_name(number);
        let read = ReadOptions::default();
        let store = &pack_store.volumes.store;
        let file = match store.get(vid, name.as_bytes(), 0..self.max_file_bytes, &read) {
            Ok(file) => file,
            Err(VolumeError::NotFound) => return Ok(Err("it is gone".into())),
            Err(VolumeError::Corrupt { what }) => return Ok(Err(what)),
            Err(error) => return Err(error.into()),
        };
        pack_store.note_read(file.len() as u64);
        Ok(match blake3::hash(&file).as_bytes() == hash {
            true => Ok(file),
            false => Err("its bytes are not those its record names".into()),
        })
    }

    /// Writes a list, which `encode` makes for its name, under a number above `number`. Returns that and the
    /// hash of the file; durable on return.
    /// # Errors
    /// Those of the store.
    pub(crate) fn write(
        &self,
        pack_store: &PackStore,
        vm: Uuid,
        mut number: u64,
        encode: impl Fn(&str) -> Vec<u8>,
    ) -> Result<(u64, [u8; 32])> {
        let store = &*pack_store.volumes.store;
        let vid = pack_store.volumes.meta(vm, true)?.ok_or(Error::NoRepository)?;
        // Whoever gave way may have left a list under the next number, which no record will name.
        loop {
            number += 1;
            let name = self.file_name(number);
            let file = encode(&name);
            let hash = *blake3::hash(&file).as_bytes();
            match store.put(vid, name.as_bytes(), Bytes::from(file), &PutOptions::default()) {
                Ok(_) => return Ok((number, hash)),
                Err(VolumeError::Unknown { fid }) if settled(store, vid, fid)? => return Ok((number, hash)),
                Err(VolumeError::Exists { .. } | VolumeError::Unknown { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Deletes the lists up to the newest in force that are not; without any in force, all that there are.
    /// The caller has put on record which are.
    /// # Errors
    /// Those of the store.
    pub(crate) fn drop_older(&self, pack_store: &PackStore, vm: Uuid, in_force: &[u64]) -> Result<()> {
        let volumes = &pack_store.volumes;
        let Some(vid) = volumes.meta(vm, false)? else {
            return Ok(());
        };
        let in_force: Vec<String> = in_force.iter().map(|number| self.file_name(*number)).collect();
        let newest = in_force.iter().max();
        let mut older = Vec::new();
        for_each_file(&*volumes.store, vid, self.prefix.as_bytes(), |name, info| {
            let is_older = newest.is_none_or(|newest| name < newest.as_bytes());
            if is_older && !in_force.iter().any(|one| one.as_bytes() == name) {
                older.push((name.to_vec(), info.fid));
            }
            Ok(())
        })?;
        for (name, fid) in older {
            volumes.store.delete(vid, &name, fid)?;
        }
        Ok(())
    }
}
