//! Decodes every chunk of one snapshot.
//!
//! One thread walks the recipes, a part of a disk ahead of the thread that fetches chunks. The report has the
//! findings of both in the order of one thread: those of a walk before those of the chunks that it led to.
//!
//! Memory: the chunk lists of three parts, and the memory of a fetch.

use super::{CHUNKS_OF_A_PART, CheckWalk, WalkFindings, noted, words};
use crate::request::error::{Error, Result};
use crate::request::progress::{CancelFlag, Progress, Stage};
use crate::request::{CheckReport, SnapshotId};
use crate::sessions::parts::RepositoryParts;
use crate::snapshot::fetch::{ChunkFetcher, ChunkTaker, WantedChunk};
use crate::snapshot::manifest::Manifest;
use crossbeam_channel::bounded;
use std::thread::Builder;

/// Decodes every chunk of one snapshot.
pub(crate) fn verify(
    parts: &RepositoryParts,
    manifest: &Manifest,
    progress: &dyn Progress,
    cancel: &CancelFlag,
) -> Result<CheckReport> {
    let mut verification = SnapshotVerification {
        report: CheckReport { snapshots: 1, ..CheckReport::default() },
        fetcher: ChunkFetcher::new(parts.pack_store(), Some(cancel)),
        manifest,
        progress,
    };
    let walk = |take: &mut PartSink<'_>| walk(parts, manifest, cancel, take);
    match parts.pack_store().workers() {
        ..2 => walk(&mut |part| verification.part(part))?,
        _ => ahead(&walk, &mut |part| verification.part(part))?,
    }
    let SnapshotVerification { mut report, fetcher, .. } = verification;
    report.decoded_frames = report.references;
    report.decoded_bytes = fetcher.fetched_bytes;
    report.packs = fetcher.packs.len() as u64;
    Ok(report)
}

/// Takes the parts of a walk in order.
type PartSink<'s> = dyn FnMut(WalkedPart) -> Result<()> + 's;

/// A part of a disk.
#[derive(Default)]
struct WalkedPart {
    /// Number of the disk, for its first part.
    begins: Option<usize>,
    damages: Vec<Error>,
    recipes: u64,
    wanted: Vec<WantedChunk>,
}

impl WalkFindings for WalkedPart {
    fn damage(&mut self, error: Error, _: SnapshotId) -> Result<()> {
        let (what, detail) = words(error)?;
        self.damages.push(Error::Damaged { what, detail });
        Ok(())
    }

    fn recipe(&mut self) {
        self.recipes += 1;
    }
}

/// Walks all disks of a snapshot.
fn walk(
    parts: &RepositoryParts,
    manifest: &Manifest,
    cancel: &CancelFlag,
    take: &mut PartSink<'_>,
) -> Result<()> {
    let id = manifest.snapshot;
    let mut walker = CheckWalk::new(parts, manifest.vm, cancel)?;
    for (number, disk) in manifest.disks.iter().enumerate() {
        let mut part = WalkedPart { begins: Some(number), ..WalkedPart::default() };
        let root = walker.tree.root(&disk.root, disk.size_bytes);
        if let Some(root) = noted(root, &mut part, id)? {
            walker.disk(&root, None, id, &mut part, |part, recipe| {
                part.wanted.extend(WantedChunk::of_segment(recipe, 0));
                match part.wanted.len() < CHUNKS_OF_A_PART {
                    true => Ok(()),
                    false => take(std::mem::take(part)),
                }
            })?;
        }
        take(part)?;
    }
    Ok(())
}

/// Runs `walk` in a thread of its own, one part ahead of `take`.
/// # Errors
/// Those of `take`, else those of `walk`.
fn ahead(walk: &(dyn Fn(&mut PartSink<'_>) -> Result<()> + Sync), take: &mut PartSink<'_>) -> Result<()> {
    let (parts_in, parts) = bounded::<WalkedPart>(1);
    std::thread::scope(|scope| {
        let work = move || {
            // Without a receiver the call has ended with an error.
            walk(&mut |part| parts_in.send(part).map_err(|_| Error::Cancelled { kept_bytes: None }))
        };
        let started = Builder::new().name("walk".to_owned()).spawn_scoped(scope, work);
        let walker = match started {
            Ok(walker) => walker,
            Err(error) => {
                tracing::debug!(%error, "the system starts no more threads");
                return walk(take);
            }
        };
        let taken = parts.iter().try_for_each(&mut *take);
        drop(parts);
        match walker.join() {
            Ok(walked) => taken.and(walked),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// A verification of one snapshot.
struct SnapshotVerification<'a> {
    report: CheckReport,
    fetcher: ChunkFetcher<'a>,
    manifest: &'a Manifest,
    progress: &'a dyn Progress,
}

impl SnapshotVerification<'_> {
    /// Notes the findings of a walk, and decodes the chunks that it found.
    fn part(&mut self, part: WalkedPart) -> Result<()> {
        let SnapshotVerification { report, fetcher, manifest, progress } = self;
        if let Some(disk) = part.begins.and_then(|number| manifest.disks.get(number)) {
            progress.stage(Stage::Verify, &disk.name, disk.data_bytes);
        }
        let snapshot = Some(manifest.snapshot);
        part.damages.into_iter().try_for_each(|error| report.note(error, snapshot))?;
        report.recipes += part.recipes;
        report.references += part.wanted.len() as u64;
        let takers = || Box::new(CountTaker(*progress)) as Box<dyn ChunkTaker + '_>;
        fetcher.fetch(&part.wanted, &takers, &mut |lost, error| {
            progress.advance(u64::from(lost.length));
            report.note(error, snapshot)
        })
    }
}

/// Counts chunks whose bytes are not needed.
struct CountTaker<'p>(&'p dyn Progress);

impl ChunkTaker for CountTaker<'_> {
    fn take(&mut self, wanted: &WantedChunk, _: &[u8]) -> Result<()> {
        self.0.advance(u64::from(wanted.length));
        Ok(())
    }
}
