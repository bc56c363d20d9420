//! Prune: frees the space of everything that no published snapshot refers to. Exact.
//!
//! Decision: docs/decisions/2026-11-21-exact-index-and-mark.md
//!
//! Runs exclusively in its process (under the packs lock). Solo: it fences every open session first, so no
//! session can refer to a frame that the prune removes. Fleet: it goes VM by VM, skips one that is being backed
//! up, and gives way to a backup that begins (`removal_lists`). Steps; a crash in any of them is safe:
//! 1. fence; bring the index up to date; list the packs; mark (`mark`), slice by slice;
//! 2. unlink packs without a live frame (`sweep`): index rows first, then the file; they are listed before
//!    (BAK-15);
//! 3. rewrite packs with dead frames while more than the allowed share is unused. Live frames go to new
//!    packs, which are durable and in the index before the old ones are unlinked. Packs with the largest dead
//!    share come first, a few at a time: their space is freed before the next are written, so a prune needs
//!    little space;
//! 4. delete unpublished manifests; remove empty volumes.
//!
//! A pack that cannot be read, or has a lost live frame, is never rewritten. It is unlinked only if no frame
//! of it is live.

pub(crate) mod removal_lists;
mod rewrite;
mod sweep;
mod vm_prune;
mod walked_vms;

use crate::catalog::heartbeats::clear_heartbeats;
use crate::catalog::log::{AppendOutcome, LogName};
use crate::catalog::record::{MAX_LISTED, Record};
use crate::catalog::vm::PublishedSnapshot;
use crate::delete::mark::{FrameMarks, PackSlice};
use crate::index::dead_frames::DeadFrames;
use crate::index::reindex::{PackScope, for_each_pack};
use crate::keys::role::Role;
use crate::packs::pack::PackNumber;
use crate::packs::pack_store::PackStore;
use crate::packs::volumes::for_each_file;
use crate::request::error::{Error, Result};
use crate::request::progress::{CancelFlag, Progress, Stage};
use crate::request::{Layout, PruneOptions, PruneSummary, Vm};
use crate::sessions::parts::RepositoryParts;
use crate::snapshot::manifest::{self, Manifest};
use crate::steps::session::ending;
use copal_volume::{ReadOptions, VolumeError};
use removal_lists::RemovalLists;
use sweep::{LiveFrames, PackSweep};
use uuid::Uuid;

/// Carries out `Repository::prune`.
pub(crate) fn prune(
    parts: &RepositoryParts,
    options: &PruneOptions,
    progress: &dyn Progress,
    cancel: &CancelFlag,
) -> Result<PruneSummary> {
    if !options.dry_run {
        parts.roles().require(Role::Delete)?;
    }
    let _alone = parts.locks().alone()?;
    parts.catch_up();
    let outcome = run(parts, options, progress, cancel);
    if parts.is_written_by_several()
        && !options.dry_run
        && let Err(error) = clear_heartbeats(parts.catalog().files())
    {
        tracing::debug!(%error, "old heartbeats could not be removed");
    }
    parts.pack_store().forget_cached();
    parts.note_change();
    outcome
}

/// Runs a prune. The caller holds the packs lock exclusively.
fn run(
    parts: &RepositoryParts,
    options: &PruneOptions,
    progress: &dyn Progress,
    cancel: &CancelFlag,
) -> Result<PruneSummary> {
    let mut summary = PruneSummary::default();
    let vms = parts.directory().all()?;
    let mut prune = PruneRun { parts, options, progress, cancel, summary: &mut summary };
    match parts.pack_store().layout {
        Layout::Solo => prune.all(&vms)?,
        Layout::Fleet { .. } => {
            let wanted = |vm: &&Vm| options.vm.is_none_or(|only| only == vm.uuid);
            let walked = walked_vms::walked(parts, options.method, &vms)?;
            vms.iter().filter(wanted).try_for_each(|vm| prune.vm(vm, &walked))?;
        }
    }
    parts.pack_store().forget_cached();
    if !options.dry_run {
        let swept = parts.pack_store().volumes.store.sweep()?;
        if swept > 0 {
            tracing::info!(files = swept, "files of removed volumes were deleted");
        }
    }
    if !options.dry_run && parts.pack_store().keys.roles().are_split {
        parts.catalog().write_due_checkpoints(&vms);
    }
    if !options.dry_run
        && let Err(error) = bundle_names(parts, &vms)
    {
        tracing::debug!(%error, "the catalog and the manifests were not bundled");
    }
    Ok(summary)
}

/// Lets hosts without a cache read the logs and manifests of all VMs by few requests.
fn bundle_names(parts: &RepositoryParts, vms: &[Vm]) -> Result<()> {
    let mut vids = vec![parts.catalog().files().vid()];
    for vm in vms {
        vids.extend(parts.pack_store().volumes.meta(vm.uuid, false)?);
    }
    Ok(parts.pack_store().volumes.store.bundle(&vids)?)
}

/// A running prune.
struct PruneRun<'a> {
    parts: &'a RepositoryParts,
    options: &'a PruneOptions,
    progress: &'a dyn Progress,
    cancel: &'a CancelFlag,
    summary: &'a mut PruneSummary,
}

impl<'a> PruneRun<'a> {
    /// Prunes a repository in which every snapshot may refer to every chunk.
    fn all(&mut self, vms: &[Vm]) -> Result<()> {
        let parts = self.parts;
        if !self.options.dry_run {
            for vm in vms {
                self.summary.swept_sessions += fence_all(parts, vm.uuid)?;
            }
        }
        parts.index_all_packs(self.progress, self.cancel)?;
        let change = match self.options.dry_run {
            true => None,
            false => match parts.begin_change() {
                // A prune must run even if the store is too full for an epoch file. Its own index follows
                // each step.
                Err(Error::NoSpace) if !parts.pack_store().volumes.store.is_replicated() => None,
                change => Some(change?),
            },
        };
        let mut announced = RemovalLists::in_epoch(parts);
        self.sweep(PackScope::All, vms, &[], &mut announced, None)?;
        if !self.options.dry_run {
            for vm in vms {
                drop_manifests(parts, vm.uuid)?;
            }
            remove_empty_volumes(parts, PackScope::All)?;
            announced.end()?;
        }
        if let Some(change) = change {
            change.entered();
        }
        Ok(())
    }

    /// Marks and sweeps packs, slice by slice. `vms` are all VMs whose snapshots may refer to a frame of
    /// them; `others` are walked in addition.
    fn sweep(
        &mut self,
        whose: PackScope,
        vms: &[Vm],
        others: &[Vm],
        announced: &mut RemovalLists<'a>,
        mut left: Option<&mut DeadFrames>,
    ) -> Result<()> {
        let parts = self.parts;
        let pack_store = parts.pack_store();
        let mut present = self.measure(whose)?;
        let passes = PackSlice::count(present.len() as u64, self.options.memory_bytes);
        self.summary.mark_passes = self.summary.mark_passes.max(passes);
        for index in 0..passes {
            let slice = PackSlice { index, of: passes };
            self.progress.stage(Stage::Walk, "", 0);
            if index > 0 {
                // The previous slice has removed and written packs.
                pack_store.forget_cached();
                present = list_packs(pack_store, whose, None)?;
            }
            let mut marks = FrameMarks::new(pack_store, &present, slice, whose.vm())?;
            for vm in vms {
                let manifests = manifests(parts, vm.uuid, self.options)?;
                marks.vm(&manifests, self.progress, self.cancel)?;
            }
            marks.walk_others();
            for vm in others {
                let manifests = manifests(parts, vm.uuid, self.options)?;
                marks.vm(&manifests, self.progress, self.cancel)?;
            }
            self.slice(whose, &LiveFrames::Marked(&marks), slice, announced, left.as_deref_mut())?;
        }
        Ok(())
    }

    /// Numbers of all packs, ascending; adds their bytes to the summary.
    fn measure(&mut self, whose: PackScope) -> Result<Vec<PackNumber>> {
        let mut bytes = 0;
        let present = list_packs(self.parts.pack_store(), whose, Some(&mut bytes))?;
        self.summary.before_bytes += bytes;
        self.summary.after_bytes += bytes;
        Ok(present)
    }

    fn slice(
        &mut self,
        whose: PackScope,
        live: &LiveFrames<'_, '_>,
        slice: PackSlice,
        announced: &mut RemovalLists<'a>,
        left: Option<&mut DeadFrames>,
    ) -> Result<()> {
        let mut sweep = PackSweep {
            parts: self.parts,
            whose,
            options: self.options,
            progress: self.progress,
            cancel: self.cancel,
            summary: &mut *self.summary,
            left,
            announced,
        };
        let rewritten = sweep.slice(live, slice)?;
        rewrite::rewrite(&mut sweep, live, &rewritten)
    }
}

/// Numbers of all packs, ascending; adds up their bytes.
fn list_packs(
    pack_store: &PackStore,
    whose: PackScope,
    mut bytes: Option<&mut u64>,
) -> Result<Vec<PackNumber>> {
    let mut present = Vec::new();
    for_each_pack(pack_store, whose, |pack| {
        present.push(pack.number);
        if let Some(bytes) = &mut bytes {
            **bytes += pack.info.size;
        }
        Ok(())
    })?;
    present.sort_unstable();
    Ok(present)
}

/// Ends every open session of a VM; returns their number.
pub(crate) fn fence_all(parts: &RepositoryParts, vm: Uuid) -> Result<u64> {
    let mut fenced = 0;
    loop {
        let state = parts.vm_state(vm)?;
        let Some(record) = state.open.first().and_then(|stale| ending(&state, stale)) else {
            return Ok(fenced);
        };
        if let AppendOutcome::Done = parts.catalog().append(LogName::Vm(vm), state.next_number, &record)? {
            fenced += 1;
        }
    }
}

/// Manifests of all published snapshots of a VM, oldest first, except those that a dry run leaves out.
fn manifests(parts: &RepositoryParts, vm: Uuid, options: &PruneOptions) -> Result<Vec<Manifest>> {
    let state = parts.vm_state(vm)?;
    let stays =
        |published: &&PublishedSnapshot| !options.dry_run || !options.without.contains(&published.snapshot);
    let manifest = |published: &PublishedSnapshot| {
        let read = parts.manifest(vm, published);
        read.map_err(|error| forget_first(error, published))
    };
    state.published.iter().filter(stays).map(manifest).collect()
}

/// The references of a damaged snapshot are unknown, so nothing may be removed while it exists.
fn forget_first(error: Error, published: &PublishedSnapshot) -> Error {
    match error {
        Error::Damaged { what, detail } => Error::Damaged {
            what,
            detail: format!(
                "{detail}; nothing was removed, `copal forget {}` lets prune go on",
                published.snapshot.short()
            ),
        },
        error => error,
    }
}

/// Deletes the unpublished manifests of a VM, then records that in its log.
fn drop_manifests(parts: &RepositoryParts, vm: Uuid) -> Result<()> {
    let volumes = &parts.pack_store().volumes;
    let Some(vid) = volumes.meta(vm, false)? else {
        return Ok(());
    };
    let state = parts.vm_state(vm)?;
    let mut stale = Vec::new();
    for_each_file(&*volumes.store, vid, b"m.", |name, info| {
        let published = state
            .published
            .iter()
            .any(|published| manifest::file_name(published.snapshot).as_bytes() == name);
        if !published {
            stale.push((name.to_vec(), info.fid));
        }
        Ok(())
    })?;
    for (name, fid) in stale {
        volumes.store.delete(vid, &name, fid)?;
    }
    for listed in state.forgotten.chunks(MAX_LISTED) {
        let record = Record::Deleted { snapshots: listed.iter().map(|one| one.snapshot).collect() };
        let next = parts.vm_state(vm)?.next_number;
        // If another record takes the number, the next prune records it.
        parts.catalog().append(LogName::Vm(vm), next, &record)?;
    }
    volumes.store.reclaim(vid)?;
    Ok(())
}

fn remove_empty_volumes(parts: &RepositoryParts, whose: PackScope) -> Result<()> {
    let volumes = &parts.pack_store().volumes;
    for home in whose.homes(parts.pack_store())? {
        for (number, vid) in volumes.numbers(home)? {
            // The removal itself checks again that the volume is empty.
            let any = volumes.store.list(vid, b"", None, 1, &ReadOptions::default())?;
            if any.is_empty() {
                // A removal alone frees space in the background, and the store may be closed before that
                // ends. If the store is too full to reclaim first, the removal does it.
                match volumes.store.reclaim(vid) {
                    Ok(()) | Err(VolumeError::NoSpace) => {}
                    Err(error) => return Err(error.into()),
                }
                volumes.remove_empty(home, number, vid)?;
            } else {
                volumes.store.reclaim(vid)?;
            }
        }
    }
    Ok(())
}
