//! Operations on one VM of a fleet: its size, the repair of its leak, its removal.
//!
//! In the layout solo all VMs share their chunks, so these operations do not exist there.

use crate::api::repository::Repository;
use crate::catalog::log::{AppendOutcome, LogName};
use crate::catalog::record::Record;
use crate::delete::prune::fence_all;
use crate::index::dead_frames;
use crate::index::reindex::{PackScope, for_each_pack};
use crate::keys::role::Role;
use crate::packs::volumes::for_each_volume;
use crate::request::error::{Error, Result};
use crate::request::progress::{CancelFlag, Progress};
use crate::request::{FreeMethod, PruneOptions, PruneSummary, Vm, VmStats};
use crate::steps::removal::{VmUse, in_use};
use copal_volume::{Remove, VolumeError};

impl Repository {
    /// Sizes and counts of one VM of a fleet.
    /// # Errors
    /// `NotFound`; `Denied`: the layout is solo. `Damaged`; errors of the store.
    pub fn vm_stats(&self, vm: &str) -> Result<VmStats> {
        self.must_be_fleet()?;
        let parts = &self.parts;
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
        let mut dead = dead_frames::read(parts.pack_store(), vm.uuid, state.dead.as_ref())?;
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

    /// Finds all dead frames of a VM by a walk of its snapshots; makes its vectors and its list of dead
    /// frames anew.
    /// # Errors
    /// As [`Repository::prune`], and `NotFound`; `Denied`: the layout is solo.
    pub fn repair_leak(
        &self,
        vm: &str,
        memory_bytes: u64,
        progress: &dyn Progress,
        cancel: &CancelFlag,
    ) -> Result<PruneSummary> {
        self.roles().require(Role::Delete)?;
        self.must_be_fleet()?;
        let vm = self.parts.directory().find(vm)?;
        let options = PruneOptions {
            method: FreeMethod::Exact,
            vm: Some(vm.uuid),
            max_unused_percent: 100,
            memory_bytes,
            ..PruneOptions::default()
        };
        let summary = self.prune(&options, progress, cancel)?;
        match summary.busy_vms {
            0 => Ok(summary),
            _ => Err(busy(&vm)),
        }
    }

    /// Fences all open sessions of a VM: a backup that still runs cannot publish, and fails. Returns their
    /// number.
    /// # Errors
    /// `NotFound`; errors of the store.
    pub fn fence_sessions(&self, vm: &str) -> Result<u64> {
        let vm = self.parts.directory().find(vm)?;
        fence_all(&self.parts, vm.uuid)
    }

    /// Removes a VM of a fleet with all its data; data of other VMs is neither read nor changed. Its name may
    /// be used for another VM afterwards. May be repeated after a failure. With `force` its visible snapshots
    /// are removed too, except held ones.
    /// # Errors
    /// `NotFound`; `Denied`: the layout is solo, a snapshot is held, or it has snapshots and `force` is not
    /// set. `Busy`: it is being backed up. Errors of the store.
    pub fn remove_vm(&self, vm: &str, force: bool, accept_clock: bool) -> Result<Vm> {
        self.roles().require(Role::Delete)?;
        self.must_be_fleet()?;
        let _alone = self.parts.locks().alone()?;
        let parts = &self.parts;
        let vm = parts.directory().find(vm)?;
        let log = LogName::Vm(vm.uuid);
        loop {
            let state = parts.vm_state(vm.uuid)?;
            let used = in_use(&state);
            if used == VmUse::Retired {
                break;
            }
            self.may_remove(&vm, &state.published, force, accept_clock)?;
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
            match store.remove_volume(vid, Remove::WithFiles) {
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
        &self,
        vm: &Vm,
        published: &[crate::catalog::vm::PublishedSnapshot],
        force: bool,
        accept_clock: bool,
    ) -> Result<()> {
        let holds = published.iter().map(|one| one.held_until_ms);
        if let Some(clock) = self.clock_for_holds(holds, accept_clock)?
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

    /// Refuses the operation in the layout solo.
    /// # Errors
    /// `Denied`: the layout is solo.
    pub(crate) fn must_be_fleet(&self) -> Result<()> {
        match self.info().layout.is_fleet() {
            true => Ok(()),
            false => Err(Error::Denied {
                reason: "in the layout solo VMs share their chunks: forget snapshots and run `copal prune` instead".into(),
            }),
        }
    }
}

fn busy(vm: &Vm) -> Error {
    Error::Busy { what: format!("VM {}", vm.name) }
}
