//! List of a VM's dead frames: frames in existing packs that no snapshot refers to, or that the VM gave up
//! for popular ones.
//!
//! A file in the VM's volume of manifests, named by a record of the VM's log. Backups refer to no frame in
//! it. A pack is removed once all its frames are dead, or its live frames were moved.
//!
//! Format: docs/formats/backup-dead-frames.md v1
//! Memory: a bit per frame of packs that have dead ones.
//! Not here: finding dead frames (`dead_search`, `consolidate`).

use crate::catalog::fields::{DeadList, MAX_SEQUENCE};
#[cfg(any(test, feature = "fuzz"))]
use crate::index::list_file;
use crate::index::list_file::ListKind;
use crate::keys::DomainKeys;
use crate::packs::home::{PackHome, PackKind};
use crate::packs::pack::{FrameLocation, PackNumber, format::MAX_FRAMES};
use crate::packs::pack_store::PackStore;
use crate::request::error::{Error, Result};
use copal_codec::{DecodeError, Format, Put, Reader};
use std::collections::BTreeMap;
use uuid::Uuid;

pub(crate) const FORMAT: Format =
    Format { magic: *b"COPALDED", name: "list of dead frames", oldest: 1, version: 1, known_flags: 0 };

const LISTS: ListKind = ListKind {
    format: &FORMAT,
    prefix: "dead.",
    // Enough for packs of 100 TB, all of them partly dead.
    max_file_bytes: 1 << 30,
};
/// Numbers of lists between two records of a VM's log.
const LISTS_OF_A_RECORD: u64 = 1 << 16;
/// Kind, volume, number, one byte of frames, one of bits.
const LEAST_PACK_BYTES: usize = 1 + 1 + 8 + 1 + 1;

/// The dead frames of one VM; see the module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct DeadFrames {
    packs: BTreeMap<PackNumber, PackBits>,
    /// Bytes of dead frames that are in no list, estimated from the error rates of the deletions so far.
    pub(crate) leak_bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct PackBits {
    home: PackHome,
    volume: u32,
    /// Number of frames of the pack.
    frames: u32,
    bits: Vec<u8>,
}

impl PackBits {
    fn has(&self, slot: u32) -> bool {
        let byte = self.bits.get(slot as usize / 8);
        byte.is_some_and(|byte| byte >> (slot % 8) & 1 == 1)
    }

    fn count(&self) -> u32 {
        self.bits.iter().map(|byte| byte.count_ones()).sum()
    }
}

impl DeadFrames {
    /// Adds a frame of a pack with `frames` frames. `false`: it was in the list already.
    pub(crate) fn add(&mut self, location: FrameLocation, frames: u32) -> bool {
        let pack = self.packs.entry(location.pack).or_insert_with(|| PackBits {
            home: location.home,
            volume: location.volume,
            frames,
            bits: vec![0; frames.div_ceil(8) as usize],
        });
        let is_new = location.slot < pack.frames && !pack.has(location.slot);
        if is_new {
            pack.bits[location.slot as usize / 8] |= 1 << (location.slot % 8);
        }
        is_new
    }

    pub(crate) fn has(&self, pack: PackNumber, slot: u32) -> bool {
        self.packs.get(&pack).is_some_and(|pack| pack.has(slot))
    }

    /// Dead frames of a pack.
    pub(crate) fn count(&self, pack: PackNumber) -> u32 {
        self.packs.get(&pack).map_or(0, PackBits::count)
    }

    /// All dead frames.
    pub(crate) fn total(&self) -> u64 {
        self.packs.values().map(|pack| u64::from(pack.count())).sum()
    }

    /// The packs that have dead frames.
    pub(crate) fn packs(&self) -> impl Iterator<Item = (PackHome, u32, PackNumber)> {
        self.packs.iter().map(|(number, pack)| (pack.home, pack.volume, *number))
    }

    /// Drops packs for which `stays` is false.
    pub(crate) fn retain(&mut self, mut stays: impl FnMut(PackNumber) -> bool) {
        self.packs.retain(|number, _| stays(*number));
    }

    fn encode(&self, vm: Uuid, name: &str, keys: &DomainKeys) -> Vec<u8> {
        LISTS.encode(vm, name, keys, |bytes| {
            bytes.put_u64(self.leak_bytes);
            bytes.put_varint(self.packs.len() as u64);
            for (number, pack) in &self.packs {
                bytes.put_u8(pack.home.kind().code());
                bytes.put_varint(u64::from(pack.volume));
                bytes.put_u64(number.0);
                bytes.put_varint(u64::from(pack.frames));
                bytes.put_bytes(&pack.bits);
            }
        })
    }
}

/// Parses the content between the envelope and the MAC.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) fn parse(content: &[u8]) -> std::result::Result<(Uuid, DeadFrames), String> {
    list_file::parse(content, fields)
}

fn fields(input: &mut Reader<'_>, vm: Uuid) -> std::result::Result<DeadFrames, String> {
    let text = |error: DecodeError| error.to_string();
    let mut dead = DeadFrames { leak_bytes: input.u64().map_err(text)?, ..DeadFrames::default() };
    for _ in 0..input.bounded(input.remaining() / LEAST_PACK_BYTES).map_err(text)? {
        let kind = PackKind::from_code(input.u8().map_err(text)?)
            .filter(|kind| *kind != PackKind::Shared)
            .ok_or("a pack of it is no VM's")?;
        let volume = u32::try_from(input.varint().map_err(text)?).map_err(|error| error.to_string())?;
        let number = PackNumber(input.u64().map_err(text)?);
        let frames = input.bounded(MAX_FRAMES as usize).map_err(text)? as u32;
        let bits = input.bytes(frames.div_ceil(8) as usize).map_err(text)?.to_vec();
        let home = PackHome::of(kind, vm);
        let pack = PackBits { home, volume, frames, bits };
        if (frames..frames.next_multiple_of(8)).any(|slot| pack.has(slot)) {
            return Err("a pack of it has dead frames beyond its end".into());
        }
        dead.packs.insert(number, pack);
    }
    Ok(dead)
}

/// Reads the list named by the log of a VM; without one no frame is dead.
/// # Errors
/// `Damaged`: then the VM may not be written, since another host may have read the list. Errors of the store.
pub(crate) fn read(pack_store: &PackStore, vm: Uuid, list: Option<&DeadList>) -> Result<DeadFrames> {
    let Some(list) = list else {
        return Ok(DeadFrames::default());
    };
    let name = LISTS.file_name(list.number);
    let dead = LISTS.read(pack_store, vm, (list.number, &list.hash), fields)?;
    dead.map_err(|detail| Error::Damaged {
        what: format!("list {name} of dead frames of VM {}", vm.simple()),
        detail: format!("{detail}; `copal repair leak` makes it anew"),
    })
}

/// Lists that are named by records below `next_number` of the VM's log have numbers below this one. So no list gets the
/// number of an earlier one, even if no list was in force in between.
fn floor(next_number: u64) -> u64 {
    next_number.saturating_mul(LISTS_OF_A_RECORD).min(MAX_SEQUENCE - LISTS_OF_A_RECORD)
}

/// Writes a list with a number above `before`; durable on return, and in force once a record names it. An
/// empty list is not written. The caller has read the VM's log below `next_number`.
/// # Errors
/// Errors of the store.
pub(crate) fn write(
    pack_store: &PackStore,
    vm: Uuid,
    before: Option<&DeadList>,
    next_number: u64,
    dead: &DeadFrames,
) -> Result<Option<DeadList>> {
    if dead.total() == 0 && dead.leak_bytes == 0 {
        return Ok(None);
    }
    let encode = |name: &str| dead.encode(vm, name, &pack_store.keys);
    let above = before.map_or(0, |before| before.number).max(floor(next_number));
    let (number, hash) = LISTS.write(pack_store, vm, above, encode)?;
    Ok(Some(DeadList { number, hash }))
}

/// Deletes the lists before the one in force. If `in_force` is `None`, it deletes those that were in force when the VM's
/// log ended at `next_number`: another process may have recorded a later one meanwhile. The caller has recorded which is
/// in force.
/// # Errors
/// Errors of the store.
pub(crate) fn drop_older(
    pack_store: &PackStore,
    vm: Uuid,
    in_force: Option<&DeadList>,
    next_number: u64,
) -> Result<()> {
    let in_force: Vec<u64> = in_force.iter().map(|list| list.number).collect();
    LISTS.drop_older(pack_store, vm, &in_force, floor(next_number))
}

#[cfg(test)]
mod tests {
    use super::*;

    const VM: Uuid = Uuid::from_bytes([7; 16]);

    fn location(pack: u64, slot: u32) -> FrameLocation {
        FrameLocation { home: PackHome::Private(VM), volume: 3, pack: PackNumber(pack), slot }
    }

    #[test]
    fn a_list_round_trips_only_with_its_place_and_key() {
        let keys = DomainKeys::derive(&[1; 32]);
        let mut dead = DeadFrames::default();
        assert!(dead.add(location(5, 0), 12) && dead.add(location(5, 11), 12) && dead.add(location(6, 3), 4));
        assert!(!dead.add(location(5, 11), 12), "twice");
        assert!(!dead.add(location(6, 4), 4), "no such frame");
        dead.leak_bytes = 17;
        assert_eq!((dead.total(), dead.count(PackNumber(5))), (3, 2));
        assert!(dead.has(PackNumber(6), 3) && !dead.has(PackNumber(6), 2));
        let bytes = dead.encode(VM, "dead.1", &keys);
        let read = |name: &str, vm, keys: &DomainKeys| LISTS.decode(&bytes, vm, name, keys, fields);
        assert_eq!(read("dead.1", VM, &keys), Ok(dead));
        assert!(read("dead.2", VM, &keys).is_err());
        assert!(read("dead.1", Uuid::nil(), &keys).is_err());
        assert!(read("dead.1", VM, &DomainKeys::derive(&[2; 32])).is_err());
    }

    /// Symptom: a list of more than eight packs with few frames each was called damaged, and nothing of the VM
    /// could be deleted before `copal repair leak`.
    /// Cause: the bound on the number of packs counted 15 bytes for one, which may have 12.
    /// Fix: the bound is the least that a pack takes.
    #[test]
    fn a_list_of_many_small_packs_is_read() {
        let keys = DomainKeys::derive(&[1; 32]);
        let mut dead = DeadFrames::default();
        assert!((0..500).all(|pack| dead.add(location(pack, 1), 3)));
        let bytes = dead.encode(VM, "dead.1", &keys);
        assert_eq!(LISTS.decode(&bytes, VM, "dead.1", &keys, fields), Ok(dead));
    }
}
