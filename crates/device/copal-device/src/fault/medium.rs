//! Medium of a fault device: its bytes, its history, and the armed faults.
//!
//! Invariants
//! - The failure of a write or flush is drawn at its submission, so `skip` counts submissions.
//! - The history holds the actual changes of the medium, the shadow the intended ones.

use super::FaultOptions;
use super::inject::{Fault, FaultBudget, FlushFault, WriteFault};
use crate::crash;
use crate::memory::DISCARDED;
use crate::random::DeviceRandom;
use crate::record::{DeviceChange, DeviceHistory, HistoryEvent};
use crate::{DeviceError, Image, IoKind};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Planned effect of a submitted command at its completion.
pub(super) struct CommandPlan {
    id: u64,
    /// Actual change of the medium.
    change: Option<DeviceChange>,
    /// Intended change.
    meant: Option<DeviceChange>,
    /// Error number of its answer.
    fails: Option<i32>,
    lies: bool,
}

pub(super) struct FaultMedium {
    pub(super) image: Image,
    pub(super) shadow: Option<Image>,
    pub(super) history: DeviceHistory,
    pub(super) random: DeviceRandom,
    record: bool,
    full_host: bool,
    pub(super) max_size: u64,
    block: u64,
    next_id: u64,
    poisoned: Option<DeviceError>,
    flush_failed: bool,
    /// Failed commands, and whether they took effect all the same.
    orphans: Vec<(u64, bool)>,
    unreadable: BTreeSet<u64>,
    stale: Vec<(std::ops::Range<u64>, Image)>,
    armed: Vec<Fault>,
    budget: FaultBudget,
}

impl FaultMedium {
    pub(super) fn new(image: Image, options: &FaultOptions) -> FaultMedium {
        let faulty = options.budget.one_in > 0;
        FaultMedium {
            shadow: faulty.then(|| image.clone()),
            history: DeviceHistory::new(image.clone(), options.logical_block),
            image,
            random: DeviceRandom::new(options.seed),
            record: options.record,
            full_host: options.full_host,
            max_size: options.max_size,
            block: u64::from(options.logical_block),
            next_id: 0,
            poisoned: None,
            flush_failed: false,
            orphans: Vec::new(),
            unreadable: BTreeSet::new(),
            stale: Vec::new(),
            armed: Vec::new(),
            budget: options.budget,
        }
    }

    /// Only the first cause counts.
    fn poison(&mut self, error: DeviceError) -> DeviceError {
        self.poisoned.get_or_insert(error.clone());
        error
    }

    fn expect_unpoisoned(&self) -> Result<(), DeviceError> {
        match &self.poisoned {
            None => Ok(()),
            Some(error) if error.is_host_full() => Err(error.clone()),
            Some(_) => Err(DeviceError::Poisoned),
        }
    }

    fn note(&mut self, event: HistoryEvent) {
        if self.record {
            self.history.events.push(event);
        }
    }

    /// Accepts a command: from now on a crash may keep any part of it.
    pub(super) fn begin(&mut self, at: u64, kind: &IoKind) -> Result<(u64, CommandPlan), DeviceError> {
        if !matches!(kind, IoKind::Read(_)) {
            self.expect_unpoisoned()?;
        }
        let id = self.next_id;
        self.next_id += 1;
        let mut plan = CommandPlan { id, change: None, meant: None, fails: None, lies: false };
        match kind {
            IoKind::Read(_) => {}
            IoKind::Write { buf, fua } => {
                let meant = DeviceChange::Bytes { at, data: Arc::from(&buf[..]), fua: *fua };
                plan.change = match self.write_fault() {
                    None if self.full_host && !self.hollow(at, buf.len() as u64).is_empty() => {
                        plan.fails = Some(libc::ENOSPC);
                        None
                    }
                    None => Some(meant.clone()),
                    Some(WriteFault::Lost) => None,
                    Some(WriteFault::Misdirected { to }) => {
                        let to = to.min(self.image.size() - buf.len() as u64);
                        Some(DeviceChange::Bytes { at: to, data: Arc::from(&buf[..]), fua: *fua })
                    }
                    Some(WriteFault::Error) => {
                        plan.fails = Some(libc::EIO);
                        Some(meant.clone())
                    }
                    Some(WriteFault::HostFull) => {
                        plan.fails = Some(libc::ENOSPC);
                        Some(meant.clone())
                    }
                };
                plan.meant = Some(meant);
            }
            IoKind::Discard(len) => plan.meant = Some(DeviceChange::Fill { at, len: *len, byte: DISCARDED }),
            IoKind::WriteZeroes(len) => plan.meant = Some(DeviceChange::Fill { at, len: *len, byte: 0 }),
            IoKind::Flush => {
                let fault = self.flush_fault();
                plan.fails = match fault {
                    Some(FlushFault::Error) => Some(libc::EIO),
                    Some(FlushFault::HostFull) => Some(libc::ENOSPC),
                    Some(FlushFault::Lie) | None => None,
                };
                plan.lies = fault == Some(FlushFault::Lie);
                self.note(HistoryEvent::FlushBegin { id });
            }
        }
        if matches!(kind, IoKind::Discard(_) | IoKind::WriteZeroes(_)) {
            plan.change = plan.meant.clone();
        }
        if let Some(change) = &plan.change {
            self.note(HistoryEvent::Begin { id, change: change.clone() });
        }
        Ok((id, plan))
    }

    /// Completes a command.
    pub(super) fn execute(
        &mut self,
        at: u64,
        kind: &mut IoKind,
        plan: CommandPlan,
    ) -> Result<(), DeviceError> {
        let (op, len) = (kind.name(), kind.len_bytes());
        let failed = |errno| DeviceError::io(op, at, len, std::io::Error::from_raw_os_error(errno));
        match kind {
            IoKind::Read(buf) => {
                return if self.read(at, buf) { Ok(()) } else { Err(failed(libc::EIO)) };
            }
            IoKind::Flush if plan.fails.is_some() => self.flush_failed = true,
            IoKind::Flush => self.note(HistoryEvent::FlushEnd { id: plan.id, honest: !plan.lies }),
            IoKind::Write { .. } if plan.fails.is_some() => self.orphan(&plan),
            IoKind::Write { .. } | IoKind::Discard(_) | IoKind::WriteZeroes(_) => {
                self.take_effect(&plan);
                if plan.change.is_some() {
                    self.note(HistoryEvent::End { id: plan.id });
                }
            }
        }
        match plan.fails {
            None => Ok(()),
            Some(errno) => Err(self.poison(failed(errno))),
        }
    }

    fn take_effect(&mut self, plan: &CommandPlan) {
        if let Some(change) = &plan.change {
            change.apply(&mut self.image);
            if let DeviceChange::Bytes { at, data, .. } = change {
                let (first, last) = (*at / self.block, (*at + data.len() as u64) / self.block);
                self.unreadable.retain(|block| !(first..last).contains(block));
            }
        }
        if let (Some(meant), Some(shadow)) = (&plan.meant, &mut self.shadow) {
            meant.apply(shadow);
        }
    }

    /// Records a failed command: it takes effect or not. Until the device is reopened, a crash may still keep
    /// or lose it.
    fn orphan(&mut self, plan: &CommandPlan) {
        let happens = self.random.one_in(2);
        if happens {
            self.take_effect(plan);
        }
        if plan.change.is_some() {
            self.orphans.push((plan.id, happens));
        }
    }

    /// Settles failed commands at a reopening: each has taken effect, or never will.
    fn settle_orphans(&mut self) {
        for (id, happens) in std::mem::take(&mut self.orphans) {
            self.settle(id, happens);
        }
    }

    /// Records the outcome of a command whose answer no caller receives.
    fn settle(&mut self, id: u64, happens: bool) {
        self.note(if happens { HistoryEvent::End { id } } else { HistoryEvent::Lost { id } });
    }

    /// The process that submitted the command died. The kernel settles commands in flight before the device
    /// can be opened again: each has taken effect, or never will.
    pub(super) fn settle_in_flight(&mut self, plan: &CommandPlan) {
        let happens = self.random.one_in(2);
        if happens {
            self.take_effect(plan);
        }
        if plan.change.is_some() {
            self.settle(plan.id, happens);
        }
    }

    /// Prepares the medium for a new handle. After a failed flush the device was reset and durably holds some
    /// legal state.
    pub(super) fn revive(&mut self) {
        self.poisoned = None;
        self.settle_orphans();
        if !std::mem::take(&mut self.flush_failed) || !self.record {
            return;
        }
        let limits = crash::StateLimits { seed: self.random.next(), ..crash::StateLimits::default() };
        let states = crash::states(&self.history, self.history.len(), &limits);
        let index = self.random.below(states.count_all());
        if let Some(state) = states.get(index) {
            self.image = state.image().clone();
            self.note(HistoryEvent::Reset { image: self.image.clone() });
        }
    }

    pub(super) fn can_grow(&self) -> bool {
        self.image.size() < self.max_size
    }

    pub(super) fn grow(&mut self, wanted: u64) -> Result<u64, DeviceError> {
        let size = self.image.size();
        self.expect_unpoisoned()?;
        if wanted <= size {
            return Ok(size);
        }
        if wanted > self.max_size || self.grow_fault() {
            return Err(DeviceError::CannotGrow { size, wanted, reason: "its file system is full" });
        }
        self.record_change(DeviceChange::Size { size: wanted });
        Ok(wanted)
    }

    pub(super) fn cut(&mut self, wanted: u64) -> Result<u64, DeviceError> {
        let size = self.image.size();
        self.expect_unpoisoned()?;
        if wanted >= size {
            return Ok(size);
        }
        self.record_change(DeviceChange::Cut { size: wanted });
        Ok(wanted)
    }

    /// Allocates space for the discarded parts of this range; they read as zeros.
    pub(super) fn reserve(&mut self, at: u64, len: u64) -> Result<(), DeviceError> {
        self.expect_unpoisoned()?;
        if self.grow_fault() {
            let size = self.image.size();
            return Err(DeviceError::CannotGrow { size, wanted: size, reason: "its file system is full" });
        }
        for hollow in self.hollow(at, len) {
            self.record_change(DeviceChange::Fill {
                at: hollow.start,
                len: hollow.end - hollow.start,
                byte: 0,
            });
        }
        Ok(())
    }

    /// Parts of a range that were discarded and not written since.
    fn hollow(&self, at: u64, len: u64) -> Vec<std::ops::Range<u64>> {
        let mut parts: Vec<std::ops::Range<u64>> = Vec::new();
        let mut block = vec![0; self.block as usize];
        for from in (at..at + len).step_by(block.len()) {
            self.image.read(from, &mut block);
            if block.iter().any(|byte| *byte != DISCARDED) {
                continue;
            }
            match parts.last_mut() {
                Some(last) if last.end == from => last.end += self.block,
                _ => parts.push(from..from + self.block),
            }
        }
        parts
    }

    /// Records a change that completes at once.
    fn record_change(&mut self, change: DeviceChange) {
        let id = self.next_id;
        self.next_id += 1;
        change.apply(&mut self.image);
        if let Some(shadow) = &mut self.shadow {
            change.apply(shadow);
        }
        self.note(HistoryEvent::Begin { id, change });
        self.note(HistoryEvent::End { id });
    }

    fn read(&mut self, at: u64, buf: &mut [u8]) -> bool {
        let blocks = buf.len() as u64 / self.block;
        if let Some(fault) = self.budget.read(&mut self.random, at, blocks, self.block) {
            self.inject(fault);
        }
        let first = at / self.block;
        if self.unreadable.range(first..first + blocks).next().is_some() {
            return false;
        }
        self.image.read(at, buf);
        for (range, old) in &self.stale {
            let from = range.start.max(at);
            let to = range.end.min(at + buf.len() as u64).min(old.size());
            if from < to {
                old.read(from, &mut buf[(from - at) as usize..(to - at) as usize]);
            }
        }
        true
    }

    pub(super) fn inject(&mut self, fault: Fault) {
        if self.shadow.is_none() {
            self.shadow = Some(self.image.clone());
        }
        match fault {
            Fault::ReadError { at, len } => {
                self.unreadable.extend(at / self.block..(at + len).div_ceil(self.block));
            }
            Fault::StaleRead { at, len } => self.stale.push((at..at + len, self.image.clone())),
            Fault::BitFlip { at, bit } => {
                let mut byte = [0];
                self.image.read(at, &mut byte);
                byte[0] ^= 1 << (bit % 8);
                self.image.write(at, &byte);
                self.note(HistoryEvent::Rot { at, data: Arc::from(&byte[..]) });
            }
            Fault::Write { .. } | Fault::Flush { .. } | Fault::Grow { .. } => self.armed.push(fault),
        }
    }

    pub(super) fn heal(&mut self) {
        self.armed.clear();
        self.stale.clear();
        self.unreadable.clear();
        self.budget = FaultBudget::default();
        self.settle_orphans();
        if let Some(shadow) = self.shadow.take() {
            self.image = shadow;
            self.note(HistoryEvent::Reset { image: self.image.clone() });
        }
    }

    fn write_fault(&mut self) -> Option<WriteFault> {
        let armed = self.strike(|fault| match fault {
            Fault::Write { skip, fault } => Some((skip, *fault)),
            _ => None,
        });
        let blocks = self.image.size() / self.block;
        armed.or_else(|| self.budget.write(&mut self.random, blocks, self.block))
    }

    fn flush_fault(&mut self) -> Option<FlushFault> {
        let armed = self.strike(|fault| match fault {
            Fault::Flush { skip, fault } => Some((skip, *fault)),
            _ => None,
        });
        armed.or_else(|| self.budget.flush(&mut self.random))
    }

    fn grow_fault(&mut self) -> bool {
        let armed = self.strike(|fault| match fault {
            Fault::Grow { skip } => Some((skip, ())),
            _ => None,
        });
        armed.is_some() || self.budget.grow(&mut self.random)
    }

    /// Counts one command against every armed fault of its kind; returns the fault that strikes.
    fn strike<F>(&mut self, mut of_kind: impl FnMut(&mut Fault) -> Option<(&mut u32, F)>) -> Option<F> {
        let mut struck = None;
        self.armed.retain_mut(|fault| match of_kind(fault) {
            Some((skip, _)) if *skip > 0 => {
                *skip -= 1;
                true
            }
            Some((_, effect)) if struck.is_none() => {
                struck = Some(effect);
                false
            }
            _ => true,
        });
        struck
    }
}
