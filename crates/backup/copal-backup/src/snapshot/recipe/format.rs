//! Byte format of recipes, pages and roots, and the bytes that determine their names.
//!
//! Format: docs/formats/backup-recipe.md v2
//!
//! Columns instead of rows: ids do not compress, but lengths and locations do, and locations come in runs. A
//! logical part (lengths and ids) is followed by a table of packs and runs of locations. Only the logical
//! part is hashed for the name.

use super::{DiskRoot, FrameRef, PAGE_SEGMENTS, RecipeEntry, RecipePage, SegmentRecipe};
use crate::packs::home::PackHome;
use crate::packs::pack::{FrameLocation, PackNumber};
use copal_chunk::{ChunkId, SEGMENT_BYTES};
use copal_codec::{DecodeError, Put, Reader};
use uuid::Uuid;

/// Level numbers: part of the hashed bytes, and the first byte of each frame.
pub(crate) const SEGMENT_LEVEL: u8 = 1;
pub(crate) const PAGE_LEVEL: u8 = 2;
pub(crate) const ROOT_LEVEL: u8 = 3;

/// Set in the first byte of a segment recipe of version 2, which names the owner of each pack. Written only
/// where version 1 cannot: that has shared packs only.
const VERSION_2: u8 = 0x10;

/// Most entries of a segment: the smallest chunks, and a hole between any two.
const MAX_ENTRIES: usize = SEGMENT_BYTES / 1024;
/// Largest disk: 64 TiB.
pub(crate) const MAX_DISK_BYTES: u64 = 64 << 40;

impl SegmentRecipe {
    /// The bytes that determine the name.
    pub(crate) fn logical(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(8 + self.entries.len() * 36);
        bytes.put_varint(self.entries.len() as u64);
        for entry in &self.entries {
            bytes.put_varint(u64::from(entry.length) << 1 | u64::from(entry.chunk.is_none()));
        }
        put_ids(&mut bytes, self.entries.iter().filter_map(|entry| entry.chunk));
        bytes
    }

    /// Encodes the frame: level, logical part, locations.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let locations = || {
            let entries = self.entries.iter();
            entries.filter_map(|entry| Some((entry.chunk?.location, entry.is_unresolved)))
        };
        let needs_2 = |(location, is_unresolved): (FrameLocation, bool)| {
            location.home != PackHome::Shared || is_unresolved
        };
        let version = if locations().any(needs_2) { VERSION_2 } else { 0 };
        let mut bytes = vec![SEGMENT_LEVEL | version];
        bytes.extend_from_slice(&self.logical());
        put_locations(&mut bytes, locations(), version != 0);
        bytes
    }

    /// Decodes a frame of a VM; the entries must cover exactly `length` bytes.
    pub(crate) fn decode(bytes: &[u8], length: usize, vm: Uuid) -> Result<SegmentRecipe, String> {
        let is_2 = bytes.first() == Some(&(SEGMENT_LEVEL | VERSION_2));
        let mut input = level(bytes, SEGMENT_LEVEL | if is_2 { VERSION_2 } else { 0 })?;
        let count = input.bounded(MAX_ENTRIES).map_err(text)?;
        let mut entries = Vec::with_capacity(count);
        let mut sum = 0u64;
        let mut chunks = 0;
        for _ in 0..count {
            let coded = input.varint().map_err(text)?;
            sum = sum.saturating_add(coded >> 1);
            if coded >> 1 == 0 || sum > length as u64 {
                return Err("its entries do not fit its segment".into());
            }
            let hole = coded & 1 == 1;
            chunks += usize::from(!hole);
            entries.push((hole, (coded >> 1) as u32));
        }
        if sum != length as u64 {
            return Err(format!("its entries cover {sum} of {length} bytes"));
        }
        let homes = if is_2 { HomeTable::OfEach(vm) } else { HomeTable::All(PackHome::Shared) };
        let mut refs = refs(&mut input, chunks, homes)?.into_iter();
        input.finish().map_err(text)?;
        let entries = entries.into_iter().map(|(hole, length)| {
            let chunk = if hole { None } else { refs.next() };
            RecipeEntry {
                length,
                chunk: chunk.map(|(reference, _)| reference),
                is_unresolved: chunk.is_some_and(|(_, is_unresolved)| is_unresolved),
            }
        });
        Ok(SegmentRecipe { entries: entries.collect() })
    }
}

impl RecipePage {
    /// The bytes that determine the name.
    pub(crate) fn logical(&self) -> Vec<u8> {
        logical_of_options(&self.segments)
    }

    /// Encodes the frame.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![PAGE_LEVEL];
        bytes.extend_from_slice(&self.logical());
        put_locations(&mut bytes, locations_of(&self.segments), false);
        bytes
    }

    /// Decodes a frame of a VM; the page must have exactly `count` segments.
    pub(crate) fn decode(bytes: &[u8], count: usize, vm: Uuid) -> Result<RecipePage, String> {
        let mut input = level(bytes, PAGE_LEVEL)?;
        let segments = options(&mut input, PAGE_SEGMENTS, vm)?;
        input.finish().map_err(text)?;
        if segments.len() != count {
            return Err(format!("it has {} segments instead of {count}", segments.len()));
        }
        Ok(RecipePage { segments })
    }

    /// Whether the page consists of holes only.
    pub(crate) fn is_hole(&self) -> bool {
        self.segments.iter().all(Option::is_none)
    }
}

impl DiskRoot {
    /// The bytes that determine the name.
    pub(crate) fn logical(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.put_u64(self.size_bytes);
        bytes.extend_from_slice(&logical_of_options(&self.pages));
        bytes
    }

    /// Encodes the frame.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![ROOT_LEVEL];
        bytes.extend_from_slice(&self.logical());
        put_locations(&mut bytes, locations_of(&self.pages), false);
        bytes
    }

    /// Decodes a frame of a VM.
    pub(crate) fn decode(bytes: &[u8], vm: Uuid) -> Result<DiskRoot, String> {
        let mut input = level(bytes, ROOT_LEVEL)?;
        let size_bytes = input.u64().map_err(text)?;
        if size_bytes > MAX_DISK_BYTES {
            return Err(format!("no disk has {size_bytes} bytes"));
        }
        let pages_wanted = super::segments_of(size_bytes).div_ceil(PAGE_SEGMENTS as u64) as usize;
        let pages = options(&mut input, pages_wanted, vm)?;
        input.finish().map_err(text)?;
        if pages.len() != pages_wanted {
            return Err(format!("it has {} pages instead of {pages_wanted}", pages.len()));
        }
        Ok(DiskRoot { size_bytes, pages })
    }
}

fn text(error: DecodeError) -> String {
    error.to_string()
}

fn level(bytes: &[u8], wanted: u8) -> Result<Reader<'_>, String> {
    let mut input = Reader::new(bytes);
    let found = input.u8().map_err(text)?;
    if found != wanted {
        return Err(format!("it is of level {found} instead of {wanted}"));
    }
    Ok(input)
}

/// Encodes the count, a bitmap of the present references, and their ids.
fn logical_of_options(options: &[Option<FrameRef>]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(8 + options.len() * 33);
    bytes.put_varint(options.len() as u64);
    for eight in options.chunks(8) {
        let bits = eight.iter().enumerate().map(|(bit, option)| u8::from(option.is_some()) << bit);
        bytes.put_u8(bits.fold(0, |all, bit| all | bit));
    }
    put_ids(&mut bytes, options.iter().flatten().copied());
    bytes
}

fn options(input: &mut Reader<'_>, max: usize, vm: Uuid) -> Result<Vec<Option<FrameRef>>, String> {
    let count = input.bounded(max).map_err(text)?;
    let bitmap = input.bytes(count.div_ceil(8)).map_err(text)?;
    let there = |index: usize| bitmap[index / 8] >> (index % 8) & 1 == 1;
    if (count..bitmap.len() * 8).any(there) {
        return Err("its bitmap has bits beyond its end".into());
    }
    let wanted = (0..count).filter(|&index| there(index)).count();
    let mut refs = refs(input, wanted, HomeTable::All(PackHome::Recipes(vm)))?.into_iter();
    let mut option = |index| if there(index) { refs.next() } else { None };
    Ok((0..count).map(|index| option(index).map(|(reference, _)| reference)).collect())
}

fn put_ids(bytes: &mut Vec<u8>, refs: impl Iterator<Item = FrameRef>) {
    refs.for_each(|reference| bytes.put_bytes(&reference.id.0));
}

fn locations_of(options: &[Option<FrameRef>]) -> impl Iterator<Item = (FrameLocation, bool)> {
    options.iter().flatten().map(|reference| (reference.location, false))
}

/// Encodes a table of packs in order of first use, then runs of consecutive slots. Version 2 adds a flag to
/// each volume (the pack is the VM's own) and to each run (its chunks lack an answer).
fn put_locations(bytes: &mut Vec<u8>, locations: impl Iterator<Item = (FrameLocation, bool)>, is_2: bool) {
    let mut packs: Vec<FrameLocation> = Vec::new();
    let mut runs: Vec<(usize, u32, u64, bool)> = Vec::new();
    for (location, is_unresolved) in locations {
        let same = |known: &FrameLocation| {
            (known.home, known.volume, known.pack) == (location.home, location.volume, location.pack)
        };
        let index = packs.iter().rposition(same).unwrap_or_else(|| {
            packs.push(location);
            packs.len() - 1
        });
        match runs.last_mut() {
            Some((last, first, count, unresolved))
                if (*last, *unresolved) == (index, is_unresolved)
                    && u64::from(*first) + *count == u64::from(location.slot) =>
            {
                *count += 1;
            }
            _ => runs.push((index, location.slot, 1, is_unresolved)),
        }
    }
    let flagged = |number: u64, flag: bool| {
        if is_2 { number << 1 | u64::from(flag) } else { number }
    };
    bytes.put_varint(packs.len() as u64);
    for location in packs {
        bytes.put_varint(flagged(u64::from(location.volume), location.home != PackHome::Shared));
        bytes.put_u64(location.pack.0);
    }
    bytes.put_varint(runs.len() as u64);
    for (index, first, count, is_unresolved) in runs {
        bytes.put_varint(index as u64);
        bytes.put_varint(u64::from(first));
        bytes.put_varint(flagged(count, is_unresolved));
    }
}

/// Owners of the packs in a table.
#[derive(Clone, Copy)]
enum HomeTable {
    /// All packs belong to one home, and carry no flag.
    All(PackHome),
    /// Each pack belongs to the domain or to this VM, by its flag (version 2).
    OfEach(Uuid),
}

impl HomeTable {
    /// A number, and the flag that version 2 keeps in its lowest bit.
    fn split(self, number: u64) -> (u64, bool) {
        match self {
            HomeTable::All(_) => (number, false),
            HomeTable::OfEach(_) => (number >> 1, number & 1 == 1),
        }
    }

    fn of(self, is_private: bool) -> PackHome {
        match self {
            HomeTable::All(home) => home,
            HomeTable::OfEach(vm) if is_private => PackHome::Private(vm),
            HomeTable::OfEach(_) => PackHome::Shared,
        }
    }
}

/// Decodes `count` ids, then their locations.
fn refs(input: &mut Reader<'_>, count: usize, homes: HomeTable) -> Result<Vec<(FrameRef, bool)>, String> {
    let ids = input.bytes(count * 32).map_err(text)?.as_chunks::<32>().0;
    let pack_count = input.bounded(count).map_err(text)?;
    let mut packs = Vec::with_capacity(pack_count);
    for _ in 0..pack_count {
        let (volume, is_private) = homes.split(input.varint().map_err(text)?);
        let volume = u32::try_from(volume).map_err(|error| error.to_string())?;
        packs.push((homes.of(is_private), volume, PackNumber(input.u64().map_err(text)?)));
    }
    let run_count = input.bounded(count).map_err(text)?;
    let mut refs = Vec::with_capacity(count);
    for _ in 0..run_count {
        let index = input.varint().map_err(text)?;
        let first = input.varint().map_err(text)?;
        let (run, is_unresolved) = homes.split(input.varint().map_err(text)?);
        let last = first.saturating_add(run);
        let pack = usize::try_from(index).ok().and_then(|index| packs.get(index));
        let fits = (1..=(count - refs.len()) as u64).contains(&run) && last <= u64::from(u32::MAX);
        let Some(&(home, volume, pack)) = pack.filter(|_| fits) else {
            return Err("its runs of locations do not fit".into());
        };
        for slot in first as u32..last as u32 {
            let location = FrameLocation { home, volume, pack, slot };
            let id = ChunkId(ids[refs.len()]);
            refs.push((FrameRef { id, location }, is_unresolved));
        }
    }
    if refs.len() != count {
        return Err(format!("{} of its {count} references have a location", refs.len()));
    }
    Ok(refs)
}
