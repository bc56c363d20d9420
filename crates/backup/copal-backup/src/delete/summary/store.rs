//! Summary vectors as files in the volume of a VM's manifests.

use super::format::{BLOCK_MAC_BYTES, BlockMac, HEADER_BYTES, VectorHeader, block_mac, digest};
use super::{Block, Geometry};
use crate::catalog::vm::PublishedSnapshot;
use crate::delete::references;
use crate::keys::signature::SIGNATURE_BYTES;
use crate::packs::volumes::{for_each_file, settled};
use crate::request::SnapshotId;
use crate::request::error::{Error, Result};
use crate::rules::broken::{self, Flaw};
use crate::sessions::parts::RepositoryParts;
use crate::snapshot::manifest::Manifest;
use bytes::Bytes;
use copal_volume::{PutOptions, ReadOptions, VolumeError, VolumeId};
use subtle::ConstantTimeEq;
use uuid::Uuid;

/// File name of the vector of a snapshot. It contains the geometry, so that vectors of two geometries can
/// exist side by side.
pub(crate) fn file_name(snapshot: SnapshotId, geometry: Geometry) -> String {
    let Geometry { blocks, block_words, hashes } = geometry;
    format!("{}{blocks:x}-{block_words:x}-{hashes:x}", prefix(snapshot))
}

/// Prefix of the names of all vectors of a snapshot.
pub(crate) fn prefix(snapshot: SnapshotId) -> String {
    format!("s.{snapshot}.")
}

/// A readable vector.
#[derive(Clone, Debug)]
pub(crate) struct StoredVector {
    pub(crate) header: VectorHeader,
    vid: VolumeId,
    name: String,
    /// Expected MACs of the blocks, if those in the file are not to be trusted.
    macs: Option<Vec<BlockMac>>,
}

/// A vector that was written.
pub(crate) struct WrittenVector {
    pub(crate) header: VectorHeader,
    /// Digest of the vector, for the manifest of its snapshot.
    pub(crate) digest: [u8; 32],
}

/// The newest vector of a snapshot; `None`: none is usable.
/// # Errors
/// Errors of the store that are not damage.
pub(crate) fn find(parts: &RepositoryParts, vm: Uuid, snapshot: SnapshotId) -> Result<Option<StoredVector>> {
    let Some(vid) = parts.pack_store().volumes.meta(vm, false)? else {
        return Ok(None);
    };
    let store = &*parts.pack_store().volumes.store;
    let mut newest: Option<(u64, String)> = None;
    for_each_file(store, vid, prefix(snapshot).as_bytes(), |name, info| {
        let name = String::from_utf8_lossy(name).into_owned();
        if newest.as_ref().is_none_or(|(created, _)| *created < info.created_ms) {
            newest = Some((info.created_ms, name));
        }
        Ok(())
    })?;
    let Some((_, name)) = newest else {
        return Ok(None);
    };
    let range = 0..HEADER_BYTES as u64;
    let header = match store.get(vid, name.as_bytes(), range, &ReadOptions::default()) {
        Ok(bytes) => VectorHeader::decode(&bytes, &name, &parts.pack_store().keys),
        Err(VolumeError::NotFound) => return Ok(None),
        Err(VolumeError::Corrupt { what }) => Err(what),
        Err(error) => return Err(error.into()),
    };
    let fits = |header: &VectorHeader| {
        (header.vm, header.snapshot) == (vm, snapshot) && name == file_name(snapshot, header.geometry)
    };
    match header {
        Ok(header) if fits(&header) => Ok(Some(StoredVector { header, vid, name, macs: None })),
        Ok(_) => Ok(None),
        Err(detail) => {
            tracing::warn!(%snapshot, detail, "unusable summary vector ignored");
            Ok(None)
        }
    }
}

/// As [`find`], for a removal that relies on the vector. In a repository with role keys, a vector counts only
/// if the manifest of its snapshot names it, or the delete role signed it. The holder of a backup key can
/// then forge only the vectors of its own snapshots (BAK-18).
/// # Errors
/// Errors of the store that are not damage.
pub(crate) fn find_trusted(
    parts: &RepositoryParts,
    vm: Uuid,
    published: &PublishedSnapshot,
) -> Result<Option<StoredVector>> {
    let Some(mut vector) = find(parts, vm, published.snapshot)? else {
        return Ok(None);
    };
    if !parts.pack_store().keys.roles().are_split || broken::by(Flaw::TrustsAnyVector) {
        return Ok(Some(vector));
    }
    let Some(macs) = vector.read_macs(parts)? else {
        return Ok(None);
    };
    let digest = digest(&vector.header.encode(&vector.name, &parts.pack_store().keys), &macs);
    let is_trusted = match vector.header.is_signed {
        true => vector.is_signed(parts, &digest)?,
        false => false,
    } || match parts.manifest(vm, published) {
        Ok(manifest) => manifest.vector == Some(digest),
        Err(error) if error.is_corruption() => false,
        Err(error) => return Err(error),
    };
    if !is_trusted {
        tracing::warn!(snapshot = %published.snapshot, "summary vector differs from the published one; ignored");
        return Ok(None);
    }
    vector.macs = Some(macs);
    Ok(Some(vector))
}

impl StoredVector {
    /// The MACs of its blocks. `None`: they cannot be read.
    fn read_macs(&self, parts: &RepositoryParts) -> Result<Option<Vec<BlockMac>>> {
        let mut macs = Vec::new();
        for number in 0..self.header.geometry.blocks() {
            let at = self.header.block_at(number) + self.header.bits_bytes();
            match self.read(parts, at..at + BLOCK_MAC_BYTES as u64)?.map(|mac| mac[..].try_into()) {
                Some(Ok(mac)) => macs.push(mac),
                Some(Err(_)) | None => return Ok(None),
            }
        }
        Ok(Some(macs))
    }

    /// Whether the delete role has signed it.
    fn is_signed(&self, parts: &RepositoryParts, digest: &[u8; 32]) -> Result<bool> {
        let at = self.header.block_at(self.header.geometry.blocks());
        let signature = self.read(parts, at..at + SIGNATURE_BYTES as u64)?;
        let keys = &parts.pack_store().keys;
        Ok(signature.is_some_and(|signature| keys.counts(&self.name, digest, Some(&signature))))
    }

    /// Bytes of the file, fewer at its end. `None`: they cannot be read.
    fn read(&self, parts: &RepositoryParts, range: std::ops::Range<u64>) -> Result<Option<Bytes>> {
        let pack_store = parts.pack_store();
        let store = &pack_store.volumes.store;
        match store.get(self.vid, self.name.as_bytes(), range, &ReadOptions::default()) {
            Ok(bytes) => {
                pack_store.note_read(bytes.len() as u64);
                Ok(Some(bytes))
            }
            Err(VolumeError::NotFound | VolumeError::Corrupt { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether all its blocks are intact.
    /// # Errors
    /// Errors of the store that are not damage.
    fn is_intact(&self, parts: &RepositoryParts) -> Result<bool> {
        let mut block = Block::new(self.header.geometry);
        for number in 0..self.header.geometry.blocks() {
            if !self.merge_into(&mut block, number, parts)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Merges block `number` into another one. `false`: it cannot be read, or its MAC does not match.
    /// # Errors
    /// Errors of the store that are not damage.
    pub(crate) fn merge_into(&self, block: &mut Block, number: u32, parts: &RepositoryParts) -> Result<bool> {
        let range = self.header.block_at(number)..self.header.block_at(number + 1);
        let wanted_bytes = range.end - range.start;
        let Some(bytes) = self.read(parts, range)?.filter(|bytes| bytes.len() as u64 == wanted_bytes) else {
            return Ok(false);
        };
        let (bits, beside) = bytes.split_at(self.header.bits_bytes() as usize);
        let mac = match &self.macs {
            Some(macs) => macs.get(number as usize).map_or(&[][..], |mac| &mac[..]),
            None => beside,
        };
        let wanted = block_mac(&self.name, number, bits, &parts.pack_store().keys);
        let fits = bool::from(wanted[..].ct_eq(mac)) || broken::by(Flaw::NoVectorSeal);
        Ok(fits && block.merge_bytes(bits).is_some())
    }
}

/// Writes the vector of a snapshot whose recipes are durable; durable on return. A geometry that is too small
/// is replaced by one that fits. Memory: one block. Returns header and digest.
/// # Errors
/// `Damaged`: a recipe cannot be read. Errors of the store.
pub(crate) fn write(
    parts: &RepositoryParts,
    manifest: &Manifest,
    geometry: Option<Geometry>,
) -> Result<WrittenVector> {
    let mut geometry = match geometry {
        Some(geometry) => geometry,
        None => Geometry::for_references(references::count(parts, manifest)?),
    };
    loop {
        match try_write(parts, manifest, geometry)? {
            Ok(written) => return Ok(written),
            Err(references) => geometry = Geometry::for_references(references),
        }
    }
}

/// Makes vectors that are missing, unusable, or of another geometry than that of the newest snapshot.
/// # Errors
/// `Damaged`: a manifest or recipe cannot be read. Errors of the store.
pub(crate) fn mend(parts: &RepositoryParts, vm: Uuid, snapshots: &[PublishedSnapshot]) -> Result<()> {
    let mut geometry = None;
    for published in snapshots.iter().rev() {
        if let Some(vector) = find_trusted(parts, vm, published)? {
            let found = vector.header.geometry;
            if geometry.is_none_or(|wanted| found == wanted) && vector.is_intact(parts)? {
                geometry = Some(found);
                continue;
            }
        }
        drop_all(parts, vm, published.snapshot)?;
        let manifest = parts.manifest(vm, published)?;
        let written = write(parts, &manifest, geometry)?.header.geometry;
        geometry.get_or_insert(written);
    }
    Ok(())
}

/// Deletes all vectors of a snapshot.
fn drop_all(parts: &RepositoryParts, vm: Uuid, snapshot: SnapshotId) -> Result<()> {
    let volumes = &parts.pack_store().volumes;
    let Some(vid) = volumes.meta(vm, false)? else {
        return Ok(());
    };
    let mut files = Vec::new();
    for_each_file(&*volumes.store, vid, prefix(snapshot).as_bytes(), |name, info| {
        files.push((name.to_vec(), info.fid));
        Ok(())
    })?;
    for (name, fid) in files {
        volumes.store.delete(vid, &name, fid)?;
    }
    Ok(())
}

/// As [`write`]; the inner error is the number of references that exceeds the geometry's capacity.
fn try_write(
    parts: &RepositoryParts,
    manifest: &Manifest,
    geometry: Geometry,
) -> Result<std::result::Result<WrittenVector, u64>> {
    let keys = &parts.pack_store().keys;
    let store = &*parts.pack_store().volumes.store;
    let vid = parts
        .pack_store()
        .volumes
        .meta(manifest.vm, true)?
        .ok_or_else(|| Error::Invalid { reason: "the volume of manifests cannot be made".into() })?;
    let name = file_name(manifest.snapshot, geometry);
    let mut block = Block::new(geometry);
    let mut file = None;
    let mut header = VectorHeader {
        vm: manifest.vm,
        snapshot: manifest.snapshot,
        geometry,
        references: 0,
        is_signed: keys.sign(&name, &[]).is_some(),
    };
    let mut macs = Vec::new();
    for number in 0..geometry.blocks() {
        block.clear();
        let mut references = 0;
        references::for_each(parts, manifest, |reference| {
            let id = reference.id.short();
            references += 1;
            if geometry.block_of(&id) == number {
                block.insert(&id);
            }
            Ok(())
        })?;
        if references > geometry.capacity() {
            return Ok(Err(references));
        }
        let file = match &mut file {
            Some(file) => file,
            None => {
                header.references = references;
                let mut begun = match store.writer(vid, name.as_bytes(), &PutOptions::default()) {
                    Ok(begun) => begun,
                    // The vector of this snapshot exists already: it was written from the same recipes.
                    Err(VolumeError::Exists { .. }) => return Ok(Ok(written_before(parts, manifest)?)),
                    Err(error) => return Err(error.into()),
                };
                begun.append(Bytes::from(header.encode(&name, keys)))?;
                file.insert(begun)
            }
        };
        let mut bits = block.bytes();
        let mac = block_mac(&name, number, &bits, keys);
        macs.push(mac);
        bits.extend_from_slice(&mac);
        file.append(Bytes::from(bits))?;
    }
    let digest = digest(&header.encode(&name, keys), &macs);
    if let (Some(file), Some(signature)) = (&mut file, keys.sign(&name, &digest)) {
        file.append(Bytes::copy_from_slice(&signature))?;
    }
    match file.map(|file| file.commit()) {
        None | Some(Ok(_)) => {}
        Some(Err(VolumeError::Exists { .. })) => return Ok(Ok(written_before(parts, manifest)?)),
        Some(Err(VolumeError::Unknown { fid })) if settled(store, vid, fid)? => {}
        Some(Err(error)) => return Err(error.into()),
    }
    Ok(Ok(WrittenVector { header, digest }))
}

/// The existing vector of the same snapshot.
fn written_before(parts: &RepositoryParts, manifest: &Manifest) -> Result<WrittenVector> {
    let unread = || Error::Damaged {
        what: format!("the summary vector of snapshot {}", manifest.snapshot),
        detail: "it exists and cannot be read; run the backup again".into(),
    };
    let vector = find(parts, manifest.vm, manifest.snapshot)?.ok_or_else(unread)?;
    let macs = vector.read_macs(parts)?.ok_or_else(unread)?;
    let header = vector.header;
    Ok(WrittenVector {
        header,
        digest: digest(&header.encode(&vector.name, &parts.pack_store().keys), &macs),
    })
}
