//! Restore: writes one disk of a snapshot into a target.
//!
//! The calling thread walks the tree and collects the chunks of a part of the disk, a hundred MiB or more. They
//! are fetched together (`snapshot::fetch`): pack after pack, so the bytes of the disk come in any order. The
//! threads that decode chunks write them at their places. An ordered target is written by the calling thread
//! alone, a smaller part at a time.
//!
//! Memory: independent of the disk. Chunks of a part are known by their references; their bytes are in memory
//! only on their way, but for an ordered target.

mod block_edges;
mod ordered_window;
mod restore_job;
mod run_writer;
pub mod serve;

use crate::packs::pack_store::PackStore;
use crate::request::error::{Error, Result};
use crate::request::progress::{CancelFlag, Progress, Stage};
use crate::request::{RestoreRequest, RestoreSummary};
use crate::snapshot::fetch::{ChunkFetcher, ChunkTaker, WantedChunk};
use crate::snapshot::manifest::{Manifest, ManifestDisk};
use crate::snapshot::recipe::{PAGE_BYTES, PAGE_SEGMENTS, SegmentRecipe, segment_length};
use crate::snapshot::tree::TreeReader;
use block_edges::BlockEdges;
use copal_chunk::SEGMENT_BYTES;
use copal_disk::target::Target;
use ordered_window::{OrderedWindow, WindowTaker};
use restore_job::RestoreJob;
use run_writer::RunWriter;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Memory for a chunk of the part that is being restored: its reference, and an incomplete block.
const CHUNK_MEMORY_BYTES: u64 = 4096;
/// Most chunks of a part: more of them save few reads. On average they are 150 MiB of disk.
const MAX_CHUNKS: u64 = 8192;

/// Restores one disk.
pub(crate) fn run(
    pack_store: &PackStore,
    manifest: &Manifest,
    disk: &ManifestDisk,
    request: &RestoreRequest,
    target: &dyn Target,
    progress: &dyn Progress,
    cancel: &CancelFlag,
) -> Result<RestoreSummary> {
    let started = Instant::now();
    progress.stage(Stage::Restore, &disk.name, disk.data_bytes);
    target.begin(disk.size_bytes)?;
    let job = RestoreJob {
        size_bytes: disk.size_bytes,
        target,
        progress,
        edges: BlockEdges::new(disk.size_bytes),
        written_bytes: AtomicU64::new(0),
    };
    // The rest of the memory is for batches on their way.
    let max_bytes = (request.memory_bytes / 4 * 3).max(SEGMENT_BYTES as u64);
    let mut part = DiskPart {
        job: &job,
        fetcher: ChunkFetcher::new(pack_store, Some(cancel)).with_readers(request.fetches),
        max_chunks: (request.memory_bytes / CHUNK_MEMORY_BYTES).clamp(SEGMENT_CHUNKS, MAX_CHUNKS) as usize,
        max_bytes,
        wanted: Vec::new(),
        hole: PendingHole { at: 0, length: 0 },
        ordered: target.is_ordered().then(|| OrderedWindow::new(max_bytes as usize)),
        chunks: 0,
    };
    part.walk(|| TreeReader::new(pack_store, manifest.vm), disk, cancel)?;
    for (at, rest) in job.edges.take_rest() {
        target.write_at(at, &rest)?;
    }
    target.finish()?;
    let written_bytes = job.written_bytes.load(Ordering::Relaxed);
    Ok(RestoreSummary {
        snapshot: manifest.snapshot,
        disk: disk.name.clone(),
        size_bytes: disk.size_bytes,
        written_bytes,
        hole_bytes: disk.size_bytes - written_bytes,
        fetched_bytes: part.fetcher.fetched_bytes,
        chunks: part.chunks,
        duration: started.elapsed(),
    })
}

/// Chunks of a segment of the smallest chunks.
const SEGMENT_CHUNKS: u64 = SEGMENT_BYTES as u64 / 4096;

/// The part of the disk that is being restored.
struct DiskPart<'a> {
    job: &'a RestoreJob<'a>,
    fetcher: ChunkFetcher<'a>,
    max_chunks: usize,
    /// Most bytes of data of an ordered part.
    max_bytes: u64,
    wanted: Vec<WantedChunk>,
    /// A hole at the end of a part that is written in any order.
    hole: PendingHole,
    ordered: Option<OrderedWindow>,
    /// Chunks of the parts so far.
    chunks: u64,
}

impl DiskPart<'_> {
    /// Restores the disk, part by part.
    fn walk<'t>(
        &mut self,
        tree: impl Fn() -> Result<TreeReader<'t>>,
        disk: &ManifestDisk,
        cancel: &CancelFlag,
    ) -> Result<()> {
        let (mut pages, mut segments) = (tree()?, tree()?);
        let root = pages.root(&disk.root, disk.size_bytes)?;
        let size = disk.size_bytes;
        pages.announce(root.pages.iter().flatten());
        for (index, reference) in root.pages.iter().enumerate() {
            let index = index as u64;
            let start = index * PAGE_BYTES;
            let Some(reference) = reference else {
                self.hole(start, (start + PAGE_BYTES).min(size) - start)?;
                continue;
            };
            let page = pages.page(Some(reference), size, index)?;
            segments.announce(page.segments.iter().flatten());
            for (within, segment) in page.segments.iter().enumerate() {
                if cancel.is_cancelled() {
                    return Err(Error::Cancelled { kept_bytes: None });
                }
                let number = index * PAGE_SEGMENTS as u64 + within as u64;
                let base = number * SEGMENT_BYTES as u64;
                match segment {
                    None => self.hole(base, segment_length(size, number) as u64)?,
                    Some(reference) => self.segment(&segments.segment(reference, size, number)?, base)?,
                }
            }
        }
        self.end()
    }

    fn hole(&mut self, at: u64, length: u64) -> Result<()> {
        match &mut self.ordered {
            Some(window) => drop(window.add(at, length, true)),
            None => self.hole.grow(at, length, self.job.target)?,
        }
        Ok(())
    }

    /// Adds a segment; restores the part first if the segment has no room in it.
    fn segment(&mut self, recipe: &SegmentRecipe, base: u64) -> Result<()> {
        let is_full = self.wanted.len() + recipe.entries.len() > self.max_chunks;
        let max_data = self.max_bytes - SEGMENT_BYTES as u64;
        if is_full || self.ordered.as_mut().is_some_and(|window| window.data_bytes() > max_data) {
            self.end()?;
        }
        let mut at = base;
        for entry in &recipe.entries {
            let length = u64::from(entry.length);
            match entry.chunk {
                None => self.hole(at, length)?,
                Some(chunk) => {
                    let place = match &mut self.ordered {
                        Some(window) => window.add(at, length, false),
                        None => at,
                    };
                    self.wanted.push(WantedChunk { chunk, length: entry.length, place });
                }
            }
            at += length;
        }
        Ok(())
    }

    /// Restores the part, and begins the next one behind it.
    fn end(&mut self) -> Result<()> {
        let job = self.job;
        self.hole.punch(job.target)?;
        match &mut self.ordered {
            None => {
                let takers = || Box::new(RunWriter::new(job)) as Box<dyn ChunkTaker + '_>;
                self.fetcher.fetch(&self.wanted, &takers, &mut |_, error| Err(error))?;
            }
            Some(window) => {
                let filled = &*window;
                let takers = || Box::new(WindowTaker(filled)) as Box<dyn ChunkTaker + '_>;
                self.fetcher.fetch(&self.wanted, &takers, &mut |_, error| Err(error))?;
                window.write(job)?;
            }
        }
        self.chunks += self.wanted.len() as u64;
        self.wanted.clear();
        Ok(())
    }
}

/// Adjacent holes, made in one call.
struct PendingHole {
    at: u64,
    length: u64,
}

impl PendingHole {
    /// Adds a hole; makes the earlier ones first if data is between them.
    fn grow(&mut self, at: u64, length: u64, target: &dyn Target) -> Result<()> {
        if self.at + self.length != at {
            self.punch(target)?;
            self.at = at;
        }
        self.length += length;
        Ok(())
    }

    fn punch(&mut self, target: &dyn Target) -> Result<()> {
        if self.length > 0 {
            target.hole(self.at, self.length)?;
            self.at += self.length;
            self.length = 0;
        }
        Ok(())
    }
}
