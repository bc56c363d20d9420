//! One backup of one VM, from the open session to the published snapshot.
//!
//! Design: docs/design/backup.md#a-backup BAK-4
//!
//! Paper: low-profile-dedup §3 (three threads; here joined by a fixed
//! number of jobs that go round, which is the bound on memory).
//!
//! Order of durability: packs of chunks, packs of recipes, index rows, manifest, Publish record. Before
//! the last nothing refers to any of it; after it all of it is there.
//!
//! - [`plan`]: how each disk is read (after a look at what need not be, [`spot`]), [`ahead`]: how much of it. [`reader`] (with [`decide`]), [`compress`], [`packer`]: the three threads.
//! - [`session`]: the records at the beginning and at the end.

mod ahead;
mod changes;
mod compress;
mod decide;
mod in_flight_chunks;
mod job;
mod packer;
mod plan;
mod read_helpers;
mod reader;
mod session;
mod spot;

use crate::error::{Error, Result};
use crate::keys::random;
use crate::manifest::{MAX_DISKS, MAX_TAGS, MAX_TEXT_BYTES, MAX_WORD_BYTES, Manifest, ManifestDisk};
use crate::parts::Parts;
use crate::progress::{CancelFlag, Progress, Stage};
use crate::request::{BackupCounts, BackupRequest, BackupSummary, DiskSource, SnapshotId};
use crate::words::is_plain;
use crossbeam_channel::{bounded, unbounded};
use in_flight_chunks::InFlightChunks;
use job::Job;
use packer::{BuiltDisk, Packer};
use plan::{Base, Planned};
use reader::{Channels, Reader, Stop};
use session::Session;
use std::time::Instant;

/// Steps that may wait between two threads.
const CHANNEL_STEPS: usize = 64;
/// Fixed memory of a backup: pack blocks, footers, compression, pages of the base.
const FIXED_MEMORY_BYTES: u64 = 14 << 20;
const COMPRESSORS: usize = 2;

/// Runs one backup. The caller holds the lock of packs and the VM.
pub(crate) fn run(
    parts: &Parts,
    request: &BackupRequest,
    progress: &dyn Progress,
    cancel: &CancelFlag,
) -> Result<BackupSummary> {
    let started = Instant::now();
    check_request(request)?;
    progress.stage(Stage::Plan, &request.vm, 0);
    let vm = parts.directory().find_or_add(&request.vm)?;
    let _writer = parts.locks().claim(&vm)?;
    let change = parts.begin_change()?;
    let (session, base) = Session::open(parts, vm.uuid)?;
    let outcome = produce(parts, request, &session, base.as_ref(), progress, cancel);
    let produced = match outcome {
        Ok(produced) => produced,
        Err(error) => {
            // Ending the session is a courtesy: a session left open is fenced by the next backup.
            if let Err(second) = session.fence(parts) {
                tracing::warn!(error = %second, "the session could not be ended");
            }
            return Err(error);
        }
    };
    progress.stage(Stage::Publish, &vm.name, 0);
    let Produced {
        disks,
        planned,
        mut counts,
        warnings,
    } = produced;
    let snapshot = SnapshotId(random()?);
    let manifest = Manifest {
        vm: vm.uuid,
        snapshot,
        session: session.id,
        sequence: session.sequence(),
        base: base.as_ref().map(|base| base.manifest.snapshot),
        disks: disks
            .iter()
            .zip(&planned)
            .zip(&request.disks)
            .map(|((built, planned), disk)| ManifestDisk {
                name: disk.name.clone(),
                size_bytes: built.size_bytes,
                data_bytes: built.data_bytes,
                root: built.root,
                mode: planned.mode,
                reason: clip(&planned.reason),
                serial: disk.serial.clone(),
                bitmap: disk.starts.clone(),
            })
            .collect(),
        counts,
        tags: request.tags.clone(),
        description: request.description.clone(),
        tool: format!("copal {}", env!("CARGO_PKG_VERSION")),
    };
    let published = session.publish(parts, manifest)?;
    change.entered();
    counts.stored_bytes = published.stored_bytes;
    if published.misdated > 0 {
        progress.notice(&format!(
            "{} snapshots of {} bear a time that cannot be: the clock of this machine is wrong, or was; they stay until \
             `copal forget` names them, and no policy counts them",
            published.misdated, vm.name
        ));
    }
    Ok(BackupSummary {
        snapshot,
        base: base.map(|base| base.manifest.snapshot),
        created_ms: published.created_ms,
        misdated: published.misdated,
        disks: disks
            .iter()
            .zip(&planned)
            .zip(&request.disks)
            .map(|((built, planned), disk)| planned.summary(disk, built.size_bytes))
            .collect(),
        vm,
        counts,
        warnings,
        duration: started.elapsed(),
    })
}

struct Produced {
    disks: Vec<BuiltDisk>,
    planned: Vec<Planned>,
    counts: BackupCounts,
    warnings: Vec<String>,
}

fn produce(
    parts: &Parts,
    request: &BackupRequest,
    session: &Session,
    base: Option<&Base>,
    progress: &dyn Progress,
    cancel: &CancelFlag,
) -> Result<Produced> {
    let pack_store = parts.pack_store();
    let planned = plan::plan(pack_store, request, session.vm, base, cancel)?;
    let in_flight = InFlightChunks::default();
    let bases = planned.iter().map(|plan| plan.base_root.clone()).collect();
    let mut packer = Packer::new(pack_store, &in_flight, progress, session.vm, session.id, bases)?;

    let (free_in, free_out) = unbounded();
    for _ in 0..jobs_within(request.memory_bytes) {
        // The receiver is alive: it is moved into the reader below.
        let _ = free_in.send(Job::new());
    }
    let (compress_in, compress_out) = bounded(CHANNEL_STEPS);
    let (pack_in, pack_out) = bounded(CHANNEL_STEPS);
    let channels = Channels {
        free: free_out,
        compress: compress_in,
        pack: pack_in.clone(),
    };
    let mut reader = Reader::new(
        pack_store,
        parts.chunker(),
        &in_flight,
        progress,
        cancel,
        session.vm,
        channels,
    )?;
    if request.full {
        reader.believe_nothing()?;
    }

    let (read, compressed, packed) = std::thread::scope(|scope| {
        let compressors: Vec<_> = (0..COMPRESSORS)
            .map(|_| {
                let (jobs, done) = (compress_out.clone(), pack_in.clone());
                scope.spawn(move || compress::run(&jobs, &done))
            })
            .collect();
        drop((compress_out, pack_in));
        let packer = &mut packer;
        let packing = scope.spawn(move || packer.run(&pack_out, &free_in));
        let read = request
            .disks
            .iter()
            .zip(&planned)
            .try_for_each(|(disk, plan)| reader.disk(disk, &plan.plan));
        let counts = reader.counts;
        drop(reader); // closes the channels: the others run dry and end
        let compressed = compressors.into_iter().map(join).collect::<Result<Vec<()>>>();
        (read.map(|()| counts), compressed, join(packing))
    });
    packed?;
    compressed?;
    let confirmed = read.and_then(|counts| Ok((counts, confirm(&request.disks, &planned)?)));
    match confirmed {
        Ok((mut counts, warnings)) => {
            let disks = packer.finish()?;
            pack_store.index.sync()?;
            counts.stored_bytes = packer.stored_bytes();
            counts.spot_check_bytes = planned.iter().map(|plan| plan.checked.read_bytes).sum();
            Ok(Produced {
                disks,
                planned,
                counts,
                warnings,
            })
        }
        Err(Stop::Cancelled) => {
            packer.abandon_recipes();
            packer.finish_chunks()?;
            pack_store.index.sync()?;
            Err(Error::Cancelled {
                kept_bytes: Some(packer.stored_bytes()),
            })
        }
        Err(Stop::Failed(error)) => {
            packer.abandon_recipes();
            // What was read well is kept for the next try; if that fails too, the first error counts.
            if let Err(second) = packer.finish_chunks() {
                tracing::warn!(error = %second, "the last pack could not be finished");
            }
            Err(error)
        }
        Err(Stop::Disconnected) => Err(Error::Invalid {
            reason: "a thread of the backup ended early".into(),
        }),
    }
}

/// Sees that all disks are still what was opened; returns what a person should know about them.
fn confirm(disks: &[DiskSource], planned: &[Planned]) -> Result<Vec<String>> {
    let mut warnings = Vec::new();
    for (disk, planned) in disks.iter().zip(planned) {
        warnings.extend(disk.warnings.iter().cloned());
        warnings.extend(planned.warning(disk));
        let seen = disk.source.confirm().map_err(|error| Error::Source {
            disk: disk.name.clone(),
            error,
        })?;
        warnings.extend(seen);
    }
    Ok(warnings)
}

fn join(thread: std::thread::ScopedJoinHandle<'_, Result<()>>) -> Result<()> {
    thread
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// How many segments may be on their way under a memory bound; at least two, so that reading and storing overlap.
fn jobs_within(memory_bytes: u64) -> u64 {
    (memory_bytes.saturating_sub(FIXED_MEMORY_BYTES) / Job::MEMORY_BYTES).clamp(2, 32)
}

fn check_request(request: &BackupRequest) -> Result<()> {
    let invalid = |reason: String| Err(Error::Invalid { reason });
    if request.disks.is_empty() || request.disks.len() > MAX_DISKS {
        return invalid(format!(
            "a backup has 1 to {MAX_DISKS} disks, not {}",
            request.disks.len()
        ));
    }
    for (index, disk) in request.disks.iter().enumerate() {
        if disk.name.is_empty() || disk.name.len() > 255 || !is_plain(&disk.name) {
            return invalid(format!(
                "{:?} cannot be the name of a disk: 1 to 255 bytes without control characters and marks of the \
                 direction of writing",
                disk.name
            ));
        }
        if request.disks[..index].iter().any(|other| other.name == disk.name) {
            return invalid(format!("two disks are named {}", disk.name));
        }
        let bitmap = disk.starts.as_ref().map_or("", |bitmap| &bitmap.name);
        if disk.serial.len() > MAX_WORD_BYTES || bitmap.len() > MAX_WORD_BYTES {
            return invalid(format!(
                "the serial and the bitmap of disk {} have at most {MAX_WORD_BYTES} bytes",
                disk.name
            ));
        }
        if disk
            .source
            .size_bytes()
            .is_some_and(|size| size > crate::recipe::format::MAX_DISK_BYTES)
        {
            return invalid(format!("disk {} is larger than 64 TiB", disk.name));
        }
    }
    let long_tag = request.tags.iter().any(|tag| tag.len() > MAX_WORD_BYTES);
    if request.tags.len() > MAX_TAGS || long_tag || request.description.len() > MAX_TEXT_BYTES {
        return invalid(format!(
            "at most {MAX_TAGS} tags of {MAX_WORD_BYTES} bytes and a description of {MAX_TEXT_BYTES} bytes"
        ));
    }
    let mut words = request.tags.iter().chain([&request.description]);
    if let Some(text) = words.find(|text| !is_plain(text)) {
        return invalid(format!(
            "{text:?} cannot be kept: tags and descriptions are one line without control characters and marks of the \
             direction of writing"
        ));
    }
    Ok(())
}

/// A reason never outgrows its field.
fn clip(reason: &str) -> String {
    let mut end = reason.len().min(MAX_WORD_BYTES);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    reason[..end].to_owned()
}
