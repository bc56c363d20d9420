//! Clean-up: chunks that several VMs of a fleet store each for itself become popular, and each VM gives up
//! its own frames of them.
//!
//! Design: docs/design/backup.md#clean-up BAK-22
//! Paper:  low-profile-dedup §2 (clean-up of undetected duplicates)
//!
//! A clean-up of one snapshot asks only about the frames that the session of this snapshot stored. A job ends
//! with such clean-ups.
//!
//! - [`round`]: asks about some of the VM's frames and finds their popular frames. [`moves`]: gives up the
//!   VM's own.
//! - [`own_packs`]: the packs whose frames are asked about.
//! - [`abandoned_packs`]: popular packs that were never entered.
//!
//! Memory: one round, whose size the caller bounds.
//! Not here: the answers of other hosts (`copal-agent`), removal of the dead frames (`prune`).

pub(crate) mod abandoned_packs;
mod clean_up;
mod moves;
mod own_packs;
mod round;

use crate::backup::{Collaboration, PopularPacker};
use crate::catalog::record::Record;
use crate::catalog::vm::VmState;
use crate::delete::prune::fence_all;
use crate::keys::random;
use crate::keys::role::Role;
use crate::request::error::{Error, Result};
use crate::request::progress::{CancelFlag, Progress, Stage};
use crate::request::{CleanUpOptions, CleanUpSummary, Vm};
use crate::sessions::parts::RepositoryParts;
use clean_up::CleanUp;
use moves::{append_unless_changed, must_be_idle};
use own_packs::{own_packs, session_of};
use round::CleanUpRound;

/// Memory of a frame in a round: its row, its answer, its popular location, and its entry in the list.
const FRAME_MEMORY_BYTES: u64 = 160;
/// Least and most frames of a round; the most fit into one list of moved frames.
const ROUND_FRAMES: std::ops::RangeInclusive<u64> = 1024..=200_000;

/// Carries out `Repository::clean_up_vm`.
pub(crate) fn clean_up_vm(
    parts: &RepositoryParts,
    vm: &str,
    others: &Collaboration<'_>,
    options: CleanUpOptions,
    progress: &dyn Progress,
    cancel: &CancelFlag,
) -> Result<CleanUpSummary> {
    if !options.dry_run {
        parts.roles().require(Role::Delete)?;
    }
    parts.must_be_fleet()?;
    let _shared = parts.enter()?;
    let vm = parts.directory().find(vm)?;
    let _writer = parts.locks().claim(&vm)?;
    let mut cleanup =
        CleanUp { parts, others, options, progress, cancel, summary: CleanUpSummary::default() };
    let outcome = cleanup.run(&vm);
    parts.note_change();
    outcome.map(|()| CleanUpSummary { vm: Some(vm), ..cleanup.summary })
}

impl CleanUp<'_> {
    fn run(&mut self, vm: &Vm) -> Result<()> {
        let parts = self.parts;
        let pack_store = parts.pack_store();
        if !self.options.dry_run && !pack_store.volumes.store.is_replicated() {
            // This process is the only one in the store and does not back up the VM, so the processes of open
            // sessions are dead.
            fence_all(parts, vm.uuid)?;
        }
        let state = parts.vm_state(vm.uuid)?;
        must_be_idle(vm, &state)?;
        let before = pack_store.read_bytes();
        if !self.options.dry_run {
            parts.index_vm(vm.uuid, self.progress, self.cancel)?;
        }
        let (state, dead) = parts.vm_state_and_dead(vm.uuid)?;
        must_be_idle(vm, &state)?;
        let of_session = self.options.snapshot.map(|snapshot| session_of(parts, vm, &state, snapshot));
        let packs = own_packs(pack_store, vm, of_session.transpose()?)?;
        self.progress.stage(Stage::Index, &vm.name, packs.len() as u64);
        let mut popular = PopularPacker::new(parts, random()?, self.others.writer)?;
        let most = self.options.memory_bytes / FRAME_MEMORY_BYTES;
        let most = most.clamp(*ROUND_FRAMES.start(), *ROUND_FRAMES.end());
        let mut packs = packs.into_iter();
        for number in 0.. {
            let mut round = CleanUpRound::new(parts, vm, number);
            while round.len() < most
                && let Some(pack) = packs.next()
            {
                self.check_cancel()?;
                round.add(pack, &dead)?;
                self.progress.advance(1);
            }
            if round.len() == 0 {
                break;
            }
            self.summary.asked += round.len();
            if self.options.dry_run {
                round.count(self)?;
                continue;
            }
            let found = round.run(self, &mut popular)?;
            self.give_up(vm, &round, found)?;
        }
        if !self.options.dry_run
            && self.summary.unanswered == 0
            && let Some(below) = self.resolved_below(vm, &state)?
        {
            self.clear_unresolved(vm, below)?;
        }
        self.summary.read_bytes += pack_store.read_bytes() - before;
        Ok(())
    }

    /// The sequence below which no snapshot has a chunk without an answer; `None`: older snapshots may have
    /// some.
    fn resolved_below(&self, vm: &Vm, state: &VmState) -> Result<Option<u64>> {
        let Some(snapshot) = self.options.snapshot else {
            // The sequences that were assigned by now. A backup that began since is not affected.
            return Ok(Some(state.next_sequence));
        };
        let mut below = None;
        for published in state.published.iter().filter(|one| one.sequence >= state.resolved_below) {
            let is_asked = published.snapshot == snapshot;
            if is_asked {
                below = Some(published.sequence + 1);
            }
            if !is_asked && self.parts.manifest(vm.uuid, published)?.counts.unresolved_chunks > 0 {
                return Ok(None);
            }
        }
        Ok(below)
    }

    /// Records that no snapshot below this sequence has a chunk without an answer.
    fn clear_unresolved(&self, vm: &Vm, below: u64) -> Result<()> {
        let cleared = append_unless_changed(self.parts, vm, |state| {
            Ok((state.resolved_below < below).then(|| Record::Moved {
                moved: state.moved.clone(),
                dead: state.dead,
                resolved_below: below,
            }))
        });
        match cleared {
            // A backup began: the next clean-up records it.
            Err(Error::Busy { .. }) => Ok(()),
            cleared => cleared.map(drop),
        }
    }
}
