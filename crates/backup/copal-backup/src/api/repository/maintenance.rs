//! Methods of [`Repository`]: checks, deletion and repair; VMs, popular packs, sessions and agents of a fleet.

use super::Repository;
use crate::api::stats::repository_stats;
use crate::api::vms;
use crate::backup::Collaboration;
use crate::catalog;
use crate::catalog::agents::ListedAgent;
use crate::catalog::salvage::salvage_logs;
use crate::check;
use crate::delete::prune::{fence_all, prune};
use crate::index::reindex::{self, PackScope};
use crate::keys::role::Role;
use crate::popular::consolidate::abandoned_packs::sweep_popular;
use crate::popular::consolidate::clean_up_vm;
use crate::popular::gc::remove_unneeded;
use crate::popular::{self, PopularFrames, PopularStatus, SpoiledPack, UncheckedPack};
use crate::request::error::{Error, Result};
use crate::request::open_session::{Holder, HolderId, HolderInfo, OpenSession};
use crate::request::progress::{CancelFlag, Progress, Silent};
use crate::request::*;
use crate::sessions::lease;
use crate::sessions::lease::agents;
use crate::sessions::lease::heartbeat::HeartbeatGuard;
use crate::sessions::lease::watch::LeaseWatch;
use crate::sessions::parts::readable;
use std::time::Duration;

impl Repository {
    /// Checks the whole repository. The report lists the damage; an error means that the check could not go
    /// on.
    /// # Errors
    /// `Cancelled`, `Busy`; errors of the store that are not damage.
    pub fn check(
        &self,
        read_data: ReadData,
        progress: &dyn Progress,
        cancel: &CancelFlag,
    ) -> Result<CheckReport> {
        let _shared = self.parts.enter()?;
        let index_error = readable(self.parts.index_all_packs(progress, cancel))?;
        let outcome = check::check(&self.parts, read_data, progress, cancel);
        self.parts.sync_damage();
        let mut report = outcome?;
        if let Some(error) = index_error {
            report.note(error, None)?;
        }
        Ok(report)
    }

    /// Frees the space of forgotten snapshots: removes packs without a live frame, rewrites none.
    /// # Errors
    /// As [`Repository::prune`].
    pub fn delete(&self, progress: &dyn Progress, cancel: &CancelFlag) -> Result<PruneSummary> {
        self.prune(&PruneOptions { max_unused_percent: 100, ..PruneOptions::default() }, progress, cancel)
    }

    /// As `delete`; also rewrites packs with dead frames, and ends unfinished backups and removes their
    /// files.
    /// # Errors
    /// `Busy`: another operation runs. `Damaged`: a snapshot cannot be read, so nothing was removed; forget
    /// it first. `Denied`: this handle has no delete role. `Cancelled`; errors of the store.
    pub fn prune(
        &self,
        options: &PruneOptions,
        progress: &dyn Progress,
        cancel: &CancelFlag,
    ) -> Result<PruneSummary> {
        prune(&self.parts, options, progress, cancel)
    }

    /// Sizes and counts of the repository.
    /// # Errors
    /// `Damaged`; errors of the store.
    pub fn stats(&self) -> Result<RepositoryStats> {
        repository_stats(&self.parts)
    }

    /// Clears the index and rebuilds it from pack footers.
    /// # Errors
    /// `Busy`: another operation runs. `Cancelled`; errors of the store and the index.
    pub fn repair_index(&self, progress: &dyn Progress, cancel: &CancelFlag) -> Result<IndexSummary> {
        let _alone = self.parts.locks().alone()?;
        self.parts.catch_up();
        self.parts.pack_store().forget_cached();
        self.parts.pack_store().index.clear()?;
        self.parts.forget_indexed();
        let summary = reindex::reindex(self.parts.pack_store(), PackScope::All, progress, cancel);
        self.parts.note_indexed(summary.is_ok());
        self.parts.note_change();
        summary
    }

    /// Makes logs of the catalog readable again without their lost or damaged records. Returns a description
    /// of each loss. If a lost record had removed something, that is back as far as its bytes exist: check
    /// the snapshots and remove the damaged ones.
    /// # Errors
    /// `Busy`: another operation runs. `Denied`: this handle has no delete role. Errors of the store.
    pub fn salvage_catalog(&self) -> Result<Vec<String>> {
        self.roles().require(Role::Delete)?;
        let _alone = self.parts.locks().alone()?;
        let lost = salvage_logs(self.parts.catalog())?;
        self.parts.note_change();
        Ok(lost.iter().map(Error::to_string).collect())
    }

    /// Damaged frames that could not be removed from the index, because the store is open for reading only.
    pub fn lost_frames(&self) -> Vec<LostFrame> {
        self.parts.pack_store().unnoted()
    }

    /// Removes damaged frames that another handle found from the index, so that the next backup stores their
    /// chunks anew. Durable on return.
    /// # Errors
    /// Errors of the index.
    pub fn note_lost(&self, frames: &[LostFrame]) -> Result<()> {
        let _shared = self.parts.enter()?;
        self.parts.index_new_packs(&Silent, &CancelFlag::new())?;
        frames.iter().for_each(|frame| self.parts.pack_store().note_lost(frame));
        self.parts.pack_store().index.sync()
    }

    /// Sizes and counts of one VM of a fleet.
    /// # Errors
    /// `NotFound`; `Denied`: the layout is solo. `Damaged`; errors of the store.
    pub fn vm_stats(&self, vm: &str) -> Result<VmStats> {
        vms::vm_stats(&self.parts, vm)
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
        vms::repair_leak(&self.parts, vm, memory_bytes, progress, cancel)
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
        vms::remove_vm(&self.parts, &self.lookup(), vm, force, accept_clock)
    }

    /// Position of the newest entry in the log of popular packs; 0: there is none.
    /// # Errors
    /// `Damaged`; errors of the store.
    pub fn newest_popular(&self) -> Result<u64> {
        popular::newest(&self.parts)
    }

    /// Number that changes whenever popular packs were condemned, spared or removed; 0: none ever was.
    /// # Errors
    /// Errors of the store.
    pub fn popular_generation(&self) -> Result<u64> {
        popular::generation(&self.parts)
    }

    /// Visits the frames of popular packs entered after position `after`, in order; reads the footers of
    /// those packs.
    /// # Errors
    /// `Damaged`: the log is damaged. Errors of the store and of `visit`.
    pub fn for_each_popular_since(
        &self,
        after: u64,
        visit: &mut dyn FnMut(PopularFrames) -> Result<()>,
    ) -> Result<()> {
        popular::for_each_since(&self.parts, after, visit)
    }

    /// The popular packs that no host has checked.
    /// # Errors
    /// `Damaged`: the log is damaged. Errors of the store.
    pub fn unchecked_popular(&self) -> Result<Vec<UncheckedPack>> {
        popular::unchecked(&self.parts)
    }

    /// Opens all frames of a popular pack of another host. If they are good, records that: from then on all
    /// VMs may use the pack. `false`: the pack is bad.
    /// # Errors
    /// `Cancelled`; errors of the store that are not damage.
    pub fn check_popular(&self, pack: u64, cancel: &CancelFlag) -> Result<bool> {
        popular::check(&self.parts, pack, cancel)
    }

    /// The popular packs with wrong content that were recorded as spoiled after position `after`.
    /// # Errors
    /// `Damaged`: the log is damaged. Errors of the store.
    pub fn spoiled_popular(&self, after: u64) -> Result<Vec<SpoiledPack>> {
        popular::spoiled_since(&self.parts, after)
    }

    /// Numbers of popular chunks and packs.
    /// # Errors
    /// `Denied`: the layout has no popular chunks. `Damaged`; errors of the store.
    pub fn popular_status(&self) -> Result<PopularStatus> {
        popular::status(&self.parts)
    }

    /// Asks other hosts about the VM's own chunks: all of them, or those that one backup stored. A chunk that
    /// several VMs have is stored as a popular one, unless it exists already. The VM's own frames of it are
    /// dead from then on; `delete` and `prune` remove them. Other VMs and snapshots are not changed. May be
    /// repeated after a failure, and continues where it stopped.
    /// # Errors
    /// `NotFound`; `Denied`: the layout is solo, or this handle has no delete role, which a dry run does not
    /// need. `Busy`: the VM is being backed up. `Cancelled`, `Ended` by the others, `Damaged`; errors of the
    /// store.
    pub fn clean_up_vm(
        &self,
        vm: &str,
        others: &Collaboration<'_>,
        options: CleanUpOptions,
        progress: &dyn Progress,
        cancel: &CancelFlag,
    ) -> Result<CleanUpSummary> {
        clean_up_vm(&self.parts, vm, others, options, progress, cancel)
    }

    /// Removes popular packs that were left by dead backups and clean-ups, in a fleet.
    /// # Errors
    /// `Denied`: the layout is solo, or this handle has no delete role. `Busy`: another operation runs in
    /// this process. `Cancelled`; `Damaged`: a log is damaged. Errors of the store.
    pub fn sweep_popular(&self, cancel: &CancelFlag) -> Result<SweptPacks> {
        sweep_popular(&self.parts, cancel)
    }

    /// Removes popular packs of a fleet of which no snapshot needs a chunk. Packs condemned in this run are
    /// removed only once the running backups have ended; a later run does that. Reads the recipes of all
    /// snapshots, twice if something is to be removed.
    /// # Errors
    /// `Denied`: the layout is solo, or this handle has no delete role. `Busy`: another operation runs in
    /// this process. `Cancelled`; `Damaged`: the references of a snapshot cannot be read, and nothing was
    /// removed. Errors of the store.
    pub fn remove_unneeded(
        &self,
        dry_run: bool,
        progress: &dyn Progress,
        cancel: &CancelFlag,
    ) -> Result<UnneededPacks> {
        remove_unneeded(&self.parts, dry_run, progress, cancel)
    }

    /// Writes heartbeats until the guard is dropped: the first at once, then one a minute. Guards of one
    /// process with the same holder share them. A backup starts heartbeats by itself, unless its process
    /// writes them already.
    /// # Errors
    /// `Invalid`: name or address is longer than 255 bytes, or has control characters. Errors of the store.
    pub fn beat(&self, holder: &Holder) -> Result<HeartbeatGuard> {
        lease::beat(&self.parts, holder)
    }

    /// The newest heartbeat of each holder that has not ended, by holder. Holders whose process died stay
    /// listed for a week.
    /// # Errors
    /// Errors of the store.
    pub fn holders(&self) -> Result<Vec<HolderInfo>> {
        lease::list_holders(&self.parts)
    }

    /// Open sessions by VM: of running backups, and of dead processes.
    /// # Errors
    /// `Damaged`; errors of the store.
    pub fn sessions(&self) -> Result<Vec<(Vm, Vec<OpenSession>)>> {
        lease::list_sessions(&self.parts)
    }

    /// Observes all sessions at `now`, a monotonic time of the observer that owns `watch`. Ends and returns
    /// those whose holder has written no new heartbeat for ten minutes. Call it about once a minute; longer
    /// intervals only end sessions later. Without heartbeats (in the layout solo, and on one machine) it does
    /// nothing.
    /// # Errors
    /// `Damaged`; errors of the store.
    pub fn watch_leases(&self, watch: &mut LeaseWatch, now: Duration) -> Result<Vec<FencedSession>> {
        lease::watch_leases(&self.parts, watch, now)
    }

    /// As [`Repository::watch_leases`], for one VM. Returns the sessions that are still open; if there are
    /// none, the VM can be backed up.
    /// # Errors
    /// As [`Repository::watch_leases`].
    pub fn watch_vm(&self, vm: &str, watch: &mut LeaseWatch, now: Duration) -> Result<Vec<OpenSession>> {
        lease::watch_vm(&self.parts, vm, watch, now)
    }

    /// Agents that are listed and not retired, by name. Reads a file for each.
    /// # Errors
    /// Errors of the store.
    pub fn listed_agents(&self) -> Result<Vec<ListedAgent>> {
        catalog::agents::listed_agents(self.parts.catalog().files())
    }

    /// Lists an agent and the VMs of its plan, in place of the earlier entry of its name; durable on return.
    /// # Errors
    /// Errors of the store.
    pub fn list_agent(&self, agent: &ListedAgent) -> Result<()> {
        catalog::agents::list_agent(self.parts.catalog().files(), agent)
    }

    /// Retires an agent, so that no job waits for it; `false`: it is not listed.
    /// # Errors
    /// `Denied`: this handle has no delete role. Errors of the store.
    pub fn retire_agent(&self, name: &str) -> Result<bool> {
        agents::retire_agent(&self.parts, name)
    }

    /// Ends the sessions that earlier runs of the agent `name` left open; `own` is its present run. The
    /// caller makes sure that no other agent answers to that name. If a holder is alive after all, its
    /// session can no longer publish (BAK-5).
    /// # Errors
    /// `Damaged`; errors of the store.
    pub fn take_over(&self, name: &str, own: HolderId) -> Result<Vec<FencedSession>> {
        agents::take_over(&self.parts, name, own)
    }
}
