//! Where the chunks of a VM are whose own frames it gave up for popular ones.
//!
//! Files of the VM's volume of manifests, which a record of its log names. Recipes go on naming the frame
//! that the VM had: its id leads on from there, for as long as there is the VM.
//!
//! Format: docs/formats/backup-moved-frames.md v1
//! Memory: one list, 8 MiB.
//! Not here: which chunks move (`cleanup`).

use crate::broken::{self, Flaw};
use crate::catalog::fields::MovedList;
use crate::error::{Error, Result};
use crate::keys::{Keys, MAC_BYTES};
use crate::list_file::ListKind;
use crate::pack::{PackNumber, Spot, format::MAX_FRAMES};
use crate::pack_store::PackStore;
use crate::peers::ShortId;
use crate::volumes::Home;
use copal_codec::{DecodeError, ENVELOPE_LEN, Envelope, Format, Put, Reader};
use uuid::Uuid;

pub(crate) const FORMAT: Format =
    Format { magic: *b"COPALMOV", name: "list of moved frames", oldest: 1, version: 1, known_flags: 0 };

const LISTS: ListKind = ListKind { prefix: "moved.", max_file_bytes: 16 << 20 };

/// Most ids of a list: none is longer than its file may be, wherever its frames stand.
pub(crate) const MAX_IDS: usize = 1 << 18;
/// Number and volume.
const LEAST_PACK_BYTES: usize = 9;
/// Id, pack and slot.
const LEAST_FRAME_BYTES: usize = 18;

/// A chunk, and the popular frame of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MovedFrame {
    pub(crate) id: ShortId,
    pub(crate) volume: u32,
    pub(crate) pack: PackNumber,
    pub(crate) slot: u32,
}

impl MovedFrame {
    pub(crate) fn spot(&self) -> Spot {
        Spot { home: Home::Shared, volume: self.volume, pack: self.pack, slot: self.slot }
    }
}

/// See the module; ids ascend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MovedFrames(Vec<MovedFrame>);

impl MovedFrames {
    /// Of these; of two with one id the first counts.
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

    /// The packs it leads to, ascending, each once.
    pub(crate) fn packs(&self) -> Vec<(PackNumber, u32)> {
        let mut packs: Vec<_> = self.0.iter().map(|frame| (frame.pack, frame.volume)).collect();
        packs.sort_unstable();
        packs.dedup();
        packs
    }

    pub(crate) fn encode(&self, vm: Uuid, name: &str, keys: &Keys) -> Vec<u8> {
        let packs = self.packs();
        let mut bytes = vec![0; ENVELOPE_LEN];
        bytes.put_bytes(vm.as_bytes());
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
        let mac = keys.mac(name, &bytes[ENVELOPE_LEN..]);
        bytes.put_bytes(&mac);
        Envelope::seal(&FORMAT, 0, 0, &mut bytes);
        bytes
    }

    pub(crate) fn decode(
        bytes: &[u8],
        vm: Uuid,
        name: &str,
        keys: &Keys,
    ) -> std::result::Result<MovedFrames, String> {
        let (_, body) = Envelope::open(&FORMAT, bytes).map_err(|error| error.to_string())?;
        let at = body.len().checked_sub(MAC_BYTES).ok_or("it is too short for a list")?;
        let (content, mac) = body.split_at(at);
        if !keys.mac_fits(name, content, mac) {
            return Err("its seal does not fit: it was changed, or belongs elsewhere".into());
        }
        let (of, moved) = parse(content)?;
        match of == vm {
            true => Ok(moved),
            false => Err("it belongs to another VM".into()),
        }
    }
}

/// Reads what stands behind the envelope and before the MAC.
pub(crate) fn parse(content: &[u8]) -> std::result::Result<(Uuid, MovedFrames), String> {
    let mut input = Reader::new(content);
    let parsed = fields(&mut input, content.len()).map_err(|error| error.to_string())?;
    input.finish().map_err(|error| error.to_string())?;
    let (vm, moved) = parsed?;
    match moved.0.is_sorted_by(|one, next| one.id < next.id) {
        true => Ok((vm, moved)),
        false => Err("its ids do not ascend".into()),
    }
}

type Parsed = std::result::Result<(Uuid, MovedFrames), String>;

fn fields(input: &mut Reader<'_>, length: usize) -> std::result::Result<Parsed, DecodeError> {
    let vm = Uuid::from_bytes(input.array()?);
    let mut packs = Vec::new();
    for _ in 0..input.bounded((length / LEAST_PACK_BYTES).min(MAX_IDS))? {
        let pack = PackNumber(input.u64()?);
        let Ok(volume) = u32::try_from(input.varint()?) else {
            return Ok(Err("there are not so many volumes".into()));
        };
        packs.push((pack, volume));
    }
    let mut frames = Vec::new();
    for _ in 0..input.bounded((length / LEAST_FRAME_BYTES).min(MAX_IDS))? {
        let id = input.array()?;
        let Some(&(pack, volume)) = packs.get(input.bounded(packs.len())?) else {
            return Ok(Err("a frame of it is in no pack of it".into()));
        };
        frames.push(MovedFrame { id, volume, pack, slot: input.bounded(MAX_FRAMES as usize - 1)? as u32 });
    }
    Ok(Ok((vm, MovedFrames(frames))))
}

/// A list that the log of a VM names.
/// # Errors
/// `Damaged`: what it leads on cannot be read. Those of the store.
pub(crate) fn read(pack_store: &PackStore, vm: Uuid, list: &MovedList) -> Result<MovedFrames> {
    let name = LISTS.file_name(list.number);
    let file = LISTS.read(pack_store, vm, list.number, &list.hash)?;
    let moved = file.and_then(|file| MovedFrames::decode(&file, vm, &name, &pack_store.keys));
    moved.map_err(|detail| Error::Damaged {
        what: format!("list {name} of moved frames of VM {}", vm.simple()),
        detail: format!(
            "{detail}; the chunks that it leads to popular frames are not found, bring its file back"
        ),
    })
}

/// Writes a list behind those in force; durable on return, and in force once a record names it.
/// # Errors
/// Those of the store.
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

/// Deletes the lists that are not in force. The caller has put on record which are.
/// # Errors
/// Those of the store.
pub(crate) fn drop_older(pack_store: &PackStore, vm: Uuid, in_force: &[MovedList]) -> Result<()> {
    let in_force: Vec<u64> = in_force.iter().map(|list| list.number).collect();
    LISTS.drop_older(pack_store, vm, &in_force)
}

#[cfg(test)]
mod tests {
    use super::*;

    const VM: Uuid = Uuid::from_bytes([7; 16]);

    fn frame(id: u8, pack: u64, slot: u32) -> MovedFrame {
        MovedFrame { id: [id; 16], volume: 3, pack: PackNumber(pack), slot }
    }

    #[test]
    fn a_list_is_read_as_it_was_written_and_by_its_place_and_key_only() {
        let keys = Keys::derive(&[1; 32]);
        let moved = MovedFrames::of(vec![frame(9, 5, 8191), frame(1, 6, 0), frame(9, 6, 1), frame(4, 5, 2)]);
        let ids: Vec<u8> = moved.frames().iter().map(|frame| frame.id[0]).collect();
        assert_eq!(ids, [1, 4, 9]);
        assert_eq!(moved.frames()[2], frame(9, 5, 8191), "the first counts");
        let bytes = moved.encode(VM, "moved.1", &keys);
        let read = |name: &str, vm, keys: &Keys| MovedFrames::decode(&bytes, vm, name, keys);
        assert_eq!(read("moved.1", VM, &keys), Ok(moved));
        assert!(read("moved.2", VM, &keys).is_err());
        assert!(read("moved.1", Uuid::nil(), &keys).is_err());
        assert!(read("moved.1", VM, &Keys::derive(&[2; 32])).is_err());
    }

    #[test]
    fn what_no_list_can_say_is_refused() {
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
