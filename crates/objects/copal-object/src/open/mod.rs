//! Opening: recovery, then the mount that makes its result the only valid state.
//!
//! Design: docs/design/object.md#recovery OBJ-4, OBJ-9, OBJ-11, OBJ-13
//! Invariants
//! - Nothing is allocated before the mount record, or a checkpoint in its place, is durable (OBJ-4).
//! - A read-only opening writes nothing at all, not even a flush.

use crate::{
    OpenOptions, RecoveryReport, StoreError, StoreOpenError,
    checkpoint::superblock_io,
    engine::{close::checkpoint_now, pump::pump, steps::give_back},
    flaw::StoreFlaw,
    format::{run::PageRun, superblock::Superblock},
    state::StoreCore,
};
use copal_device::{Device, DeviceError, Io, IoClass, IoKind};
use newest::StoreLengths;
use std::sync::Arc;

pub(crate) mod assemble;
mod backend;
pub(crate) mod mkfs;
mod mount;
mod newest;
mod overrides;

use backend::JournalStart;
pub(crate) use backend::StoreBackend;
pub(crate) use overrides::OpenOverrides;

/// Opens the store on `backend`.
pub(crate) fn open(
    backend: StoreBackend,
    options: &OpenOptions,
    tuning: OpenOverrides,
) -> Result<(Arc<StoreCore>, RecoveryReport), StoreOpenError> {
    let device = backend.device(options);
    if !options.read_only && !tuning.broken.by(StoreFlaw::NoFlushAtOpen) {
        // Recovery next reads writes that a killed process left in the cache: they must not vanish later
        // (OBJ-11).
        flush(device.as_ref())?;
    }
    let (recovered, lengths) = newest::find(&backend, device.as_ref(), options, tuning.broken)?;
    let mut report = recovered.report.clone();
    let stale = recovered.stale_copies.clone();
    let needed = recovered.needed.clone();
    let inner = assemble::assemble(backend, options, tuning, recovered)?;
    if options.read_only {
        report.superblock_copies_repaired = 0;
        report.checkpoint_pages_repaired = 0;
    } else {
        take_over(&inner, &lengths, &needed, &stale, &mut report)?;
    }
    Ok((inner, report))
}

/// Makes the recovered state the only one, and rewrites damaged copies that recovery found.
fn take_over(
    inner: &Arc<StoreCore>,
    lengths: &StoreLengths,
    needed: &[PageRun],
    stale_superblocks: &[usize],
    report: &mut RecoveryReport,
) -> Result<(), StoreOpenError> {
    if report.cut_bytes > 0 {
        grow_back(inner, lengths)?;
    }
    if !inner.shape.broken.by(StoreFlaw::NoMount) {
        mount::mount(inner, needed).map_err(|error| match error {
            StoreError::Device(error) => StoreOpenError::Device(error),
            other => StoreOpenError::Damaged { what: format!("the store cannot be mounted: {other}") },
        })?;
    }
    if !stale_superblocks.is_empty() {
        repair_superblocks(inner, stale_superblocks)?;
    }
    remove_unknown_files(inner)?;
    if (report.checkpoint_pages_repaired > 0 || report.cut_bytes > 0)
        && let Err(error) = checkpoint_now(inner)
    {
        // The next checkpoint writes two copies again.
        tracing::warn!(%error, "the damaged copy of the checkpoint could not be rewritten yet");
        report.checkpoint_pages_repaired = 0;
    }
    Ok(())
}

/// Restores the length of a store whose unused end was cut off. The new bytes count as never written.
fn grow_back(inner: &StoreCore, lengths: &StoreLengths) -> Result<(), StoreOpenError> {
    inner.device.grow(lengths.store_bytes).map_err(|error| {
        tracing::warn!(%error, "the store cannot restore the space that was cut off");
        lengths.truncated()
    })?;
    let first = lengths.device_bytes / inner.shape.page_bytes as u64;
    inner.state.lock().space.placement_mut().forget_written(first);
    Ok(())
}

/// Removes files that no record names. Only after the mount: an earlier recovery might still need them.
fn remove_unknown_files(store: &Arc<StoreCore>) -> Result<(), DeviceError> {
    let Some(files) = &store.files else { return Ok(()) };
    files.refill();
    let numbers = files.numbers().map_err(|error| DeviceError::io("list", 0, 0, error))?;
    let mut state = store.state.lock();
    state.space.placement_mut().query_host(0);
    state.space.placement_mut().free_unknown_files(&numbers);
    give_back(store, &mut state);
    drop(state);
    pump(store);
    Ok(())
}

/// Writes the newest superblock to the `stale` copies. Blocks.
pub(crate) fn repair_superblocks(inner: &StoreCore, stale: &[usize]) -> Result<(), DeviceError> {
    let superblock: Superblock = inner.state.lock().checkpoint.superblock().clone();
    let ios = stale.iter().map(|&copy| superblock_io(&superblock, copy)).collect();
    submit(inner.device.as_ref(), ios)?;
    flush(inner.device.as_ref())
}

fn flush(device: &dyn Device) -> Result<(), DeviceError> {
    let flush = Io { at: 0, kind: IoKind::Flush, class: IoClass::Commit };
    submit(device, vec![flush])
}

fn submit(device: &dyn Device, ios: Vec<Io>) -> Result<(), DeviceError> {
    device.submit(ios).wait().into_iter().try_for_each(|done| done.result)
}

#[cfg(test)]
mod tests;
