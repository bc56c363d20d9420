//! The bytes of recipes, pages and roots, and the bytes their names are computed from.
//!
//! Format: docs/formats/backup-recipe.md v1
//!
//! Columns instead of rows: ids do not compress, but lengths and spots do, and spots come in runs.
//! A logical part (lengths and ids) is followed by a table of packs and runs of spots; only the logical
//! part is hashed for the name.

use super::{Entry, PAGE_SEGMENTS, Page, Ref, Root, SegmentRecipe};
use crate::pack::{PackNumber, Spot};
use copal_chunk::{ChunkId, SEGMENT_BYTES};
use copal_codec::{DecodeError, Put, Reader};

/// Level numbers: part of what is hashed, and the first byte of each frame.
pub(crate) const SEGMENT_LEVEL: u8 = 1;
pub(crate) const PAGE_LEVEL: u8 = 2;
pub(crate) const ROOT_LEVEL: u8 = 3;

/// Most entries a segment can have: the smallest cut there is, and a hole between any two.
const MAX_ENTRIES: usize = SEGMENT_BYTES / 1024;
/// Largest disk: 64 TiB.
pub(crate) const MAX_DISK_BYTES: u64 = 64 << 40;

impl SegmentRecipe {
    /// What the name is computed from.
    pub(crate) fn logical(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(8 + self.entries.len() * 36);
        bytes.put_varint(self.entries.len() as u64);
        for entry in &self.entries {
            bytes.put_varint(u64::from(entry.length) << 1 | u64::from(entry.chunk.is_none()));
        }
        put_ids(&mut bytes, self.entries.iter().filter_map(|entry| entry.chunk));
        bytes
    }

    /// The frame: level, logical part, spots.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![SEGMENT_LEVEL];
        bytes.extend_from_slice(&self.logical());
        put_spots(&mut bytes, self.entries.iter().filter_map(|entry| entry.chunk));
        bytes
    }

    /// Reads a frame; the entries must cover exactly `length` bytes.
    pub(crate) fn decode(bytes: &[u8], length: usize) -> Result<SegmentRecipe, String> {
        let mut input = level(bytes, SEGMENT_LEVEL)?;
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
        let mut refs = refs(&mut input, chunks)?.into_iter();
        input.finish().map_err(text)?;
        let entries = entries
            .into_iter()
            .map(|(hole, length)| Entry {
                length,
                chunk: if hole { None } else { refs.next() },
            })
            .collect();
        Ok(SegmentRecipe { entries })
    }
}

impl Page {
    /// What the name is computed from.
    pub(crate) fn logical(&self) -> Vec<u8> {
        logical_of_options(&self.segments)
    }

    /// The frame.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![PAGE_LEVEL];
        bytes.extend_from_slice(&self.logical());
        put_spots(&mut bytes, self.segments.iter().flatten().copied());
        bytes
    }

    /// Reads a frame; the page must have exactly `count` segments.
    pub(crate) fn decode(bytes: &[u8], count: usize) -> Result<Page, String> {
        let mut input = level(bytes, PAGE_LEVEL)?;
        let segments = options(&mut input, PAGE_SEGMENTS)?;
        input.finish().map_err(text)?;
        if segments.len() != count {
            return Err(format!("it has {} segments instead of {count}", segments.len()));
        }
        Ok(Page { segments })
    }

    /// Whether it says nothing: all hole.
    pub(crate) fn is_hole(&self) -> bool {
        self.segments.iter().all(Option::is_none)
    }
}

impl Root {
    /// What the name is computed from.
    pub(crate) fn logical(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.put_u64(self.size_bytes);
        bytes.extend_from_slice(&logical_of_options(&self.pages));
        bytes
    }

    /// The frame.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![ROOT_LEVEL];
        bytes.extend_from_slice(&self.logical());
        put_spots(&mut bytes, self.pages.iter().flatten().copied());
        bytes
    }

    /// Reads a frame.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Root, String> {
        let mut input = level(bytes, ROOT_LEVEL)?;
        let size_bytes = input.u64().map_err(text)?;
        if size_bytes > MAX_DISK_BYTES {
            return Err(format!("no disk has {size_bytes} bytes"));
        }
        let pages_wanted = super::segments_of(size_bytes).div_ceil(PAGE_SEGMENTS as u64) as usize;
        let pages = options(&mut input, pages_wanted)?;
        input.finish().map_err(text)?;
        if pages.len() != pages_wanted {
            return Err(format!("it has {} pages instead of {pages_wanted}", pages.len()));
        }
        Ok(Root { size_bytes, pages })
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

/// Count, a bitmap of what is there, ids.
fn logical_of_options(options: &[Option<Ref>]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(8 + options.len() * 33);
    bytes.put_varint(options.len() as u64);
    for eight in options.chunks(8) {
        let bits = eight
            .iter()
            .enumerate()
            .map(|(bit, option)| u8::from(option.is_some()) << bit);
        bytes.put_u8(bits.fold(0, |all, bit| all | bit));
    }
    put_ids(&mut bytes, options.iter().flatten().copied());
    bytes
}

fn options(input: &mut Reader<'_>, max: usize) -> Result<Vec<Option<Ref>>, String> {
    let count = input.bounded(max).map_err(text)?;
    let bitmap = input.bytes(count.div_ceil(8)).map_err(text)?;
    let there = |index: usize| bitmap[index / 8] >> (index % 8) & 1 == 1;
    if (count..bitmap.len() * 8).any(there) {
        return Err("its bitmap has bits beyond its end".into());
    }
    let refs = refs(input, (0..count).filter(|&index| there(index)).count())?;
    let mut refs = refs.into_iter();
    Ok((0..count)
        .map(|index| if there(index) { refs.next() } else { None })
        .collect())
}

fn put_ids(bytes: &mut Vec<u8>, refs: impl Iterator<Item = Ref>) {
    refs.for_each(|reference| bytes.put_bytes(&reference.id.0));
}

/// Table of packs in order of first use, then runs of consecutive slots.
fn put_spots(bytes: &mut Vec<u8>, refs: impl Iterator<Item = Ref>) {
    let mut packs: Vec<(u32, PackNumber)> = Vec::new();
    let mut runs: Vec<(usize, u32, u32)> = Vec::new();
    for Ref { spot, .. } in refs {
        let pack = (spot.volume, spot.pack);
        let index = packs.iter().rposition(|&known| known == pack).unwrap_or_else(|| {
            packs.push(pack);
            packs.len() - 1
        });
        match runs.last_mut() {
            Some((last, first, count)) if *last == index && *first + *count == spot.slot => *count += 1,
            _ => runs.push((index, spot.slot, 1)),
        }
    }
    bytes.put_varint(packs.len() as u64);
    for (volume, pack) in packs {
        bytes.put_varint(u64::from(volume));
        bytes.put_u64(pack.0);
    }
    bytes.put_varint(runs.len() as u64);
    for (index, first, count) in runs {
        bytes.put_varint(index as u64);
        bytes.put_varint(u64::from(first));
        bytes.put_varint(u64::from(count));
    }
}

/// Reads `count` ids, then their spots.
fn refs(input: &mut Reader<'_>, count: usize) -> Result<Vec<Ref>, String> {
    let ids = input.bytes(count * 32).map_err(text)?.as_chunks::<32>().0;
    let pack_count = input.bounded(count).map_err(text)?;
    let mut packs = Vec::with_capacity(pack_count);
    for _ in 0..pack_count {
        let volume = u32::try_from(input.varint().map_err(text)?).map_err(|error| error.to_string())?;
        packs.push((volume, PackNumber(input.u64().map_err(text)?)));
    }
    let run_count = input.bounded(count).map_err(text)?;
    let mut refs = Vec::with_capacity(count);
    for _ in 0..run_count {
        let index = input.varint().map_err(text)?;
        let first = input.varint().map_err(text)?;
        let run = input.bounded(count - refs.len()).map_err(text)?;
        let last = first.saturating_add(run as u64);
        let pack = usize::try_from(index).ok().and_then(|index| packs.get(index));
        let Some(&(volume, pack)) = pack.filter(|_| run > 0 && last <= u64::from(u32::MAX)) else {
            return Err("its runs of spots do not fit".into());
        };
        for slot in first as u32..last as u32 {
            refs.push(Ref {
                id: ChunkId(ids[refs.len()]),
                spot: Spot { volume, pack, slot },
            });
        }
    }
    if refs.len() != count {
        return Err(format!("{} of its {count} references have a spot", refs.len()));
    }
    Ok(refs)
}
