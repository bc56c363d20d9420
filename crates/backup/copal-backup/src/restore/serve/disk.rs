//! One disk of a snapshot with random access.
//!
//! A read goes from page to recipe to chunks, each from the cache if it is there. In a sequential stream the
//! chunks of the next segments are fetched together, of more segments the longer the stream is. Elsewhere only
//! the requested data is fetched.
//! Invariant: every byte comes from a chunk that was compared with its id (BAK-11), or from a hole.

use super::Lender;
use super::cache::ServeCache;
use super::streams::ReadStreams;
use crate::api::repository::Repository;
use crate::request::error::{Error, Result};
use crate::request::progress::{CancelFlag, Silent};
use crate::snapshot::fetch::{ChunkFetcher, ChunkTaker, WantedChunk};
use crate::snapshot::manifest::ManifestDisk;
use crate::snapshot::recipe::{
    DiskRoot, FrameRef, PAGE_BYTES, PAGE_SEGMENTS, RecipeEntry, RecipePage, SegmentRecipe, segment_length,
    segments_of,
};
use crate::snapshot::tree::TreeReader;
use copal_chunk::SEGMENT_BYTES;
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use uuid::Uuid;

/// Recipes of a page that are read together in a sequential stream.
const RECIPES_AHEAD: u64 = 16;

/// A disk of a snapshot. Shared between threads; every call may block on the store.
pub struct ServedDisk {
    lender: Arc<dyn Lender>,
    cache: Arc<ServeCache>,
    vm: Uuid,
    /// Snapshot and disk, for messages.
    what: String,
    name: String,
    size_bytes: u64,
    root: DiskRoot,
    streams: ReadStreams,
    /// Held while chunks are fetched ahead: the other reads of the stream wait for them.
    ahead: Mutex<()>,
}

/// A run of bytes of a disk with one property.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServedRun {
    /// Length in bytes, never 0.
    pub length: u64,
    /// Of an extent: it is a hole, which reads as zeros. Of differences: it differs.
    pub is_so: bool,
}

/// Position of an offset in a disk.
struct SegmentPlace {
    segment: u64,
    /// First byte of the segment.
    base: u64,
    /// Bytes of the segment before the offset.
    within: usize,
    /// Bytes of the segment.
    length: usize,
}

impl ServedDisk {
    pub(super) fn open(
        (lender, repository): (&Arc<dyn Lender>, &Repository),
        cache: &Arc<ServeCache>,
        vm: Uuid,
        what: String,
        disk: &ManifestDisk,
    ) -> Result<ServedDisk> {
        let mut tree = TreeReader::new(repository.parts().pack_store(), vm)?;
        let root = tree.root(&disk.root, disk.size_bytes)?;
        Ok(ServedDisk {
            lender: Arc::clone(lender),
            cache: Arc::clone(cache),
            vm,
            what,
            name: disk.name.clone(),
            size_bytes: disk.size_bytes,
            root,
            streams: ReadStreams::default(),
            ahead: Mutex::new(()),
        })
    }

    /// Its name in the VM.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its size.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Fills `buf` from `offset`. The range must lie within the disk.
    /// # Errors
    /// `Damaged`: a byte of the range cannot be read, which is logged once; other ranges can be. `Invalid`:
    /// outside of the disk. `Busy`; errors of the store.
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let length = buf.len() as u64;
        if offset.checked_add(length).is_none_or(|end| end > self.size_bytes) {
            return Err(Error::Invalid {
                reason: format!("{length} bytes at {offset} lie outside of {}", self.what),
            });
        }
        let repository = &*self.lender.lend()?;
        let _shared = repository.parts().enter()?;
        let stream = self.streams.note(offset, length);
        let mut done = 0;
        while done < buf.len() {
            let place = self.place(offset + done as u64);
            let take = (place.length - place.within).min(buf.len() - done);
            let part = &mut buf[done..done + take];
            let wanted = place.within..place.within + take;
            match self.recipe(repository, place.segment, stream.is_some())? {
                None => part.fill(0),
                Some((reference, recipe)) => {
                    self.read_segment(repository, &place, (&reference, &recipe), wanted, part, stream)?;
                }
            }
            done += take;
        }
        Ok(())
    }

    /// The extent at `offset`, which must lie within the disk. It ends with the segment at the latest, or
    /// with the page if that is a hole. An unreadable part counts as data.
    /// # Errors
    /// `Busy`; errors of the store that are not damage.
    pub fn extent_at(&self, offset: u64) -> Result<ServedRun> {
        let repository = &*self.lender.lend()?;
        let _shared = repository.parts().enter()?;
        let page = offset / PAGE_BYTES;
        let rest_of = |end: u64, is_so| ServedRun { length: end.min(self.size_bytes) - offset, is_so };
        if self.page_reference(page).is_none() {
            return Ok(rest_of((page + 1) * PAGE_BYTES, true));
        }
        let place = self.place(offset);
        let end = place.base + place.length as u64;
        match self.recipe(repository, place.segment, true) {
            Ok(None) => Ok(rest_of(end, true)),
            Ok(Some((_, recipe))) => {
                let (is_hole, until) = alike(&recipe, place.within, |entry| entry.chunk.is_none());
                Ok(rest_of(place.base + until as u64, is_hole))
            }
            Err(error) if error.is_corruption() => Ok(rest_of(end, false)),
            Err(error) => Err(error),
        }
    }

    /// Whether the bytes at `offset`, which must lie within this disk, may differ from those of `other`, a
    /// disk of another snapshot of this VM. A run that is not reported as different is equal.
    /// # Errors
    /// `Busy`; errors of the store that are not damage.
    pub fn difference_at(&self, other: &ServedDisk, offset: u64) -> Result<ServedRun> {
        let repository = &*self.lender.lend()?;
        let _shared = repository.parts().enter()?;
        let until =
            |end: u64, is_so| ServedRun { length: end.min(self.size_bytes).max(offset + 1) - offset, is_so };
        if offset >= other.size_bytes {
            return Ok(until(self.size_bytes, true));
        }
        let page = offset / PAGE_BYTES;
        let id = |reference: Option<&FrameRef>| reference.map(|reference| reference.id);
        let page_end = ((page + 1) * PAGE_BYTES).min(other.size_bytes);
        if id(self.page_reference(page)) == id(other.page_reference(page)) {
            return Ok(until(page_end, false));
        }
        let (place, theirs) = (self.place(offset), other.place(offset));
        let end = place.base + place.length.min(theirs.length) as u64;
        let recipes = self
            .recipe(repository, place.segment, true)
            .and_then(|ours| Ok((ours, other.recipe(repository, theirs.segment, true)?)));
        let (ours, others) = match recipes {
            Ok(recipes) => recipes,
            Err(error) if error.is_corruption() => return Ok(until(end, true)),
            Err(error) => return Err(error),
        };
        match (ours, others) {
            (None, None) => Ok(until(end, false)),
            (Some((ours, _)), Some((theirs, _))) if ours.id == theirs.id => Ok(until(end, false)),
            (ours, others) => {
                let hole = SegmentRecipe { entries: vec![RecipeEntry::new(SEGMENT_BYTES as u32, None)] };
                let ours = ours.as_ref().map_or(&hole, |(_, recipe)| recipe);
                let others = others.as_ref().map_or(&hole, |(_, recipe)| recipe);
                let (one, other) = (entry_at(ours, place.within), entry_at(others, theirs.within));
                let same_chunk = one.0 == other.0 && id(one.1.chunk.as_ref()) == id(other.1.chunk.as_ref());
                let both_holes = one.1.chunk.is_none() && other.1.chunk.is_none();
                let stop = one.0.end.min(other.0.end);
                Ok(until(end.min(place.base + stop as u64), !(same_chunk || both_holes)))
            }
        }
    }

    fn place(&self, offset: u64) -> SegmentPlace {
        let segment = offset / SEGMENT_BYTES as u64;
        let base = segment * SEGMENT_BYTES as u64;
        SegmentPlace {
            segment,
            base,
            within: (offset - base) as usize,
            length: segment_length(self.size_bytes, segment),
        }
    }

    fn page_reference(&self, page: u64) -> Option<&FrameRef> {
        self.root.pages.get(page as usize)?.as_ref()
    }

    fn page(&self, repository: &Repository, number: u64) -> Result<Option<Arc<RecipePage>>> {
        let Some(reference) = self.page_reference(number) else {
            return Ok(None);
        };
        if let Some(page) = self.cache.page(&reference.id) {
            return Ok(Some(page));
        }
        let read = self.again(repository, |tree| tree.page(Some(reference), self.size_bytes, number));
        let page = Arc::new(read.inspect_err(|error| {
            self.tell(repository, reference, number * PAGE_BYTES, PAGE_BYTES, error);
        })?);
        self.cache.keep_page(&reference.id, &page);
        Ok(Some(page))
    }

    /// The recipe of a segment, and its reference; `None`: the segment is a hole.
    fn recipe(
        &self,
        repository: &Repository,
        segment: u64,
        follows: bool,
    ) -> Result<Option<(FrameRef, Arc<SegmentRecipe>)>> {
        let number = segment / PAGE_SEGMENTS as u64;
        let Some(page) = self.page(repository, number)? else {
            return Ok(None);
        };
        let first = number * PAGE_SEGMENTS as u64;
        let named = |segment: u64| page.segments.get((segment - first) as usize).copied().flatten();
        let Some(reference) = named(segment) else {
            return Ok(None);
        };
        if let Some(recipe) = self.cache.recipe(&reference.id) {
            return Ok(Some((reference, recipe)));
        }
        let _turn = self.cache.turn(&reference.id);
        if let Some(recipe) = self.cache.recipe(&reference.id) {
            return Ok(Some((reference, recipe)));
        }
        let ahead = if follows { RECIPES_AHEAD } else { 1 };
        let last = (segment + ahead).min(first + PAGE_SEGMENTS as u64).min(segments_of(self.size_bytes));
        let is_cached = |reference: &FrameRef| self.cache.recipe(&reference.id).is_some();
        let next: Vec<(u64, FrameRef)> = (segment..last)
            .filter_map(|number| Some((number, named(number).filter(|next| !is_cached(next))?)))
            .collect();
        let read = self.again(repository, |tree| {
            tree.announce(next.iter().map(|(_, reference)| reference));
            let recipe = Arc::new(tree.segment(&reference, self.size_bytes, segment)?);
            self.cache.keep_recipe(&reference.id, &recipe);
            for (number, reference) in next.iter().filter(|(number, _)| *number != segment) {
                // Damage of a recipe ahead is reported only when it is needed.
                if let Ok(recipe) = tree.segment(reference, self.size_bytes, *number) {
                    self.cache.keep_recipe(&reference.id, &Arc::new(recipe));
                }
            }
            Ok(recipe)
        });
        let recipe = read.inspect_err(|error| {
            let base = segment * SEGMENT_BYTES as u64;
            self.tell(repository, &reference, base, SEGMENT_BYTES as u64, error);
        })?;
        Ok(Some((reference, recipe)))
    }

    /// Fills `part` with the bytes `wanted` of a segment.
    fn read_segment(
        &self,
        repository: &Repository,
        place: &SegmentPlace,
        (reference, recipe): (&FrameRef, &SegmentRecipe),
        wanted: Range<usize>,
        part: &mut [u8],
        stream: Option<u64>,
    ) -> Result<()> {
        if self.fill(recipe, &wanted, part).is_empty() {
            return Ok(());
        }
        if let Some(bytes) = stream {
            let _ahead = self.ahead.lock();
            // Another thread may have fetched it meanwhile.
            if self.fill(recipe, &wanted, part).is_empty() {
                return Ok(());
            }
            // Damage is reported below, if the caller needs the chunk.
            self.fetch_ahead(repository, place.segment, recipe, bytes)?;
        }
        let _turn = self.cache.turn(&reference.id);
        let missing = self.fill(recipe, &wanted, part);
        if missing.is_empty() {
            return Ok(());
        }
        let asked = missing.iter().filter_map(|(entry, at)| {
            Some(WantedChunk { chunk: entry.chunk?, length: entry.length, place: *at as u64 })
        });
        self.fetch_asked(repository, place.base, asked.collect(), &wanted, part)
    }

    /// Fetches chunks of the segment at `base`, and fills `part` with their bytes in `wanted`.
    fn fetch_asked(
        &self,
        repository: &Repository,
        base: u64,
        mut asked: Vec<WantedChunk>,
        wanted: &Range<usize>,
        part: &mut [u8],
    ) -> Result<()> {
        let part = Mutex::new(part);
        let takers = || {
            let part = PartTaker { cache: &self.cache, part: &part, wanted };
            Box::new(part) as Box<dyn ChunkTaker + '_>
        };
        let mut fetcher = ChunkFetcher::on_this_thread(repository.parts().pack_store());
        let mut is_again = false;
        loop {
            let mut lost = Vec::new();
            let mut note = |chunk: &WantedChunk, error: Error| {
                lost.push((*chunk, error));
                Ok(())
            };
            fetcher.fetch(&asked, &takers, &mut note)?;
            let Some((_, first)) = lost.first() else { return Ok(()) };
            if is_again || !self.may_have_moved(repository, first) {
                for (chunk, error) in &lost {
                    self.tell(repository, &chunk.chunk, base + chunk.place, u64::from(chunk.length), error);
                }
                return Err(lost.swap_remove(0).1);
            }
            is_again = true;
            asked = lost.into_iter().map(|(chunk, _)| chunk).collect();
        }
    }

    /// Fills `part` from the cache; returns the missing entries with their places in the segment.
    fn fill(
        &self,
        recipe: &SegmentRecipe,
        wanted: &Range<usize>,
        part: &mut [u8],
    ) -> Vec<(RecipeEntry, usize)> {
        let mut missing = Vec::new();
        let mut at = 0;
        for entry in &recipe.entries {
            let end = at + entry.length as usize;
            if at >= wanted.end {
                break;
            }
            if end > wanted.start {
                match &entry.chunk {
                    None => {
                        let (from, to) = (at.max(wanted.start), end.min(wanted.end));
                        part[from - wanted.start..to - wanted.start].fill(0);
                    }
                    Some(chunk) => match self.cache.chunk(&chunk.id) {
                        Some(bytes) => copy(&bytes, at, wanted, part),
                        None => missing.push((*entry, at)),
                    },
                }
            }
            at = end;
        }
        missing
    }

    /// Fetches the chunks of this segment that are not cached, and those of the next segments: as many bytes as
    /// the stream has read so far, up to a share of the cache. Those that are damaged are left out.
    fn fetch_ahead(
        &self,
        repository: &Repository,
        segment: u64,
        recipe: &SegmentRecipe,
        stream_bytes: u64,
    ) -> Result<()> {
        let budget = stream_bytes.min(self.cache.ahead_bytes());
        let mut bytes = 0;
        let mut wanted = Vec::new();
        let mut add = |recipe: &SegmentRecipe| {
            let chunks = WantedChunk::of_segment(recipe, 0);
            wanted.extend(chunks.filter(|wanted| self.cache.chunk(&wanted.chunk.id).is_none()));
            bytes += recipe.entries.iter().map(|entry| u64::from(entry.length)).sum::<u64>();
            bytes
        };
        let mut fetched = add(recipe);
        for next in segment + 1..segments_of(self.size_bytes) {
            if fetched + SEGMENT_BYTES as u64 > budget {
                break;
            }
            match self.recipe(repository, next, true) {
                Ok(Some((_, recipe))) => fetched = add(&recipe),
                Ok(None) => {}
                // Reported when it is needed.
                Err(_) => break,
            }
        }
        let takers = || Box::new(CacheTaker(&self.cache)) as Box<dyn ChunkTaker + '_>;
        ChunkFetcher::new(repository.parts().pack_store(), None).fetch(&wanted, &takers, &mut |_, _| Ok(()))
    }

    /// Reads nodes of the tree; repeats that if packs may have been rewritten meanwhile.
    fn again<T>(
        &self,
        repository: &Repository,
        mut read: impl FnMut(&mut TreeReader<'_>) -> Result<T>,
    ) -> Result<T> {
        let pack_store = repository.parts().pack_store();
        let mut tree = TreeReader::new(pack_store, self.vm)?;
        match read(&mut tree) {
            Err(error) if self.may_have_moved(repository, &error) => {
                read(&mut TreeReader::new(pack_store, self.vm)?)
            }
            outcome => outcome,
        }
    }

    /// Whether another process may have rewritten the packs of a damaged reference; the index is then up to
    /// date. In a store with one writer nothing moves under a reader.
    fn may_have_moved(&self, repository: &Repository, error: &Error) -> bool {
        let parts = repository.parts();
        if !error.is_corruption() || !parts.pack_store().volumes.store.is_replicated() {
            return false;
        }
        parts.locks().note_change();
        parts.catch_up();
        parts.index_vm(self.vm, &Silent, &CancelFlag::new()).is_ok()
    }

    fn tell(&self, repository: &Repository, reference: &FrameRef, offset: u64, length: u64, error: &Error) {
        if error.is_corruption() && self.cache.is_new_report(&reference.id) {
            repository.parts().sync_damage();
            tracing::error!(
                disk = self.what,
                offset,
                length,
                %error,
                "unreadable range of an exported disk; readers get an I/O error"
            );
        }
    }
}

/// Keeps chunks in the cache.
struct CacheTaker<'c>(&'c ServeCache);

impl ChunkTaker for CacheTaker<'_> {
    fn take(&mut self, wanted: &WantedChunk, raw: &[u8]) -> Result<()> {
        self.0.keep_chunk(&wanted.chunk.id, &raw.into());
        Ok(())
    }
}

/// Keeps chunks of a segment in the cache, and copies the bytes that a read wants.
struct PartTaker<'c> {
    cache: &'c ServeCache,
    part: &'c Mutex<&'c mut [u8]>,
    wanted: &'c Range<usize>,
}

impl ChunkTaker for PartTaker<'_> {
    fn take(&mut self, chunk: &WantedChunk, raw: &[u8]) -> Result<()> {
        self.cache.keep_chunk(&chunk.chunk.id, &raw.into());
        copy(raw, chunk.place as usize, self.wanted, &mut self.part.lock());
        Ok(())
    }
}

/// Copies the wanted bytes of a chunk that begins at `at` of its segment.
fn copy(bytes: &[u8], at: usize, wanted: &Range<usize>, part: &mut [u8]) {
    let (from, to) = (at.max(wanted.start), (at + bytes.len()).min(wanted.end));
    part[from - wanted.start..to - wanted.start].copy_from_slice(&bytes[from - at..to - at]);
}

/// The entry that covers byte `within` of a segment, and its range.
fn entry_at(recipe: &SegmentRecipe, within: usize) -> (Range<usize>, RecipeEntry) {
    let mut at = 0;
    for entry in &recipe.entries {
        let place = at..at + entry.length as usize;
        if place.contains(&within) {
            return (place, *entry);
        }
        at = place.end;
    }
    // Recipes cover their segments; decoding has checked that.
    unreachable!("byte {within} lies outside of its recipe")
}

/// The property of byte `within` of a segment, and the end of the entries that share it.
fn alike(recipe: &SegmentRecipe, within: usize, is: impl Fn(&RecipeEntry) -> bool) -> (bool, usize) {
    let (mut at, mut found) = (0, None);
    for entry in &recipe.entries {
        let end = at + entry.length as usize;
        match found {
            None if end > within => found = Some(is(entry)),
            Some(found) if found != is(entry) => return (found, at),
            _ => {}
        }
        at = end;
    }
    (found.unwrap_or(false), at)
}
