//! Gives up frames of a VM in favour of popular ones.
//!
//! Order: the list of moved frames is durable, then that of dead frames, then one record of the VM's log
//! names both (BAK-22). The record stands behind everything that was read, and never beside an open session
//! (BAK-17). So a session that opens later knows the new locations, and refers to no dead frame.

use super::clean_up::CleanUp;
use super::round::{CleanUpRound, PopularMatch};
use crate::catalog::fields::{MAX_MOVED_LISTS, MovedList};
use crate::catalog::log::{AppendOutcome, LogName};
use crate::catalog::record::Record;
use crate::catalog::vm::VmState;
use crate::index::dead_frames;
use crate::index::moved_frames::{self, MAX_IDS, MovedFrames};
use crate::request::Vm;
use crate::request::error::{Error, Result};
use crate::rules::broken::{self, Flaw};
use crate::sessions::parts::RepositoryParts;
use crate::steps::popular::counts;
use crate::steps::removal::{VmUse, in_use};

impl CleanUp<'_> {
    /// Records that these chunks resolve to popular frames, and that the VM's own frames of them are dead.
    pub(super) fn give_up(
        &mut self,
        vm: &Vm,
        round: &CleanUpRound<'_>,
        found: Vec<PopularMatch>,
    ) -> Result<()> {
        if found.is_empty() {
            return Ok(());
        }
        let parts = self.parts;
        let pack_store = parts.pack_store();
        let mut given_up: Vec<PopularMatch> = Vec::new();
        let mut freed_bytes = 0;
        let state = append_unless_changed(parts, vm, |state| {
            // Read after the VM's log. A count of references appends its record to the VM's log after it has
            // condemned packs. So this record either stands before it and is counted, or the condemned packs
            // are known here (BAK-27).
            let popular = parts.catalog().popular()?;
            let counts = |found: &&PopularMatch| {
                counts(&popular, found.popular.pack) || broken::by(Flaw::MovesToCondemned)
            };
            given_up = found.iter().filter(counts).copied().collect();
            if given_up.is_empty() {
                return Ok(None);
            }
            let moved = MovedFrames::of(given_up.iter().map(|found| found.popular).collect());
            let moved = with_last(parts, vm, &state.moved, &moved)?;
            let mut dead = dead_frames::read(pack_store, vm.uuid, state.dead.as_ref())?;
            freed_bytes = 0;
            for one in &given_up {
                let (location, frames) = round.place(one.own);
                if dead.add(location, frames) {
                    freed_bytes += u64::from(round.frame(one.own).stored);
                }
            }
            Ok(Some(Record::Moved {
                moved,
                dead: dead_frames::write(pack_store, vm.uuid, state.dead.as_ref(), state.next_number, &dead)?,
                resolved_below: state.resolved_below,
            }))
        })?;
        self.summary.moved += given_up.len() as u64;
        let raw = given_up.iter().map(|one| u64::from(round.frame(one.own).raw));
        self.summary.moved_bytes += raw.sum::<u64>();
        self.summary.freed_bytes += freed_bytes;
        parts.index_vm(vm.uuid, self.progress, self.cancel)?;
        moved_frames::drop_older(pack_store, vm.uuid, &state.moved)?;
        dead_frames::drop_older(pack_store, vm.uuid, state.dead.as_ref(), state.next_number)
    }
}

/// The lists in force together with `moved`. The newest list is rewritten with it if both fit into one.
fn with_last(
    parts: &RepositoryParts,
    vm: &Vm,
    lists: &[MovedList],
    moved: &MovedFrames,
) -> Result<Vec<MovedList>> {
    let pack_store = parts.pack_store();
    let mut stay = lists.to_vec();
    let mut frames = moved.frames().to_vec();
    let has_room = |list: &&MovedList| list.ids as usize + frames.len() <= MAX_IDS;
    if let Some(last) = lists.last().filter(has_room) {
        frames.extend(moved_frames::read(pack_store, vm.uuid, last)?.into_frames());
        stay.pop();
    }
    if stay.len() >= MAX_MOVED_LISTS {
        return Err(Error::Invalid {
            reason: format!(
                "{} has moved as many chunks as can be listed; back it up under another name",
                vm.name
            ),
        });
    }
    // The new number is above those of replaced lists too.
    let list = moved_frames::write(pack_store, vm.uuid, lists, &MovedFrames::of(frames))?;
    stay.push(list);
    Ok(stay)
}

/// `Busy` while the VM is being backed up; `Denied` while it is being removed.
pub(super) fn must_be_idle(vm: &Vm, state: &VmState) -> Result<()> {
    match in_use(state) {
        VmUse::Idle => Ok(()),
        VmUse::Retired => Err(Error::Denied { reason: format!("VM {} is being removed", vm.name) }),
        VmUse::Open => Err(Error::Busy { what: format!("VM {}", vm.name) }),
    }
}

/// Appends the record that `make` returns for the present state of the log; repeats that if the log has
/// grown. `None`: there is nothing to append. Returns the state of the log.
/// # Errors
/// As [`must_be_idle`], and errors of `make` and the store.
pub(super) fn append_unless_changed(
    parts: &RepositoryParts,
    vm: &Vm,
    mut make: impl FnMut(&VmState) -> Result<Option<Record>>,
) -> Result<VmState> {
    loop {
        let state = parts.vm_state(vm.uuid)?;
        must_be_idle(vm, &state)?;
        let record = match make(&state) {
            // Another process has replaced a list and deleted the old one.
            Err(error) if parts.is_overtaken(&error, vm.uuid, &state)? => continue,
            record => record?,
        };
        let Some(record) = record else {
            return Ok(VmState::clone(&state));
        };
        let log = LogName::Vm(vm.uuid);
        let appended = parts.catalog().append(log, state.next_number, &record)?;
        let now = parts.vm_state(vm.uuid)?;
        // An append that was reported as lost may have taken effect.
        if matches!(appended, AppendOutcome::Done) || stands(&now, &record) {
            return Ok(VmState::clone(&now));
        }
    }
}

/// Whether the state already has the effect of this record.
fn stands(state: &VmState, record: &Record) -> bool {
    match record {
        Record::Moved { moved, dead, resolved_below } => {
            (&state.moved, state.dead, state.resolved_below) == (moved, *dead, *resolved_below)
        }
        _ => false,
    }
}
