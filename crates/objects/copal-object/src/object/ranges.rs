//! Reading many ranges: sorted by address, joined, answered as their commands end.
//!
//! Ranges are sorted a window at a time, so that planning takes 16 bytes a range and at most 4 MiB. From the
//! sorted ranges the reader takes batches. It pins the pages of a batch, and submits all of its commands at
//! once.
//!
//! Design: docs/design/object.md#reads
//! Invariants
//! - Each range gets one answer, on the caller's thread. No lock and no pin is held during the answer, so the
//!   sink may commit.
//! - Commands in flight and bytes without an answer stay within the budget, unless one range exceeds it.
//! - The pages of a batch are pinned until its last command ends; the pin does not depend on the caller.
//! - If a command of several parts fails, each of its ranges is read by itself.
//!
//! Not here: one range (`read`).

use super::{
    answer::RangeAnswer,
    command::{JoinLimits, ReadCommand, ReadPart},
    plan::{RangePlan, ReadPin, first_address},
    read::{self, DoneCommand, bytes_of, io_of, read_here},
};
use crate::{ObjectId, StoreError, engine::pump::wait_change, state::StoreCore};
use bytes::Bytes;
use copal_device::{IoClass, IoDone};
use parking_lot::{Condvar, Mutex};
use std::{
    collections::{HashMap, HashSet},
    ops::{ControlFlow, Range},
    sync::Arc,
    time::Duration,
};

/// Receives the answers of [`Store::read_many`](crate::Store::read_many): the index of the range, and its
/// bytes. `Break` ends the call; ranges without an answer are then not read.
pub type ObjectRangeSink<'a> = dyn FnMut(usize, Result<Bytes, StoreError>) -> ControlFlow<()> + 'a;

/// Most ranges that are sorted together.
const WINDOW_RANGES: usize = 1 << 18;
/// Most ranges that are planned under one lock.
const BATCH_RANGES: usize = 512;
/// Poll interval of a waiter on a driven device. Only tests have driven devices.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// See `Store::read_many`.
pub(crate) fn read_many(
    store: &Arc<StoreCore>,
    reads: &[(ObjectId, Range<u64>)],
    budget_bytes: u64,
    class: IoClass,
    sink: &mut ObjectRangeSink<'_>,
) {
    for (window, reads) in reads.chunks(WINDOW_RANGES).enumerate() {
        let first = window * WINDOW_RANGES;
        let mut reader = RangeReader {
            store,
            reads,
            budget_bytes,
            class,
            sink: &mut |number, answer| sink(first + number as usize, answer),
            order: Vec::with_capacity(reads.len()),
            planned: 0,
            pending: HashMap::new(),
            done: Arc::default(),
            in_flight: 0,
            held_bytes: 0,
        };
        if reader.run().is_break() {
            break;
        }
    }
}

/// Commands that ended, by any thread.
#[derive(Default)]
struct DoneCommands {
    done: Mutex<Vec<Option<DoneCommand>>>,
    arrived: Condvar,
}

impl DoneCommands {
    fn put(&self, done: Option<DoneCommand>) {
        self.done.lock().push(done);
        self.arrived.notify_one();
    }

    /// Blocks until a command has ended.
    ///
    /// # Panics
    /// When a device dropped a command without an answer.
    fn take(&self, store: &StoreCore) -> Vec<DoneCommand> {
        loop {
            let mut done = self.done.lock();
            if !done.is_empty() {
                let done = std::mem::take(&mut *done).into_iter();
                let Some(done) = done.collect() else { panic!("a read was dropped before it completed") };
                return done;
            }
            match &store.driver {
                None => self.arrived.wait(&mut done),
                Some(driver) => {
                    drop(done);
                    if !driver.drive() {
                        self.arrived.wait_for(&mut self.done.lock(), LOOK_AGAIN);
                    }
                }
            }
        }
    }
}

/// Puts a command to the done ones, also if its device drops it.
struct CommandEnd {
    to: Arc<DoneCommands>,
    command: Option<ReadCommand>,
    _pin: Arc<ReadPin>,
}

impl CommandEnd {
    fn end(mut self, done: IoDone) {
        let done = self.command.take().map(|command| (command, bytes_of(done)));
        self.to.put(done);
    }
}

impl Drop for CommandEnd {
    fn drop(&mut self) {
        if self.command.is_some() {
            self.to.put(None);
        }
    }
}

/// A range of which some parts have not arrived.
struct PendingRange {
    answer: RangeAnswer,
    /// Bytes of its own buffer.
    held_bytes: u64,
    /// A joined command failed: it is read by itself.
    repeats: bool,
}

/// Commands and memory of a batch, while ranges are added in the order of their addresses.
#[derive(Clone, Default)]
struct BatchSize {
    commands: usize,
    bytes: u64,
    /// Beginning and end of the last command.
    open: Range<u64>,
}

impl BatchSize {
    fn add(&mut self, plan: &RangePlan, limits: &JoinLimits) {
        let mut has_own_buffer = plan.parts.len() > 1;
        for part in &plan.parts {
            has_own_buffer |= self.add_part(part, limits);
        }
        if has_own_buffer {
            self.bytes += plan.answer.len as u64;
        }
    }

    /// Returns whether the part is cut.
    fn add_part(&mut self, part: &ReadPart, limits: &JoinLimits) -> bool {
        let (open, io_bytes) = (self.open.clone(), limits.io_bytes as u64);
        let end = part.end().max(open.end);
        let is_near = part.at >= open.start && part.at.saturating_sub(open.end) <= limits.gap_bytes;
        if self.commands > 0 && is_near && end - open.start <= io_bytes {
            self.bytes += end - open.end;
            self.open.end = end;
            return false;
        }
        let overlaps = part.at < open.end && part.end() > open.start;
        let start = if overlaps { open.end } else { part.at };
        let rest = part.end().saturating_sub(start);
        if rest > 0 {
            self.commands += rest.div_ceil(io_bytes) as usize;
            self.bytes += rest;
            self.open = start + (rest - 1) / io_bytes * io_bytes..part.end();
        }
        overlaps || rest > io_bytes
    }
}

/// Ranges that were planned together, with their pages pinned.
struct ReadBatch {
    plans: Vec<(u32, RangePlan)>,
    /// Ranges that cannot be planned.
    refused: Vec<(u32, StoreError)>,
    limits: JoinLimits,
    pin: ReadPin,
}

type AnswerSink<'a> = dyn FnMut(u32, Result<Bytes, StoreError>) -> ControlFlow<()> + 'a;

/// The ranges of one window.
struct RangeReader<'a> {
    store: &'a Arc<StoreCore>,
    reads: &'a [(ObjectId, Range<u64>)],
    budget_bytes: u64,
    class: IoClass,
    sink: &'a mut AnswerSink<'a>,
    /// First address and number of each range, sorted.
    order: Vec<(u64, u32)>,
    /// Ranges of the order that were planned.
    planned: usize,
    pending: HashMap<u32, PendingRange>,
    done: Arc<DoneCommands>,
    in_flight: usize,
    /// Bytes of commands in flight and of buffers of pending ranges.
    held_bytes: u64,
}

impl RangeReader<'_> {
    fn run(&mut self) -> ControlFlow<()> {
        self.sort();
        loop {
            while self.planned < self.order.len() && self.has_room() {
                let batch = self.plan();
                if batch.plans.is_empty() && batch.refused.is_empty() {
                    break;
                }
                self.start(batch)?;
            }
            if self.in_flight == 0 {
                return ControlFlow::Continue(());
            }
            for done in self.done.take(self.store) {
                self.end(done)?;
            }
        }
    }

    /// Orders the ranges by address. Only a hint: objects may be rewritten meanwhile.
    fn sort(&mut self) {
        let mut number = 0;
        for reads in self.reads.chunks(BATCH_RANGES) {
            let state = self.store.state.lock();
            for (id, range) in reads {
                let at = first_address(self.store, &state, *id, range);
                self.order.push((at.unwrap_or(0), number));
                number += 1;
            }
        }
        self.order.sort_unstable();
    }

    fn has_room(&self) -> bool {
        self.in_flight == 0
            || self.in_flight <= self.store.shape.depth / 2 && self.held_bytes <= self.budget_bytes / 2
    }

    /// The next ranges that fit; none if they must wait for commands in flight. Waits for writes of their
    /// bytes.
    fn plan(&mut self) -> ReadBatch {
        let store = self.store;
        let bytes_max = self.budget_bytes.saturating_sub(self.held_bytes);
        let commands_max = store.shape.depth.saturating_sub(self.in_flight);
        let (mut plans, mut refused) = (Vec::new(), Vec::new());
        let mut size = BatchSize::default();
        let mut state = store.state.lock();
        let mut limits = JoinLimits::of(store, state.streams.raw_extent_runs());
        while let Some(&(_, number)) = self.order.get(self.planned)
            && plans.len() + refused.len() < BATCH_RANGES
        {
            let (id, range) = &self.reads[number as usize];
            let plan = match RangePlan::new(store, &state, number, *id, range) {
                Ok(plan) => plan,
                Err(error) => {
                    refused.push((number, error));
                    self.planned += 1;
                    continue;
                }
            };
            let is_first = self.in_flight == 0 && plans.is_empty();
            if plan.is_in_flight(store, &state) && state.fence.failure().is_none() {
                if !is_first || !refused.is_empty() {
                    break;
                }
                wait_change(store, &mut state);
                limits = JoinLimits::of(store, state.streams.raw_extent_runs());
                continue;
            }
            let mut larger = size.clone();
            larger.add(&plan, &limits);
            if !is_first && (larger.bytes > bytes_max || larger.commands > commands_max) {
                break;
            }
            size = larger;
            plans.push((number, plan));
            self.planned += 1;
        }
        let pages = plans.iter().flat_map(|(_, plan)| plan.pages(store)).collect();
        let pin = ReadPin::take(store, &mut state, pages);
        ReadBatch { plans, refused, limits, pin }
    }

    /// Submits all commands of the batch, then answers the ranges that need none.
    fn start(&mut self, batch: ReadBatch) -> ControlFlow<()> {
        let ReadBatch { plans, refused, mut limits, pin } = batch;
        let mut ready: Vec<_> = refused.into_iter().map(|(number, error)| (number, Err(error))).collect();
        let mut parts = Vec::with_capacity(plans.len());
        let mut sums = None;
        for (number, mut plan) in plans {
            if let Err(error) = plan.fetch_sums(self.store, &mut sums) {
                ready.push((number, Err(error)));
            } else if plan.parts.is_empty() {
                ready.push((number, plan.answer.finish()));
            } else {
                parts.append(&mut plan.parts);
                let pending = PendingRange { answer: plan.answer, held_bytes: 0, repeats: false };
                self.pending.insert(number, pending);
            }
        }
        let mut commands = limits.join(parts);
        let room = self.budget_bytes.saturating_sub(self.held_bytes);
        if commands.iter().map(|command| command.len as u64).sum::<u64>() > room {
            // Gaps do not fit the budget.
            limits.gap_bytes = 0;
            commands = limits.join(commands.into_iter().flat_map(|command| command.parts).collect());
        }
        self.put_back(&mut commands);
        self.hold(&commands);
        let is_last = self.planned == self.order.len() && self.in_flight == commands.len();
        let pin = Arc::new(pin);
        let mut done = None;
        for command in commands {
            if is_last && self.in_flight == 1 && self.class != IoClass::Background {
                done = Some(read_here(self.store, command));
                break;
            }
            let io = io_of(&command, self.class);
            let end =
                CommandEnd { to: Arc::clone(&self.done), command: Some(command), _pin: Arc::clone(&pin) };
            self.store.device.submit(vec![io]).on_complete(move |mut done| {
                if let Some(done) = done.pop() {
                    end.end(done);
                }
            });
        }
        drop(pin);
        ready.into_iter().try_for_each(|(number, answer)| (self.sink)(number, answer))?;
        done.map_or(ControlFlow::Continue(()), |done| self.end(done))
    }

    /// Leaves the last command to the next batch, which may make it longer, if no other command has bytes of
    /// its ranges.
    fn put_back(&mut self, commands: &mut Vec<ReadCommand>) {
        let is_last_batch = self.planned == self.order.len();
        let Some(last) = commands.pop_if(|last| {
            let wholes = last.parts.len();
            let Some(from) = self.planned.checked_sub(wholes).filter(|_| !is_last_batch) else {
                return false;
            };
            let numbers: HashSet<u32> =
                self.order[from..self.planned].iter().map(|(_, number)| *number).collect();
            last.parts.iter().all(|part| {
                let range = self.pending.get(&part.range);
                numbers.contains(&part.range)
                    && range.is_some_and(|range| range.answer.len == part.wanted.len())
            })
        }) else {
            return;
        };
        if commands.is_empty() {
            commands.push(last);
            return;
        }
        self.planned -= last.parts.len();
        for part in last.parts {
            self.pending.remove(&part.range);
        }
    }

    /// Counts the commands, and the buffers of ranges that several commands fill.
    fn hold(&mut self, commands: &[ReadCommand]) {
        self.in_flight += commands.len();
        for command in commands {
            self.held_bytes += command.len as u64;
            for part in &command.parts {
                if let Some(range) = self.pending.get_mut(&part.range)
                    && part.wanted.len() < range.answer.len
                    && range.held_bytes == 0
                {
                    range.held_bytes = range.answer.len as u64;
                    self.held_bytes += range.held_bytes;
                }
            }
        }
    }

    /// Answers the ranges that the command completes.
    fn end(&mut self, (command, read): DoneCommand) -> ControlFlow<()> {
        self.in_flight -= 1;
        self.held_bytes -= command.len as u64;
        let read = read.map(Bytes::from_owner);
        let page_bytes = self.store.shape.page_bytes;
        for part in &command.parts {
            let Some(range) = self.pending.get_mut(&part.range) else { continue };
            match &read {
                Ok(bytes) => range.answer.add(part, bytes, (part.at - command.at) as usize, page_bytes),
                Err(error) => {
                    range.repeats |= command.is_joined();
                    range.answer.fail(part, error.clone());
                }
            }
            if !range.answer.is_complete() {
                continue;
            }
            let Some(range) = self.pending.remove(&part.range) else { continue };
            self.held_bytes -= range.held_bytes;
            let answer = match range.repeats {
                true => {
                    let (id, bytes) = &self.reads[part.range as usize];
                    read::read(self.store, *id, bytes, self.class).wait()
                }
                false => range.answer.finish(),
            };
            (self.sink)(part.range, answer)?;
        }
        ControlFlow::Continue(())
    }
}
