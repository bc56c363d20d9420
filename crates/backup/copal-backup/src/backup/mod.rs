//! One backup of one VM, from the open session to the published snapshot.
//!
//! Design: docs/design/backup.md#a-backup BAK-4
//!
//! Paper: low-profile-dedup §3 (three threads; here a pool in the place of one of them, and a fixed number of jobs that
//! circulate, which bounds the memory).
//!
//! Order of durability: packs of chunks, packs of recipes, index rows, manifest, Publish record. Until
//! the Publish record exists, nothing refers to the other data. Once it exists, all of them are durable.
//!
//! - [`gate`]: plausibility of the source. [`plan`]: how each disk is read, after a [`spot_check`].
//!   [`read_estimate`]: bytes to be read.
//! - [`reader`]: walks the disks. [`pool`]: reads segments ([`segment_reader`]), compresses and seals them.
//!   [`decide`]: decides in order which chunks are new. [`packer`]: packs and trees. A [`pipeline`] with a [`work_queue`] joins them.
//! - [`collaborate`]: two passes with a [`spool`] between them, and questions to other hosts.
//! - [`session`]: the records at the beginning and at the end.

mod base;
mod changes;
mod collaborate;
mod compress;
mod decide;
mod gate;
mod in_flight_chunks;
mod job;
mod old_recipes;
mod packer;
mod pipeline;
mod pipeline_end;
mod plan;
mod pool;
mod popular;
mod read_estimate;
mod read_helpers;
mod reader;
mod request_check;
mod second_pass;
mod segment_reader;
mod segment_task;
mod session;
mod spool;
mod spot_check;
mod stored_chunks;
mod work_queue;

#[cfg(test)]
mod tests;

use crate::keys::random;
use crate::packs::pack_appender::sending_bytes;
use crate::packs::pack_store::PackStore;
use crate::request::error::{Error, Result};
use crate::request::progress::{CancelFlag, Progress, Stage};
use crate::request::words::clip;
use crate::request::{
    BackupCounts, BackupRequest, BackupSummary, DiskSource, DiskSummary, Layout, SnapshotId,
};
use crate::sessions::lease::SessionHolder;
use crate::sessions::parts::RepositoryParts;
use crate::snapshot::manifest::{MAX_WORD_BYTES, Manifest, ManifestDisk};
use base::BaseSnapshot;
pub(crate) use collaborate::failed as spool_failed;
pub use collaborate::{Collaboration, parts_of_disk};
use copal_disk::doubt::{DiskDoubt, DoubtKind};
use in_flight_chunks::InFlightChunks;
use old_recipes::OldRecipes;
use packer::{BuiltDisk, TreePacker};
use pipeline::PipelineSize;
use pipeline_end::{PipelineEnd, PipelineResult};
use plan::PlannedDisk;
use pool::PoolThread;
pub(crate) use popular::PopularPacker;
use reader::DiskReader;
use segment_reader::SegmentScope;
use session::BackupSession;
use std::collections::HashSet;
use std::time::Instant;
use stored_chunks::StoredScope;
use uuid::Uuid;

/// Memory of a thread that decrypts stored frames before they are referred to: those of one segment.
const VERIFIED_BYTES: u64 = 4 << 20;

/// Carries out `Repository::backup_with`.
pub(crate) fn back_up(
    parts: &RepositoryParts,
    request: &BackupRequest,
    others: Option<&Collaboration<'_>>,
    progress: &dyn Progress,
    cancel: &CancelFlag,
) -> Result<BackupSummary> {
    let _shared = parts.enter()?;
    if others.is_some() && !parts.pack_store().layout.is_fleet() {
        return Err(Error::Denied {
            reason: "a repository of the layout solo has no other hosts to ask: all VMs share all chunks"
                .into(),
        });
    }
    // Heartbeats continue until the session has ended.
    let mut holder = SessionHolder::new(&request.holder);
    let counting = parts.locks().heartbeat_thread().counting(progress);
    let outcome = run(parts, request, others, &mut holder, &counting, cancel);
    parts.note_change();
    outcome
}

/// Runs one backup. The caller holds the packs lock, and keeps `holder` until the session has ended.
fn run(
    parts: &RepositoryParts,
    request: &BackupRequest,
    others: Option<&Collaboration<'_>>,
    holder: &mut SessionHolder<'_>,
    progress: &dyn Progress,
    cancel: &CancelFlag,
) -> Result<BackupSummary> {
    let started = Instant::now();
    request_check::check(request)?;
    progress.stage(Stage::Plan, &request.vm, 0);
    let vm = parts.directory().find_or_add(&request.vm)?;
    let _writer = parts.locks().claim(&vm)?;
    let change = match parts.pack_store().layout {
        Layout::Solo => Some(parts.begin_change()?),
        Layout::Fleet { .. } => None,
    };
    let (session, mut base) = BackupSession::open(parts, &vm, holder)?;
    let watched = BackupObserver { progress, cancel };
    let names = request.disks.iter().map(|disk| disk.name.as_str());
    let mut look_back = || base.iter_mut().try_for_each(|base| base.look_back(parts, vm.uuid, names.clone()));
    let looked = session.index_packs(parts, progress, cancel).and_then(|()| look_back());
    let outcome = looked
        .and_then(|()| request_check::follows(request, base.as_ref()))
        .and_then(|()| produce(parts, request, &session, base.as_ref(), others, watched));
    let produced = match outcome {
        Ok(produced) => produced,
        Err(error) => {
            let error = session.reason(parts, error);
            // Ending the session is optional: the next backup fences an open one.
            if let Err(second) = session.fence(parts) {
                tracing::warn!(error = %second, "the session could not be ended");
            }
            return Err(error);
        }
    };
    progress.stage(Stage::Publish, &vm.name, 0);
    let manifest = Manifest {
        vm: vm.uuid,
        snapshot: SnapshotId(random()?),
        session: session.id,
        sequence: session.sequence(),
        base: base.as_ref().map(|base| base.manifest.snapshot),
        disks: produced.manifest_disks(request),
        counts: produced.counts,
        tags: request.tags.clone(),
        description: request.description.clone(),
        tool: format!("copal {}", env!("CARGO_PKG_VERSION")),
        vector: None,
        doubts: produced.doubts.clone(),
        origin: request.copied.map(|copied| copied.origin),
    };
    let snapshot = manifest.snapshot;
    let published = session.publish(parts, manifest).map_err(|error| session.reason(parts, error))?;
    if let Some(change) = change {
        change.entered();
    }
    if published.misdated > 0 {
        progress.notice(&format!(
            "{} snapshots of {} have an impossible time: the clock of this machine is wrong, or was; they stay until \
             `copal forget` names them, and no policy counts them",
            published.misdated, vm.name
        ));
    }
    Ok(BackupSummary {
        snapshot,
        base: base.map(|base| base.manifest.snapshot),
        created_ms: published.created_ms,
        misdated: published.misdated,
        disks: produced.summaries(request),
        vm,
        counts: BackupCounts { stored_bytes: published.stored_bytes, ..produced.counts },
        warnings: produced.warnings,
        doubts: produced.doubts,
        duration: started.elapsed(),
    })
}

/// Disks that were read and stored; nothing refers to them yet.
struct StoredDisks {
    disks: Vec<BuiltDisk>,
    planned: Vec<PlannedDisk>,
    counts: BackupCounts,
    warnings: Vec<String>,
    /// Doubts; they are among `warnings` too.
    doubts: Vec<DiskDoubt>,
}

impl StoredDisks {
    /// The disks of the snapshot for its manifest.
    fn manifest_disks(&self, request: &BackupRequest) -> Vec<ManifestDisk> {
        self.of(request)
            .map(|(built, planned, disk)| ManifestDisk {
                name: disk.name.clone(),
                size_bytes: built.size_bytes,
                data_bytes: built.data_bytes,
                root: built.root,
                mode: planned.mode,
                reason: clip(&planned.reason, MAX_WORD_BYTES),
                serial: disk.serial.clone(),
                bitmap: disk.starts.clone(),
                sentinel: disk.sentinel.clone(),
                identity: Some(clip(&disk.identity, MAX_WORD_BYTES)),
                whole_ms: planned.whole_ms,
            })
            .collect()
    }

    fn summaries(&self, request: &BackupRequest) -> Vec<DiskSummary> {
        self.of(request).map(|(built, planned, disk)| planned.summary(disk, built.size_bytes)).collect()
    }

    /// Each disk with its tree, its plan and its request.
    fn of<'a>(
        &'a self,
        request: &'a BackupRequest,
    ) -> impl Iterator<Item = (&'a BuiltDisk, &'a PlannedDisk, &'a DiskSource)> {
        let disks = self.disks.iter().zip(&self.planned).zip(&request.disks);
        disks.map(|((built, planned), disk)| (built, planned, disk))
    }
}

/// The observer of a backup, and the flag that cancels it.
#[derive(Clone, Copy)]
struct BackupObserver<'a> {
    progress: &'a dyn Progress,
    cancel: &'a CancelFlag,
}

/// Context of all passes of a backup.
struct BackupContext<'a> {
    parts: &'a RepositoryParts,
    request: &'a BackupRequest,
    vm: Uuid,
    in_flight: &'a InFlightChunks,
    watched: BackupObserver<'a>,
}

impl<'a> BackupContext<'a> {
    fn scope(&self) -> Result<SegmentScope<'a>> {
        let BackupContext { parts, request, vm, in_flight, watched } = *self;
        let pack_store = parts.pack_store();
        // Read behind the record of the session (BAK-27).
        let popular = match pack_store.layout {
            Layout::Solo => None,
            Layout::Fleet { .. } => Some(parts.catalog().popular()?),
        };
        Ok(SegmentScope {
            disks: &request.disks,
            vm,
            pack_store,
            chunker: parts.chunker(),
            in_flight,
            progress: watched.progress,
            cancel: watched.cancel,
            key: pack_store.keys.recipe_key(vm),
            old: OldRecipes::new(pack_store, vm)?,
            stored: StoredScope {
                pack_store,
                in_flight,
                home: pack_store.home_of_chunks(vm),
                verifies_frames: request.full,
                popular,
                seen: parking_lot::RwLock::new(HashSet::new()),
            },
            stores_whole_segments: request.whole_segments,
        })
    }

    /// Threads and jobs within the memory of the request.
    fn size(&self) -> PipelineSize {
        let thread_bytes = PoolThread::MEMORY_BYTES + if self.request.full { VERIFIED_BYTES } else { 0 };
        let pack_store = self.parts.pack_store();
        let memory = self.request.memory_bytes.saturating_sub(sending_bytes(pack_store));
        PipelineSize::within(memory, pack_store.workers(), thread_bytes)
    }

    /// Reports that fewer threads are used than a person asked for.
    fn report_missing_threads(&self) {
        let PipelineSize { threads, .. } = self.size();
        if let Some(asked) = self.parts.pack_store().asked_workers().filter(|&asked| asked > threads) {
            self.watched.progress.notice(&format!(
                "the backup has {threads} threads, and {asked} were asked for: its memory has room for no more, --memory gives it \
                 more"
            ));
        }
    }

    /// Runs `read` with a reader that sends its steps into the pipeline. Returns its counts.
    fn on_line(
        &self,
        packer: &mut TreePacker<'_>,
        read: impl FnOnce(&mut DiskReader<'_, 'a>) -> PipelineResult<()>,
    ) -> Result<PipelineResult<BackupCounts>> {
        let scope = self.scope()?;
        pipeline::run(self.size(), &scope, self.in_flight, packer, read)
    }
}

fn produce(
    parts: &RepositoryParts,
    request: &BackupRequest,
    session: &BackupSession,
    base: Option<&BaseSnapshot>,
    others: Option<&Collaboration<'_>>,
    watched: BackupObserver<'_>,
) -> Result<StoredDisks> {
    let BackupObserver { progress, cancel } = watched;
    let pack_store = parts.pack_store();
    let planned = plan::plan(pack_store, request, session.vm, base, cancel)?;
    let in_flight = InFlightChunks::default();
    let bases = planned.iter().map(|plan| plan.base_root.clone()).collect();
    let mut packer = TreePacker::new(pack_store, &in_flight, progress, session.vm, session.id, bases)?;
    let reading = BackupContext { parts, request, vm: session.vm, in_flight: &in_flight, watched };
    reading.report_missing_threads();
    let read = match others {
        Some(others) => others.read(&reading, session.id, &planned, &mut packer)?,
        None => reading.on_line(&mut packer, |reader| {
            let mut disks = planned.iter().enumerate();
            disks.try_for_each(|(disk, plan)| reader.disk(disk, &plan.plan))
        })?,
    };
    let confirmed = read.and_then(|counts| Ok((counts, confirm(&request.disks, &planned)?)));
    let (mut counts, ConfirmedDisks { warnings, mut doubts }) = match confirmed {
        Ok(confirmed) => confirmed,
        Err(stop) => return Err(abandon(pack_store, &mut packer, stop)?),
    };
    let disks = packer.finish()?;
    pack_store.index.sync()?;
    for (disk, built) in request.disks.iter().zip(&disks) {
        doubts.extend(gate::after(request, disk, base, (built.size_bytes, built.data_bytes))?);
    }
    let warnings = doubts.iter().map(DiskDoubt::to_string).chain(warnings).collect();
    counts.stored_bytes += packer.stored_bytes();
    counts.spot_check_bytes = planned.iter().map(|plan| plan.checked.read_bytes).sum();
    Ok(StoredDisks { disks, planned, counts, warnings, doubts })
}

/// Finishes the packs of chunks that were read, for the next try. Returns the reason for the end of the
/// backup.
/// # Errors
/// After a cancellation, an error of the last packs.
fn abandon(pack_store: &PackStore, packer: &mut TreePacker<'_>, stop: PipelineEnd) -> Result<Error> {
    match stop {
        PipelineEnd::Cancelled => {
            packer.abandon_recipes();
            packer.finish_chunks()?;
            pack_store.index.sync()?;
            Ok(Error::Cancelled { kept_bytes: Some(packer.stored_bytes()) })
        }
        PipelineEnd::Failed(error) => {
            packer.abandon_recipes();
            // If that fails too, the first error counts.
            if let Err(second) = packer.finish_chunks() {
                tracing::warn!(error = %second, "the last pack could not be finished");
            }
            Ok(error)
        }
        PipelineEnd::Disconnected => {
            Ok(Error::Invalid { reason: "a thread of the backup ended early".into() })
        }
    }
}

/// Warnings and doubts about disks that were read.
struct ConfirmedDisks {
    warnings: Vec<String>,
    doubts: Vec<DiskDoubt>,
}

/// Checks that all disks are still the ones that were opened.
fn confirm(disks: &[DiskSource], planned: &[PlannedDisk]) -> Result<ConfirmedDisks> {
    let (mut warnings, mut doubts) = (Vec::new(), Vec::new());
    for (disk, planned) in disks.iter().zip(planned) {
        warnings.extend(disk.warnings.iter().cloned());
        warnings.extend(planned.warning(disk));
        doubts.extend(planned.doubts.iter().cloned());
        let seen = disk.source.confirm().map_err(|error| Error::Source { disk: disk.name.clone(), error })?;
        doubts.extend(seen.map(|text| DiskDoubt {
            disk: disk.name.clone(),
            kind: DoubtKind::Changed,
            text: clip(&text, MAX_WORD_BYTES),
        }));
    }
    Ok(ConfirmedDisks { warnings, doubts })
}
