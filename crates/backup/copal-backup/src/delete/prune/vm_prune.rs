//! Prune of one VM of a fleet: data of other VMs is neither read nor changed.
//!
//! Order: the list of dead frames is durable, then a record names it. From then on no process adds a
//! reference to these frames, and packs may be removed.

use super::removal_lists::RemovalLists;
use super::sweep::LiveFrames;
use super::{PruneRun, fence_all, remove_empty_volumes};
use crate::catalog::fields::DeadList;
use crate::catalog::record::{MAX_LISTED, Record};
use crate::catalog::vm::{PublishedSnapshot, VmState};
use crate::delete::dead_search;
use crate::delete::mark::PackSlice;
use crate::delete::summary::store as summaries;
use crate::index::dead_frames::{self, DeadFrames};
use crate::index::reindex::PackScope;
use crate::packs::volumes::for_each_file;
use crate::request::error::{Error, Result};
use crate::request::{FreeMethod, SnapshotId, Vm};
use crate::sessions::parts::RepositoryParts;
use crate::snapshot::manifest;
use crate::steps::removal::{PruneStart, beginning};
use copal_volume::FileId;
use std::collections::HashSet;
use uuid::Uuid;

/// Snapshots of a VM.
struct VmSnapshots {
    /// Forgotten snapshots; in a dry run also those that it treats as forgotten.
    gone: Vec<PublishedSnapshot>,
    stay: Vec<PublishedSnapshot>,
}

impl<'a> PruneRun<'a> {
    /// Prunes the data of one VM; the method may also walk the snapshots of `walked`. A VM that is being
    /// backed up is skipped.
    pub(super) fn vm(&mut self, vm: &Vm, walked: &[Vm]) -> Result<()> {
        let parts = self.parts;
        let pack_store = parts.pack_store();
        let is_alone = !pack_store.volumes.store.is_replicated();
        let state = loop {
            let state = parts.vm_state(vm.uuid)?;
            match beginning(&state, is_alone) {
                PruneStart::Go => break state,
                PruneStart::FinishFirst if self.options.dry_run => break state,
                PruneStart::FinishFirst => parts.finish_removals_of(vm.uuid, &state)?,
                // The processes of the open sessions are dead.
                PruneStart::FenceFirst if !self.options.dry_run => {
                    self.summary.swept_sessions += fence_all(parts, vm.uuid)?;
                }
                PruneStart::FenceFirst | PruneStart::GiveWay => {
                    self.summary.busy_vms += 1;
                    return Ok(());
                }
            }
        };
        let before = pack_store.read_bytes();
        let others: Vec<Vm> = walked.iter().filter(|other| other.uuid != vm.uuid).cloned().collect();
        match self.free(vm, &state, &others) {
            // A backup began meanwhile: it may need the frames that would have been removed.
            Err(Error::Busy { .. }) => self.summary.busy_vms += 1,
            // Another process frees snapshots of the VM, or removes it: the walk has met removed files.
            Err(error) if parts.is_overtaken(&error, vm.uuid, &state)? => self.summary.busy_vms += 1,
            freed => freed?,
        }
        self.summary.read_bytes += pack_store.read_bytes() - before;
        Ok(())
    }

    fn free(&mut self, vm: &Vm, state: &VmState, others: &[Vm]) -> Result<()> {
        let parts = self.parts;
        let mut snapshots = VmSnapshots { gone: state.forgotten.clone(), stay: state.published.clone() };
        if self.options.dry_run {
            let is_gone = |one: &mut PublishedSnapshot| self.options.without.contains(&one.snapshot);
            snapshots.gone.extend(snapshots.stay.extract_if(.., is_gone));
        }
        let is_done = snapshots.gone.is_empty() && state.freed.is_empty() && state.removing.is_empty();
        let by_summary = self.options.method == FreeMethod::Summary;
        if by_summary && is_done && state.dead.is_none() {
            return Ok(());
        }
        let mut announced = RemovalLists::in_log(parts, vm.uuid, state.next_number);
        let dead = match by_summary {
            true => self.find_dead(vm.uuid, state, &snapshots)?,
            false => None,
        };
        let list = match dead {
            Some(dead) => self.sweep_dead(vm.uuid, state, &snapshots, dead, &mut announced)?,
            None => self.sweep_unmarked(vm, state, &snapshots, others, &mut announced)?,
        };
        if !self.options.dry_run {
            drop_freed(parts, vm.uuid)?;
            dead_frames::drop_older(parts.pack_store(), vm.uuid, list.as_ref(), state.next_number)?;
            remove_empty_volumes(parts, PackScope::Vm(vm.uuid))?;
            announced.end()?;
        }
        Ok(())
    }

    /// Dead frames by summary vectors, together with those known before; `None`: a walk is necessary.
    fn find_dead(
        &mut self,
        vm: Uuid,
        state: &VmState,
        snapshots: &VmSnapshots,
    ) -> Result<Option<DeadFrames>> {
        let parts = self.parts;
        let known = match parts.index_vm(vm, self.progress, self.cancel) {
            Ok(()) => dead_frames::read(parts.pack_store(), vm, state.dead.as_ref()),
            Err(error) => Err(error),
        };
        let mut dead = match known {
            Ok(dead) => dead,
            Err(error) if error.is_corruption() => return Ok(None),
            Err(error) => return Err(error),
        };
        let VmSnapshots { gone, stay } = snapshots;
        let found = match dead_search::find_dead(parts, vm, gone, stay, &mut dead, self.cancel)? {
            Ok(found) => found,
            Err(gap) => {
                self.progress.notice(gap.notice());
                return Ok(None);
            }
        };
        let summary = &mut *self.summary;
        summary.by_summary += u64::from(!gone.is_empty());
        summary.candidates += found.candidates;
        summary.candidates_dead += found.dead;
        summary.candidates_kept += found.kept;
        summary.freed_bytes += found.dead_bytes;
        summary.leak_estimate_bytes += dead.leak_bytes;
        Ok(Some(dead))
    }

    /// Records dead frames, then removes and rewrites their packs.
    fn sweep_dead(
        &mut self,
        vm: Uuid,
        state: &VmState,
        snapshots: &VmSnapshots,
        mut dead: DeadFrames,
        announced: &mut RemovalLists<'a>,
    ) -> Result<Option<DeadList>> {
        let whose = PackScope::Vm(vm);
        let present = self.measure(whose)?;
        dead.retain(|pack| present.binary_search(&pack).is_ok());
        let list = self.put_on_record(vm, state, snapshots, &dead, announced)?;
        let all = PackSlice { index: 0, of: 1 };
        self.slice(whose, &LiveFrames::NotDead(&dead), all, announced, None)?;
        Ok(list)
    }

    /// Removes and rewrites packs by a walk of all snapshots, then records the remaining dead frames.
    fn sweep_unmarked(
        &mut self,
        vm: &Vm,
        state: &VmState,
        snapshots: &VmSnapshots,
        others: &[Vm],
        announced: &mut RemovalLists<'a>,
    ) -> Result<Option<DeadList>> {
        self.parts.index_vm_packs(vm.uuid, self.progress, self.cancel)?;
        self.summary.by_walk += 1;
        let mut left = DeadFrames::default();
        let (live_before, dead_before) = (self.summary.live_frames, self.summary.dead_frames);
        self.sweep(PackScope::Vm(vm.uuid), std::slice::from_ref(vm), others, announced, Some(&mut left))?;
        // A walk decides about every frame of the VM.
        let kept = self.summary.live_frames - live_before;
        let dead = self.summary.dead_frames - dead_before;
        self.summary.candidates += kept + dead;
        self.summary.candidates_dead += dead;
        self.summary.candidates_kept += kept;
        // Listed before the record: these files belong to no session that may still publish.
        let orphans = orphans(self.parts, vm.uuid, state)?;
        let list = self.put_on_record(vm.uuid, state, snapshots, &left, announced)?;
        if !self.options.dry_run {
            // Packs of recipes were removed, so cached footers are outdated.
            self.parts.pack_store().forget_cached();
            drop_files(self.parts, vm.uuid, orphans)?;
            summaries::mend(self.parts, vm.uuid, &snapshots.stay)?;
        }
        Ok(list)
    }

    /// Records the dead frames: from here on no process adds a reference to them, and the forgotten snapshots
    /// are freed.
    fn put_on_record(
        &self,
        vm: Uuid,
        state: &VmState,
        snapshots: &VmSnapshots,
        dead: &DeadFrames,
        announced: &mut RemovalLists<'a>,
    ) -> Result<Option<DeadList>> {
        if self.options.dry_run {
            return Ok(None);
        }
        let parts = self.parts;
        let list = dead_frames::write(parts.pack_store(), vm, state.dead.as_ref(), state.next_number, dead)?;
        let gone: Vec<SnapshotId> = snapshots.gone.iter().map(|one| one.snapshot).collect();
        announced.free(&gone, list)?;
        parts.remove_dead_rows(dead)?;
        Ok(list)
    }
}

/// Names and ids of files.
type Files = Vec<(Vec<u8>, FileId)>;

/// Manifests and vectors of snapshots that were never published.
fn orphans(parts: &RepositoryParts, vm: Uuid, state: &VmState) -> Result<Files> {
    let volumes = &parts.pack_store().volumes;
    let Some(vid) = volumes.meta(vm, false)? else {
        return Ok(Files::new());
    };
    let known = state
        .published
        .iter()
        .chain(&state.forgotten)
        .map(|one| one.snapshot)
        .chain(state.freed.iter().copied());
    let known: HashSet<String> = known.map(|snapshot| snapshot.to_string()).collect();
    let mut files = Files::new();
    for prefix in [b"m.", b"s."] {
        for_each_file(&*volumes.store, vid, prefix, |name, info| {
            let text = String::from_utf8_lossy(&name[prefix.len()..]).into_owned();
            let snapshot = text.split('.').next().unwrap_or_default();
            if !known.contains(snapshot) {
                files.push((name.to_vec(), info.fid));
            }
            Ok(())
        })?;
    }
    Ok(files)
}

fn drop_files(parts: &RepositoryParts, vm: Uuid, files: Files) -> Result<()> {
    let volumes = &parts.pack_store().volumes;
    let Some(vid) = volumes.meta(vm, false)? else {
        return Ok(());
    };
    for (name, fid) in files {
        volumes.store.delete(vid, &name, fid)?;
    }
    Ok(())
}

/// Deletes manifests and vectors of freed snapshots, then records that in the log.
fn drop_freed(parts: &RepositoryParts, vm: Uuid) -> Result<()> {
    let volumes = &parts.pack_store().volumes;
    let freed = parts.vm_state(vm)?.freed.clone();
    let Some(vid) = volumes.meta(vm, false)? else {
        return Ok(());
    };
    let mut files = Files::new();
    for snapshot in &freed {
        for prefix in [manifest::file_name(*snapshot), summaries::prefix(*snapshot)] {
            for_each_file(&*volumes.store, vid, prefix.as_bytes(), |name, info| {
                files.push((name.to_vec(), info.fid));
                Ok(())
            })?;
        }
    }
    drop_files(parts, vm, files)?;
    for listed in freed.chunks(MAX_LISTED) {
        let snapshots = listed.to_vec();
        parts.append(vm, &Record::Deleted { snapshots })?;
    }
    volumes.store.reclaim(vid)?;
    Ok(())
}
