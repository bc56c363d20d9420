//! Operations on one VM of a fleet: its size, the repair of its leak, its removal.
//!
//! In the layout solo all VMs share their chunks, so these operations do not exist there.

use crate::api::lookup::SnapshotLookup;
use crate::catalog::log::{AppendOutcome, LogName};
use crate::catalog::record::Record;
use crate::catalog::vm::PublishedSnapshot;
use crate::delete::prune::prune;
use crate::index::reindex::{PackScope, for_each_pack};
use crate::keys::role::Role;
use crate::packs::volumes::for_each_volume;
use crate::request::error::{Error, Result};
use crate::request::progress::{CancelFlag, Progress};
use crate::request::{FreeMethod, PruneOptions, PruneSummary, Vm, VmStats};
use crate::sessions::parts::RepositoryParts;
use crate::steps::removal::{VmUse, in_use};
use copal_volume::{RemoveMode, VolumeError};

/// Carries out `Repository::vm_stats`.
pub(crate) fn vm_stats(parts: &RepositoryParts, vm: &str) -> Result<VmStats> {
    parts.must_be_fleet()?;
    let vm = parts.directory().find(vm)?;
    let state = parts.vm_state(vm.uuid)?;
    let mut stats = VmStats {
        snapshots: state.published.len() as u64,
        forgotten: state.forgotten.len() as u64,
        unfinished_sessions: state.open.len() as u64,
        moved_chunks: state.moved.iter().map(|list| u64::from(list.ids)).sum(),
        ..VmStats::default()
    };
    for published in &state.published {
        match parts.manifest(vm.uuid, published) {
            Ok(manifest) => {
                stats.logical_bytes += manifest.counts.logical_bytes;
                if published.sequence >= state.resolved_below {
                    stats.unresolved_chunks += manifest.counts.unresolved_chunks;
                }
            }
            Err(error) if error.is_corruption() => stats.damaged_snapshots += 1,
            Err(error) => return Err(error),
        }
    }
    let pack_store = parts.pack_store();
    let mut packs = Vec::new();
    for_each_pack(pack_store, PackScope::Vm(vm.uuid), |pack| {
        stats.packs += 1;
        match pack.home.has_chunks() {
            true => stats.chunk_pack_bytes += pack.info.size,
            false => stats.recipe_pack_bytes += pack.info.size,
        }
        packs.push(pack.number);
        Ok(())
    })?;
    if let Some(vid) = pack_store.volumes.meta(vm.uuid, false)? {
        stats.metadata_bytes = pack_store.volumes.store.volume_stats(vid)?.bytes;
    }
    packs.sort_unstable();
    let (_, mut dead) = parts.vm_state_and_dead(vm.uuid)?;
    stats.leak_estimate_bytes = dead.leak_bytes;
    dead.retain(|pack| packs.binary_search(&pack).is_ok());
    stats.dead_frames = dead.total();
    for (home, volume, number) in dead.packs() {
        match pack_store.footer(home, volume, number) {
            Ok(Some((footer, _))) => {
                let rows = footer.rows.iter().zip(0..).filter(|(_, slot)| dead.has(number, *slot));
                stats.dead_bytes += rows.map(|(row, _)| u64::from(row.stored)).sum::<u64>();
            }
            Ok(None) => {}
            Err(error) if error.is_corruption() => {}
            Err(error) => return Err(error),
        }
    }
    stats.vm = Some(vm);
    Ok(stats)
}

/// Carries out `Repository::repair_leak`.
pub(crate) fn repair_leak(
    parts: &RepositoryParts,
    vm: &str,
    memory_bytes: u64,
    progress: &dyn Progress,
    cancel: &CancelFlag,
) -> Result<PruneSummary> {
    parts.roles().require(Role::Delete)?;
    parts.must_be_fleet()?;
    let vm = parts.directory().find(vm)?;
    let options = PruneOptions {
        method: FreeMethod::Exact,
        vm: Some(vm.uuid),
        max_unused_percent: 100,
        memory_bytes,
        ..PruneOptions::default()
    };
    let summary = prune(parts, &options, progress, cancel)?;
    match summary.busy_vms {
        0 => Ok(summary),
        _ => Err(busy(&vm)),
    }
}

/// Carries out `Repository::remove_vm`.
pub(crate) fn remove_vm(
    parts: &RepositoryParts,
    lookup: &SnapshotLookup<'_>,
    vm: &str,
    force: bool,
    accept_clock: bool,
) -> Result<Vm> {
    parts.roles().require(Role::Delete)?;
    parts.must_be_fleet()?;
    let _alone = parts.locks().alone()?;
    let vm = parts.directory().find(vm)?;
    let log = LogName::Vm(vm.uuid);
    loop {
        let state = parts.vm_state(vm.uuid)?;
        let used = in_use(&state);
        if used == VmUse::Retired {
            break;
        }
        may_remove(lookup, &vm, &state.published, force, accept_clock)?;
        if used == VmUse::Open {
            return Err(busy(&vm));
        }
        // The record must stand directly behind everything that was read. If a backup opens meanwhile,
        // its record takes this number and the append is lost.
        if let AppendOutcome::Done = parts.catalog().append(log, state.next_number, &Record::Retired)? {
            break;
        }
    }
    let store = &*parts.pack_store().volumes.store;
    let mut volumes = Vec::new();
    for_each_volume(store, &format!("vm-{}.", vm.uuid.simple()), |_, vid| {
        volumes.push(vid);
        Ok(())
    })?;
    for vid in volumes {
        match store.remove_volume(vid, RemoveMode::WithFiles) {
            Ok(()) | Err(VolumeError::VolumeGone) => {}
            Err(error) => return Err(error.into()),
        }
    }
    loop {
        let domain = parts.catalog().domain()?;
        if !domain.vms.contains(&vm) {
            break;
        }
        let record = Record::VmRemoved { vm: vm.uuid };
        let appended = parts.catalog().append(LogName::Domain, domain.next_number, &record)?;
        if let AppendOutcome::Done = appended {
            break;
        }
    }
    parts.pack_store().forget_cached();
    parts.note_change();
    Ok(vm)
}

fn may_remove(
    lookup: &SnapshotLookup<'_>,
    vm: &Vm,
    published: &[PublishedSnapshot],
    force: bool,
    accept_clock: bool,
) -> Result<()> {
    let holds = published.iter().map(|one| one.held_until_ms);
    if let Some(clock) = lookup.clock_for_holds(holds, accept_clock)?
        && let Some(held) = published.iter().find(|one| clock.holds(one.held_until_ms))
    {
        let reason = clock.refusal(&held.snapshot.short(), held.held_until_ms);
        return Err(Error::Denied { reason });
    }
    if !published.is_empty() && !force {
        let reason = format!(
            "{} has {} snapshots, which would be gone for good; --force removes them with it",
            vm.name,
            published.len()
        );
        return Err(Error::Denied { reason });
    }
    Ok(())
}

fn busy(vm: &Vm) -> Error {
    Error::Busy { what: format!("VM {}", vm.name) }
}
