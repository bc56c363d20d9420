//! List files of frames in the volume of a VM's manifests; a record of the VM's log names each by number and
//! hash.
//!
//! A file is an envelope, the VM, the content, and a MAC over both with the name of the file. A list is
//! durable before a record names it, and is deleted once none does.
//!
//! Formats: docs/formats/backup-dead-frames.md, docs/formats/backup-moved-frames.md
//! Not here: the content of lists (`dead_frames`, `moved_frames`).

use crate::keys::{DomainKeys, MAC_BYTES};
use crate::packs::pack_store::PackStore;
use crate::packs::volumes::{for_each_file, settled};
use crate::request::error::{Error, Result};
use bytes::Bytes;
use copal_codec::{ENVELOPE_LEN, Envelope, Format, Put, Reader};
use copal_volume::{PutOptions, ReadOptions, VolumeError};
use uuid::Uuid;

/// Parses the content behind the VM; the error is a sentence.
pub(crate) type Parse<T> = fn(&mut Reader<'_>, Uuid) -> std::result::Result<T, String>;

/// Parses the bytes under the MAC: the VM and the content.
pub(crate) fn parse<T>(content: &[u8], parse: Parse<T>) -> std::result::Result<(Uuid, T), String> {
    let mut input = Reader::new(content);
    let vm = Uuid::from_bytes(input.array().map_err(|error| error.to_string())?);
    let list = parse(&mut input, vm)?;
    input.finish().map_err(|error| error.to_string())?;
    Ok((vm, list))
}

/// One kind of lists.
pub(crate) struct ListKind {
    /// Format of its files.
    pub(crate) format: &'static Format,
    /// Prefix of its file names.
    pub(crate) prefix: &'static str,
    /// Largest file.
    pub(crate) max_file_bytes: u64,
}

impl ListKind {
    /// Name of the file of a list.
    pub(crate) fn file_name(&self, number: u64) -> String {
        format!("{}{number:016x}", self.prefix)
    }

    /// Encodes a list; `put` writes its content.
    pub(crate) fn encode(
        &self,
        vm: Uuid,
        name: &str,
        keys: &DomainKeys,
        put: impl FnOnce(&mut Vec<u8>),
    ) -> Vec<u8> {
        let mut bytes = vec![0; ENVELOPE_LEN];
        bytes.put_bytes(vm.as_bytes());
        put(&mut bytes);
        let mac = keys.mac(name, &bytes[ENVELOPE_LEN..]);
        bytes.put_bytes(&mac);
        Envelope::seal(self.format, 0, 0, &mut bytes);
        bytes
    }

    /// Decodes a list of the VM. The error is a sentence: damaged, changed, or of another place.
    pub(crate) fn decode<T>(
        &self,
        bytes: &[u8],
        vm: Uuid,
        name: &str,
        keys: &DomainKeys,
        parse: Parse<T>,
    ) -> std::result::Result<T, String> {
        let (_, body) = Envelope::open(self.format, bytes).map_err(|error| error.to_string())?;
        let at = body.len().checked_sub(MAC_BYTES).ok_or("it is too short for a list")?;
        let (content, mac) = body.split_at(at);
        if !keys.mac_fits(name, content, mac) {
            return Err("its MAC does not match: it was changed, or moved from another place".into());
        }
        let (of, list) = self::parse(content, parse)?;
        match of == vm {
            true => Ok(list),
            false => Err("it belongs to another VM".into()),
        }
    }

    /// Reads a list whose hash is known. The inner error is the reason why it cannot be read.
    /// # Errors
    /// Errors of the store that are not damage.
    pub(crate) fn read<T>(
        &self,
        pack_store: &PackStore,
        vm: Uuid,
        (number, hash): (u64, &[u8; 32]),
        parse: Parse<T>,
    ) -> Result<std::result::Result<T, String>> {
        let Some(vid) = pack_store.volumes.meta(vm, false)? else {
            return Ok(Err("it is missing".into()));
        };
        let name = self.file_name(number);
        let read = ReadOptions::default();
        let store = &pack_store.volumes.store;
        let file = match store.get(vid, name.as_bytes(), 0..self.max_file_bytes, &read) {
            Ok(file) => file,
            Err(VolumeError::NotFound) => return Ok(Err("it is missing".into())),
            Err(VolumeError::Corrupt { what }) => return Ok(Err(what)),
            Err(error) => return Err(error.into()),
        };
        pack_store.note_read(file.len() as u64);
        Ok(match blake3::hash(&file).as_bytes() == hash {
            true => self.decode(&file, vm, &name, &pack_store.keys, parse),
            false => Err("its hash is not the one in its record".into()),
        })
    }

    /// Writes a list under a free number above `number`. `encode` makes the bytes for a file name. Returns
    /// the number and the hash of the file; durable on return.
    /// # Errors
    /// Errors of the store.
    pub(crate) fn write(
        &self,
        pack_store: &PackStore,
        vm: Uuid,
        mut number: u64,
        encode: impl Fn(&str) -> Vec<u8>,
    ) -> Result<(u64, [u8; 32])> {
        let store = &*pack_store.volumes.store;
        let vid = pack_store.volumes.meta(vm, true)?.ok_or(Error::NoRepository)?;
        // A process that gave way may have left a list under the next number, which no record will name.
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

    /// Deletes the lists with a number below the newest in force, except those in force. If none is in force, it deletes
    /// those with a number below `floor`. The caller has recorded which are in force.
    /// # Errors
    /// Errors of the store.
    pub(crate) fn drop_older(
        &self,
        pack_store: &PackStore,
        vm: Uuid,
        in_force: &[u64],
        floor: u64,
    ) -> Result<()> {
        let volumes = &pack_store.volumes;
        let Some(vid) = volumes.meta(vm, false)? else {
            return Ok(());
        };
        let in_force: Vec<String> = in_force.iter().map(|number| self.file_name(*number)).collect();
        let below = in_force.iter().max().cloned().unwrap_or_else(|| self.file_name(floor));
        let mut older = Vec::new();
        for_each_file(&*volumes.store, vid, self.prefix.as_bytes(), |name, info| {
            if name < below.as_bytes() && !in_force.iter().any(|one| one.as_bytes() == name) {
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
