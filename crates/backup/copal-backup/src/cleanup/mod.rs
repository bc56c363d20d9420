//! Clean-up: what several VMs of a fleet have and nobody noticed becomes popular, and each VM gives up its own frames of it.
//!
//! Design: docs/design/backup.md#clean-up BAK-22
//! Paper:  low-profile-dedup §2 (clean-up of undetected duplicates)
//!
//! - [`round`]: asks about some of the VM's frames and finds out which have a popular one. [`moving`]: gives those up.
//! - [`leftovers`]: popular packs that nobody ever entered.
//!
//! Memory: one round, which is as large as the caller allows.
//! Not here: who knows what others have (`copal-agent`), removing what is dead then (`prune`).

mod leftovers;
mod moving;
mod one_vm;
mod round;

use crate::backup::{Collaboration, PopularPacker};
use crate::catalog::record::Record;
use crate::dead_frames;
use crate::error::{Error, Result};
use crate::keys::random;
use crate::progress::{CancelFlag, Progress, Stage};
use crate::prune::fence_all;
use crate::reindex::{Whose, for_each_pack};
use crate::repository::Repository;
use crate::request::{CleanUpSummary, Vm};
use crate::role::Role;
use crate::volumes::Home;
use moving::{append_unless_changed, must_be_idle};
use one_vm::{CleanUp, OwnPack};
use round::Round;

/// What a frame takes in a round: what it is, its answer, where it moves, and the list that says so.
const FRAME_MEMORY_BYTES: u64 = 160;
/// A round asks about so many frames at least, and fewer than a list of moved ones has room for.
const ROUND_FRAMES: std::ops::RangeInclusive<u64> = 1024..=200_000;

impl Repository {
    /// Asks others about all chunks that a VM has for itself. What several VMs have is stored where all find it, unless it is
    /// there, and the VM's own frames of it are dead from then on: `delete` and `prune` remove them. Nothing of another VM is
    /// changed, and no snapshot. May be repeated after a failure, and goes on where it was.
    /// # Errors
    /// `NotFound`; `Denied`: the layout is solo, or this handle has no delete role. `Busy`: the VM is being backed up.
    /// `Cancelled`, `Ended` by the others, `Damaged`; those of the store.
    pub fn clean_up_vm(
        &self,
        vm: &str,
        others: &Collaboration<'_>,
        memory_bytes: u64,
        progress: &dyn Progress,
        cancel: &CancelFlag,
    ) -> Result<CleanUpSummary> {
        self.roles().require(Role::Delete)?;
        self.must_be_fleet()?;
        let _shared = self.parts.enter()?;
        let vm = self.parts.directory().find(vm)?;
        let _writer = self.parts.locks().claim(&vm)?;
        let mut cleanup = CleanUp {
            parts: &self.parts,
            others,
            progress,
            cancel,
            summary: CleanUpSummary::default(),
        };
        let outcome = cleanup.run(&vm, memory_bytes);
        self.parts.note_change();
        outcome.map(|()| CleanUpSummary {
            vm: Some(vm),
            ..cleanup.summary
        })
    }
}

impl CleanUp<'_> {
    fn run(&mut self, vm: &Vm, memory_bytes: u64) -> Result<()> {
        let parts = self.parts;
        let pack_store = parts.pack_store();
        if !pack_store.volumes.store.is_replicated() {
            // This process has the store to itself, and does not back the VM up: whoever opened a session is gone.
            fence_all(parts, vm.uuid)?;
        }
        let state = parts.vm_state(vm.uuid)?;
        must_be_idle(vm, &state)?;
        let before = pack_store.read_bytes();
        parts.index_vm(vm.uuid)?;
        let dead = dead_frames::read(pack_store, vm.uuid, state.dead.as_ref())?;
        let mut packs = Vec::new();
        for_each_pack(pack_store, Whose::Vm(vm.uuid), |pack| {
            if pack.home == Home::Private(vm.uuid) {
                packs.push(OwnPack {
                    volume: pack.volume,
                    number: pack.number,
                    frames: 0,
                });
            }
            Ok(())
        })?;
        self.progress.stage(Stage::Index, &vm.name, packs.len() as u64);
        let mut popular = PopularPacker::new(parts, random()?, self.others.writer)?;
        let most = (memory_bytes / FRAME_MEMORY_BYTES).clamp(*ROUND_FRAMES.start(), *ROUND_FRAMES.end());
        let mut packs = packs.into_iter();
        for number in 0.. {
            let mut round = Round::new(parts, vm, number);
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
            let found = round.run(self, &mut popular)?;
            self.give_up(vm, &round, found)?;
        }
        // Sequences that were given by now; a backup that began since waits for none of this.
        if self.summary.unanswered == 0 {
            self.clear_unresolved(vm, state.next_sequence)?;
        }
        self.summary.read_bytes += pack_store.read_bytes() - before;
        Ok(())
    }

    /// No snapshot below this sequence has a chunk any more about which nobody answered.
    fn clear_unresolved(&self, vm: &Vm, below: u64) -> Result<()> {
        let cleared = append_unless_changed(self.parts, vm, |state| {
            Ok((state.resolved_below < below).then(|| Record::Moved {
                moved: state.moved.clone(),
                dead: state.dead,
                resolved_below: below,
            }))
        });
        match cleared {
            // A backup began: the next clean-up says it.
            Err(Error::Busy { .. }) => Ok(()),
            cleared => cleared.map(drop),
        }
    }
}
