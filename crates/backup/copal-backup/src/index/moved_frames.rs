//! List of a VM's moved frames: the popular frames of chunks whose own frames the VM gave up.
//!
//! Files in the VM's volume of manifests, named by a record of the VM's log. Recipes still name the VM's
//! former frame. The list maps the id of its chunk to the popular frame, for as long as the VM exists.
//!
//! Format: docs/formats/backup-moved-frames.md v1
//! Memory: one list, 8 MiB.
//! Not here: the choice of chunks to move (`consolidate`).

use crate::catalog::fields::MovedList;
#[cfg(any(test, feature = "fuzz"))]
use crate::index::list_file;
use crate::index::list_file::ListKind;
use crate::keys::DomainKeys;
use crate::packs::home::PackHome;
use crate::packs::pack::{FrameLocation, PackNumber, format::MAX_FRAMES};
use crate::packs::pack_store::PackStore;
use crate::request::error::{Error, Result};
use crate::request::peers::ShortId;
use crate::rules::broken::{self, Flaw};
use copal_codec::{DecodeError, Format, Put, Reader};
use uuid::Uuid;

pub(crate) const FORMAT: Format =
    Format { magic: *b"COPALMOV", name: "list of moved frames", oldest: 1, version: 1, known_flags: 0 };

const LISTS: ListKind = ListKind { format: &FORMAT, prefix: "moved.", max_file_bytes: 16 << 20 };

/// Most ids of a list; such a list never exceeds the limit of its file.
pub(crate) const MAX_IDS: usize = 1 << 18;
/// Number and volume.
const LEAST_PACK_BYTES: usize = 9;
/// Id, pack and slot.
const LEAST_FRAME_BYTES: usize = 18;

/// A chunk and its popular frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MovedFrame {
    pub(crate) id: ShortId,
    pub(crate) volume: u32,
    pub(crate) pack: PackNumber,
    pub(crate) slot: u32,
}

impl MovedFrame {
    pub(crate) fn location(&self) -> FrameLocation {
        FrameLocation { home: PackHome::Shared, volume: self.volume, pack: self.pack, slot: self.slot }
    }
}

/// Moved frames of one list; ids ascend. See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MovedFrames(Vec<MovedFrame>);

impl MovedFrames {
    /// Sorts frames; the first of several with one id counts.
    pub(crate) fn of(mut frames: Vec<MovedFrame>) -> MovedFrames {
        frames.sort_by_key(|frame| frame.id);
        frames.dedup_by_key(|frame| frame.id);
        MovedFrames(frames)
    }

    pub(crate) fn frames(&self) -> &[MovedFrame] {
        &self.0
    }

    pub(crate) fn into_frames(self) -> Vec<MovedFrame> {
        self.0
    }

    /// The packs of its frames, ascending, each once.
    pub(crate) fn packs(&self) -> Vec<(PackNumber, u32)> {
        let mut packs: Vec<_> = self.0.iter().map(|frame| (frame.pack, frame.volume)).collect();
        packs.sort_unstable();
        packs.dedup();
        packs
    }

    pub(crate) fn encode(&self, vm: Uuid, name: &str, keys: &DomainKeys) -> Vec<u8> {
        LISTS.encode(vm, name, keys, |bytes| {
            let packs = self.packs();
            bytes.put_varint(packs.len() as u64);
            for (pack, volume) in &packs {
                bytes.put_u64(pack.0);
                bytes.put_varint(u64::from(*volume));
            }
            bytes.put_varint(self.0.len() as u64);
            for frame in &self.0 {
                let pack = packs.binary_search(&(frame.pack, frame.volume));
                bytes.put_bytes(&frame.id);
                bytes.put_varint(pack.expect("the packs are those of the frames") as u64);
                bytes.put_varint(u64::from(frame.slot));
            }
        })
    }
}

/// Decodes the list file of a VM.
#[cfg(test)]
pub(crate) fn decode(
    bytes: &[u8],
    vm: Uuid,
    name: &str,
    keys: &DomainKeys,
) -> std::result::Result<MovedFrames, String> {
    LISTS.decode(bytes, vm, name, keys, fields)
}

/// Parses the content between the envelope and the MAC.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) fn parse(content: &[u8]) -> std::result::Result<(Uuid, MovedFrames), String> {
    list_file::parse(content, fields)
}

fn fields(input: &mut Reader<'_>, _vm: Uuid) -> std::result::Result<MovedFrames, String> {
    let text = |error: DecodeError| error.to_string();
    let mut packs = Vec::new();
    for _ in 0..input.bounded((input.remaining() / LEAST_PACK_BYTES).min(MAX_IDS)).map_err(text)? {
        let pack = PackNumber(input.u64().map_err(text)?);
        let volume = u32::try_from(input.varint().map_err(text)?);
        packs.push((pack, volume.map_err(|_| "there are not so many volumes")?));
    }
    let mut frames = Vec::new();
    for _ in 0..input.bounded((input.remaining() / LEAST_FRAME_BYTES).min(MAX_IDS)).map_err(text)? {
        let id = input.array().map_err(text)?;
        let at = input.bounded(packs.len()).map_err(text)?;
        let (pack, volume) = *packs.get(at).ok_or("a frame of it is in no pack of it")?;
        let slot = input.bounded(MAX_FRAMES as usize - 1).map_err(text)? as u32;
        frames.push(MovedFrame { id, volume, pack, slot });
    }
    match frames.is_sorted_by(|one, next| one.id < next.id) {
        true => Ok(MovedFrames(frames)),
        false => Err("its ids do not ascend".into()),
    }
}

/// Reads a list named by the log of a VM.
/// # Errors
/// `Damaged`: its chunks cannot be resolved. Errors of the store.
pub(crate) fn read(pack_store: &PackStore, vm: Uuid, list: &MovedList) -> Result<MovedFrames> {
    let name = LISTS.file_name(list.number);
    let moved = LISTS.read(pack_store, vm, (list.number, &list.hash), fields)?;
    moved.map_err(|detail| Error::Damaged {
        what: format!("list {name} of moved frames of VM {}", vm.simple()),
        detail: format!("{detail}; the chunks in it are not found until its file is restored"),
    })
}

/// Writes a list with a number above those in force; durable on return, and in force once a record names it.
/// # Errors
/// Errors of the store.
pub(crate) fn write(
    pack_store: &PackStore,
    vm: Uuid,
    in_force: &[MovedList],
    moved: &MovedFrames,
) -> Result<MovedList> {
    let newest = in_force.iter().map(|list| list.number).max().unwrap_or(0);
    let ids = moved.0.len() as u32;
    let encode = |name: &str| moved.encode(vm, name, &pack_store.keys);
    if broken::by(Flaw::NamesUnwritten) {
        let number = newest + 1;
        let hash = *blake3::hash(&encode(&LISTS.file_name(number))).as_bytes();
        return Ok(MovedList { number, ids, hash });
    }
    let (number, hash) = LISTS.write(pack_store, vm, newest, encode)?;
    Ok(MovedList { number, ids, hash })
}

/// Deletes the lists that are not in force. The caller has recorded which are.
/// # Errors
/// Errors of the store.
pub(crate) fn drop_older(pack_store: &PackStore, vm: Uuid, in_force: &[MovedList]) -> Result<()> {
    let in_force: Vec<u64> = in_force.iter().map(|list| list.number).collect();
    LISTS.drop_older(pack_store, vm, &in_force, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const VM: Uuid = Uuid::from_bytes([7; 16]);

    fn frame(id: u8, pack: u64, slot: u32) -> MovedFrame {
        MovedFrame { id: [id; 16], volume: 3, pack: PackNumber(pack), slot }
    }

    #[test]
    fn a_list_round_trips_only_with_its_place_and_key() {
        let keys = DomainKeys::derive(&[1; 32]);
        let moved = MovedFrames::of(vec![frame(9, 5, 8191), frame(1, 6, 0), frame(9, 6, 1), frame(4, 5, 2)]);
        let ids: Vec<u8> = moved.frames().iter().map(|frame| frame.id[0]).collect();
        assert_eq!(ids, [1, 4, 9]);
        assert_eq!(moved.frames()[2], frame(9, 5, 8191), "the first counts");
        let bytes = moved.encode(VM, "moved.1", &keys);
        let read = |name: &str, vm, keys: &DomainKeys| decode(&bytes, vm, name, keys);
        assert_eq!(read("moved.1", VM, &keys), Ok(moved));
        assert!(read("moved.2", VM, &keys).is_err());
        assert!(read("moved.1", Uuid::nil(), &keys).is_err());
        assert!(read("moved.1", VM, &DomainKeys::derive(&[2; 32])).is_err());
    }

    #[test]
    fn malformed_lists_are_refused() {
        let content = |packs: u64, ids: &[u8], pack: u64, slot: u64| {
            let mut bytes = VM.as_bytes().to_vec();
            bytes.put_varint(packs);
            for _ in 0..packs.min(2) {
                bytes.put_u64(1);
                bytes.put_varint(0);
            }
            bytes.put_varint(ids.len() as u64);
            for id in ids {
                bytes.put_bytes(&[*id; 16]);
                bytes.put_varint(pack);
                bytes.put_varint(slot);
            }
            bytes
        };
        assert!(parse(&content(1, &[1, 2], 0, 3)).is_ok());
        for (packs, ids, pack, slot) in [
            (1, &[2, 1][..], 0, 3),
            (1, &[1, 1], 0, 3),
            (1, &[1, 2], 1, 3),
            (0, &[1], 0, 3),
            (1, &[1], 0, u64::from(MAX_FRAMES)),
            (1 << 40, &[1], 0, 3),
        ] {
            let refused = parse(&content(packs, ids, pack, slot));
            assert!(refused.is_err(), "{packs} {ids:?} {pack} {slot}");
        }
        assert!(parse(&content(1, &[1], 0, 3)[..40]).is_err());
    }
}
