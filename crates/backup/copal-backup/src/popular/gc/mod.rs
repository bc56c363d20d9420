//! Garbage collection of popular packs: condemn, mark the logs, count references, remove.
//!
//! Design: docs/design/backup.md#popular-packs-that-nobody-needs BAK-27
//! Paper: low-profile-dedup §4 (popular chunks are not deleted with a snapshot; their use is counted from
//! time to time)
//!
//! Every VM of a fleet may refer to a popular pack, so the prune of one VM cannot free it. A run has four
//! steps, which are safe beside backups, deletions and clean-ups:
//! 1. Condemn. While no VM is being backed up, a record in log `k` condemns the packs without a reference.
//!    After that, a session or a clean-up that has read this record adds no reference to these packs.
//! 2. Mark the logs. The log of each VM gets a record. A session that opened before this record may not know
//!    the condemned packs: while one is open, the run ends here, and a later run continues. A session that
//!    opens after the record reads log `k` afterwards, and so does a clean-up.
//! 3. Count. All references are counted again: those of snapshots, and those in lists of moved chunks. A
//!    snapshot that is published later has only references of its base, which are counted, and references to
//!    packs that are not condemned.
//! 4. Remove. One record spares the needed packs, another one marks the rest as removed. A pack about which
//!    another process decided meanwhile is left alone. Then the files of removed packs are deleted, like
//!    those of dead writers (`consolidate::abandoned_packs`).
//!
//! Crash: packs stay condemned and readable, and the next run continues with them. The files of packs marked
//! as removed are deleted by the next sweep.
//! Memory: a bit for each popular frame that is needed, and the pages of the largest recipe tree.

mod references;

use crate::catalog::fields::SessionId;
use crate::catalog::log::{AppendOutcome, LogName};
use crate::catalog::popular::{PopularFate, PopularState};
use crate::catalog::record::Record;
use crate::delete::prune::fence_all;
use crate::keys::role::Role;
use crate::packs::pack::PackNumber;
use crate::popular::consolidate::abandoned_packs::sweep_popular;
use crate::request::error::{Error, Result};
use crate::request::progress::{CancelFlag, Progress};
use crate::request::{UnneededPacks, Vm};
use crate::sessions::parts::RepositoryParts;
use crate::steps::popular_removal::{CountStep, MOST_CONDEMNED, condemnable, counting, verdict};
use references::needed;
use std::collections::{BTreeMap, BTreeSet};

/// Carries out `Repository::remove_unneeded`.
pub(crate) fn remove_unneeded(
    parts: &RepositoryParts,
    dry_run: bool,
    progress: &dyn Progress,
    cancel: &CancelFlag,
) -> Result<UnneededPacks> {
    parts.roles().require(Role::Delete)?;
    parts.must_be_fleet()?;
    let mut found = UnneededPacks::default();
    {
        let _alone = parts.locks().alone()?;
        parts.catch_up();
        let mut run = RemovalRun { parts, progress, cancel, found: &mut found, spared: BTreeSet::new() };
        // Each pass handles as many packs as can be condemned at once.
        while run.decide(dry_run)? > 0 {}
        parts.note_change();
    }
    if !dry_run {
        let swept = sweep_popular(parts, cancel)?;
        (found.removed_packs, found.removed_bytes) = (swept.packs, swept.bytes);
    }
    Ok(found)
}

struct RemovalRun<'a> {
    parts: &'a RepositoryParts,
    progress: &'a dyn Progress,
    cancel: &'a CancelFlag,
    found: &'a mut UnneededPacks,
    /// Packs that turned out to be needed: of two popular frames of a chunk either may be the good one.
    spared: BTreeSet<PackNumber>,
}

impl RemovalRun<'_> {
    /// Returns the number of packs that it decided about.
    fn decide(&mut self, dry_run: bool) -> Result<usize> {
        let catalog = self.parts.catalog();
        if catalog.popular()?.packs.is_empty() {
            return Ok(0);
        }
        if !dry_run && !self.parts.pack_store().volumes.store.is_replicated() {
            // This process is the only one in the store and runs no backup, so the processes of open sessions
            // are dead.
            for vm in self.parts.directory().all()? {
                fence_all(self.parts, vm.uuid)?;
            }
        }
        self.found.waiting_for = self.backed_up()?;
        if !self.found.waiting_for.is_empty() && !dry_run {
            // No snapshot refers yet to the popular chunks that these backups store.
            return Ok(0);
        }
        let before = catalog.popular()?;
        let mut unneeded = condemnable(&before, &self.needed(&before)?);
        unneeded.retain(|pack| !self.spared.contains(pack));
        let already = before.condemned().count();
        if self.found.unneeded_packs == 0 {
            self.found.unneeded_packs = (unneeded.len() + already) as u64;
        }
        if dry_run {
            return Ok(0);
        }
        unneeded.truncate(MOST_CONDEMNED.saturating_sub(already));
        self.condemn(&unneeded)?;
        let condemned: BTreeMap<PackNumber, u64> = catalog.popular()?.condemned().collect();
        if condemned.is_empty() {
            return Ok(0);
        }
        self.found.waiting_for = self.mark_logs()?;
        let is_idle = self.found.waiting_for.is_empty();
        if is_idle {
            self.carry_out(&condemned)?;
        }
        self.found.condemned_packs = catalog.popular()?.condemned().count() as u64;
        Ok(if is_idle { condemned.len() } else { 0 })
    }

    /// VMs that are being backed up.
    fn backed_up(&self) -> Result<Vec<Vm>> {
        let mut open = Vec::new();
        for vm in self.parts.directory().all()? {
            if !self.parts.vm_state(vm.uuid)?.open.is_empty() {
                open.push(vm);
            }
        }
        Ok(open)
    }

    fn condemn(&self, unneeded: &[PackNumber]) -> Result<()> {
        let catalog = self.parts.catalog();
        loop {
            let state = catalog.popular()?;
            let stays = |pack: &&PackNumber| {
                let known = state.pack(**pack);
                known.is_some_and(|known| known.fate == PopularFate::Stays)
            };
            let packs: Vec<PackNumber> = unneeded.iter().filter(stays).copied().collect();
            if packs.is_empty() {
                return Ok(());
            }
            // The next look tells whether the record counts.
            catalog.append(LogName::Popular, state.next_number, &Record::Condemned { packs })?;
        }
    }

    /// Counts once more, and spares or removes the packs that were condemned before.
    fn carry_out(&mut self, condemned: &BTreeMap<PackNumber, u64>) -> Result<()> {
        let catalog = self.parts.catalog();
        let state = catalog.popular()?;
        let needed = self.needed(&state)?;
        loop {
            let state = catalog.popular()?;
            let Some(record) = verdict(&state, condemned, &needed) else {
                break;
            };
            catalog.append(LogName::Popular, state.next_number, &record)?;
        }
        let state = catalog.popular()?;
        let is_gone =
            |pack: &&PackNumber| state.pack(**pack).is_some_and(|known| known.fate == PopularFate::Removed);
        let (gone, spared): (Vec<&PackNumber>, Vec<&PackNumber>) = condemned.keys().partition(is_gone);
        self.found.gone_packs += gone.len() as u64;
        self.found.spared_packs += spared.len() as u64;
        self.spared.extend(spared);
        Ok(())
    }

    /// Appends a record to the log of each VM, after the condemnation. Returns the VMs with sessions that are
    /// older.
    fn mark_logs(&self) -> Result<Vec<Vm>> {
        let mut waiting = Vec::new();
        for vm in self.parts.directory().all()? {
            self.check_cancel()?;
            if !self.mark_log(&vm)?.is_empty() {
                waiting.push(vm);
            }
        }
        Ok(waiting)
    }

    fn mark_log(&self, vm: &Vm) -> Result<Vec<SessionId>> {
        let log = LogName::Vm(vm.uuid);
        loop {
            let state = self.parts.vm_state(vm.uuid)?;
            let open = match counting(&state) {
                CountStep::Retired => return Ok(Vec::new()),
                CountStep::Append { open } => open,
            };
            if let AppendOutcome::Done =
                self.parts.catalog().append(log, state.next_number, &Record::Counted)?
            {
                return Ok(open);
            }
        }
    }

    fn needed(&self, state: &PopularState) -> Result<BTreeSet<PackNumber>> {
        needed(self.parts, state, self.progress, self.cancel)
    }

    fn check_cancel(&self) -> Result<()> {
        match self.cancel.is_cancelled() {
            true => Err(Error::Cancelled { kept_bytes: None }),
            false => Ok(()),
        }
    }
}
