//! Restore: writes one disk of a snapshot into a target.
//!
//! The calling thread walks the pages; workers fetch, decrypt and write one segment each, several at once. An
//! ordered target is written by the calling thread alone.

pub mod serve;

use crate::packs::pack_store::PackStore;
use crate::request::error::{Error, Result};
use crate::request::progress::{CancelFlag, Progress, Stage};
use crate::request::{RestoreRequest, RestoreSummary};
use crate::snapshot::fetch::SegmentFetcher;
use crate::snapshot::manifest::{Manifest, ManifestDisk};
use crate::snapshot::recipe::{FrameRef, PAGE_BYTES, PAGE_SEGMENTS, segment_length};
use crate::snapshot::tree::TreeReader;
use copal_chunk::SEGMENT_BYTES;
use copal_disk::target::Target;
use crossbeam_channel::{Receiver, bounded};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;
use uuid::Uuid;

/// Memory of one worker: a segment, a read, a chunk.
const WORKER_MEMORY_BYTES: u64 = 4 << 20;

/// A segment to be written.
struct SegmentTask {
    number: u64,
    reference: FrameRef,
}

/// The restore of one disk, shared by its workers.
struct RestoreJob<'a> {
    pack_store: &'a PackStore,
    vm: Uuid,
    size_bytes: u64,
    target: &'a dyn Target,
    progress: &'a dyn Progress,
    cancel: &'a CancelFlag,
    failed: AtomicBool,
    first_error: Mutex<Option<Error>>,
    written_bytes: AtomicU64,
    fetched_bytes: AtomicU64,
    chunks: AtomicU64,
}

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
        pack_store,
        vm: manifest.vm,
        size_bytes: disk.size_bytes,
        target,
        progress,
        cancel,
        failed: AtomicBool::new(false),
        first_error: Mutex::new(None),
        written_bytes: AtomicU64::new(0),
        fetched_bytes: AtomicU64::new(0),
        chunks: AtomicU64::new(0),
    };
    if target.is_ordered() {
        let mut worker = RestoreWorker::new(&job)?;
        job.walk(disk, |task| worker.segment(&task))?;
    } else {
        let wanted = (request.fetches as u64).min(request.memory_bytes / WORKER_MEMORY_BYTES).clamp(1, 64);
        let (task_in, task_out) = bounded(64);
        std::thread::scope(|scope| {
            let mut workers = 0;
            for _ in 0..wanted {
                let tasks: Receiver<SegmentTask> = task_out.clone();
                let worker = std::thread::Builder::new().name("restore".to_owned());
                match worker.spawn_scoped(scope, || job.work(tasks)) {
                    Ok(_) => workers += 1,
                    Err(error) => tracing::debug!(%error, workers, "the system starts no more threads"),
                }
            }
            drop(task_out);
            let walked = match workers {
                // The system starts no thread: this thread does the work.
                0 => RestoreWorker::new(&job)
                    .and_then(|mut worker| job.walk(disk, |task| worker.segment(&task))),
                _ => job.walk(disk, |task| task_in.send(task).map_err(|_| stopped())),
            };
            if let Err(error) = walked {
                job.fail(error);
            }
            drop(task_in);
        });
        if let Some(error) = job.first_error.lock().take() {
            return Err(error);
        }
    }
    target.finish()?;
    let written_bytes = job.written_bytes.load(Ordering::Relaxed);
    Ok(RestoreSummary {
        snapshot: manifest.snapshot,
        disk: disk.name.clone(),
        size_bytes: disk.size_bytes,
        written_bytes,
        hole_bytes: disk.size_bytes - written_bytes,
        fetched_bytes: job.fetched_bytes.load(Ordering::Relaxed),
        chunks: job.chunks.load(Ordering::Relaxed),
        duration: started.elapsed(),
    })
}

/// Error of a sender whose workers have ended; the workers hold the real error.
fn stopped() -> Error {
    Error::Invalid { reason: "the restore was stopped".into() }
}

impl RestoreJob<'_> {
    /// Hands out the segments with data, in order, and makes the holes between them.
    fn walk(&self, disk: &ManifestDisk, mut hand_out: impl FnMut(SegmentTask) -> Result<()>) -> Result<()> {
        let mut tree = TreeReader::new(self.pack_store, self.vm)?;
        let root = tree.root(&disk.root, disk.size_bytes)?;
        let size = disk.size_bytes;
        let mut hole = PendingHole { at: 0, length: 0 };
        for (index, reference) in root.pages.iter().enumerate() {
            let index = index as u64;
            let start = index * PAGE_BYTES;
            let Some(reference) = reference else {
                hole.grow(start, (start + PAGE_BYTES).min(size) - start);
                continue;
            };
            let page = tree.page(Some(reference), size, index)?;
            for (within, segment) in page.segments.iter().enumerate() {
                let number = index * PAGE_SEGMENTS as u64 + within as u64;
                match segment {
                    None => {
                        let length = segment_length(size, number) as u64;
                        hole.grow(number * SEGMENT_BYTES as u64, length);
                    }
                    Some(reference) => {
                        hole.punch(self.target)?;
                        if self.failed.load(Ordering::Relaxed) {
                            return Err(stopped());
                        }
                        hand_out(SegmentTask { number, reference: *reference })?;
                    }
                }
            }
        }
        hole.punch(self.target)
    }

    fn work(&self, tasks: Receiver<SegmentTask>) {
        let outcome = RestoreWorker::new(self).and_then(|mut worker| {
            for task in tasks {
                if self.failed.load(Ordering::Relaxed) {
                    break;
                }
                worker.segment(&task)?;
            }
            Ok(())
        });
        if let Err(error) = outcome {
            self.fail(error);
        }
    }

    /// Keeps the first error; later ones are only consequences.
    fn fail(&self, error: Error) {
        self.failed.store(true, Ordering::Relaxed);
        self.first_error.lock().get_or_insert(error);
    }
}

/// Adjacent holes, made in one call.
struct PendingHole {
    at: u64,
    length: u64,
}

impl PendingHole {
    fn grow(&mut self, at: u64, length: u64) {
        if self.length == 0 {
            self.at = at;
        }
        self.length += length;
    }
    fn punch(&mut self, target: &dyn Target) -> Result<()> {
        if self.length > 0 {
            target.hole(self.at, self.length)?;
            self.length = 0;
        }
        Ok(())
    }
}

/// Writes segments. One per thread.
struct RestoreWorker<'a> {
    job: &'a RestoreJob<'a>,
    tree: TreeReader<'a>,
    fetcher: SegmentFetcher<'a>,
    segment: Vec<u8>,
}

impl<'a> RestoreWorker<'a> {
    fn new(job: &'a RestoreJob<'a>) -> Result<RestoreWorker<'a>> {
        Ok(RestoreWorker {
            job,
            tree: TreeReader::new(job.pack_store, job.vm)?,
            fetcher: SegmentFetcher::new(job.pack_store)?,
            segment: vec![0; SEGMENT_BYTES],
        })
    }

    fn segment(&mut self, task: &SegmentTask) -> Result<()> {
        let job = self.job;
        if job.cancel.is_cancelled() {
            return Err(Error::Cancelled { kept_bytes: None });
        }
        let recipe = self.tree.segment(&task.reference, job.size_bytes, task.number)?;
        let length = segment_length(job.size_bytes, task.number);
        let before = self.fetcher.fetched_bytes;
        self.fetcher.fetch(&recipe, &mut self.segment[..length], &mut Err)?;
        job.fetched_bytes.fetch_add(self.fetcher.fetched_bytes - before, Ordering::Relaxed);
        let base = task.number * SEGMENT_BYTES as u64;
        let mut at = 0;
        for run in recipe.entries.chunk_by(|a, b| a.chunk.is_some() == b.chunk.is_some()) {
            let bytes: usize = run.iter().map(|entry| entry.length as usize).sum();
            if run[0].chunk.is_some() {
                job.target.write_at(base + at as u64, &self.segment[at..at + bytes])?;
                job.written_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
                job.chunks.fetch_add(run.len() as u64, Ordering::Relaxed);
                job.progress.advance(bytes as u64);
            } else {
                job.target.hole(base + at as u64, bytes as u64)?;
            }
            at += bytes;
        }
        Ok(())
    }
}
