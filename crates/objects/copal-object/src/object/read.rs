//! Reading one range of an object.
//!
//! A range takes one device read where it lies in one piece; pieces near each other share one.
//! `ReadCheck::Pages` reads whole pages and verifies them; `ReadCheck::Caller` reads logical blocks and
//! leaves verification to the caller.
//!
//! Design: docs/design/object.md#reads
//! Invariants
//! - Bytes in flight are returned after their write has completed, never before.
//! - Pages that a read uses are not reused while it runs.
//! - If a command of several parts fails, each part is read by itself: damage between them fails no read.
//!
//! Not here: many ranges (`ranges`).

use super::{
    answer::RangeAnswer,
    command::{JoinLimits, ReadCommand},
    plan::{RangePlan, ReadPin},
};
use crate::{ObjectId, StoreError, engine::pump::wait_change, state::StoreCore};
use bytes::Bytes;
use copal_device::{AlignedBuf, Completer, Completion, Io, IoClass, IoDone, IoKind};
use std::{ops::Range, sync::Arc};

/// A read whose commands are in flight.
struct RunningRead {
    store: Arc<StoreCore>,
    answer: RangeAnswer,
    class: IoClass,
    pin: ReadPin,
}

/// See `Store::read`.
pub(crate) fn read(
    store: &Arc<StoreCore>,
    id: ObjectId,
    range: &Range<u64>,
    class: IoClass,
) -> Completion<Result<Bytes, StoreError>> {
    let (mut plan, limits, pin) = match plan_alone(store, id, range) {
        Ok(planned) => planned,
        Err(error) => return Completion::ready(Err(error)),
    };
    if let Err(error) = plan.fetch_sums(store, &mut None) {
        return Completion::ready(Err(error));
    }
    let mut running = RunningRead { store: Arc::clone(store), answer: plan.answer, class, pin };
    let commands = limits.join(plan.parts);
    if commands.is_empty() {
        return Completion::ready(running.answer.finish());
    }
    if commands.len() == 1 && class != IoClass::Background {
        let done = commands.into_iter().map(|command| read_here(store, command));
        let again: Vec<ReadCommand> = running.take(done.collect(), true);
        let done = again.into_iter().map(|command| read_here(store, command)).collect();
        running.take(done, false);
        return Completion::ready(running.answer.finish());
    }
    let (completer, completion) = store.promise();
    running.submit(commands, true, completer);
    completion
}

/// A command and its bytes, or the error.
pub(super) type DoneCommand = (ReadCommand, Result<AlignedBuf, StoreError>);

/// Runs the command on this thread.
pub(super) fn read_here(store: &StoreCore, command: ReadCommand) -> DoneCommand {
    let buf = store.device.read_now(command.at, AlignedBuf::stale(command.len));
    (command, buf.map_err(StoreError::Device))
}

pub(super) fn io_of(command: &ReadCommand, class: IoClass) -> Io {
    Io { at: command.at, kind: IoKind::Read(AlignedBuf::stale(command.len)), class }
}

pub(super) fn bytes_of(done: IoDone) -> Result<AlignedBuf, StoreError> {
    done.result.map_err(StoreError::Device).map(|()| done.buf.unwrap_or_else(|| AlignedBuf::zeroed(0)))
}

impl RunningRead {
    /// Adds the bytes of ended commands; returns the commands to repeat part by part.
    fn take(&mut self, done: Vec<DoneCommand>, repeats: bool) -> Vec<ReadCommand> {
        let page_bytes = self.store.shape.page_bytes;
        let mut again = Vec::new();
        for (command, read) in done {
            match read {
                Ok(buf) => {
                    let bytes = Bytes::from_owner(buf);
                    for part in &command.parts {
                        let at = (part.at - command.at) as usize;
                        self.answer.add(part, &bytes, at, page_bytes);
                    }
                }
                Err(_) if repeats && command.is_joined() => again.extend(command.into_single()),
                Err(error) => {
                    command.parts.iter().for_each(|part| self.answer.fail(part, error.clone()));
                }
            }
        }
        again
    }

    fn submit(
        mut self,
        commands: Vec<ReadCommand>,
        repeats: bool,
        completer: Completer<Result<Bytes, StoreError>>,
    ) {
        let ios = commands.iter().map(|command| io_of(command, self.class)).collect();
        let store = Arc::clone(&self.store);
        store.device.submit(ios).on_complete(move |done: Vec<IoDone>| {
            let done = commands.into_iter().zip(done.into_iter().map(bytes_of)).collect();
            let again = self.take(done, repeats);
            if !again.is_empty() {
                return self.submit(again, false, completer);
            }
            let RunningRead { answer, pin, .. } = self;
            drop(pin);
            completer.complete(answer.finish());
        });
    }
}

/// The plan of one range, with its pages pinned. Waits for bytes in flight.
fn plan_alone(
    store: &Arc<StoreCore>,
    id: ObjectId,
    range: &Range<u64>,
) -> Result<(RangePlan, JoinLimits, ReadPin), StoreError> {
    let mut state = store.state.lock();
    loop {
        let plan = RangePlan::new(store, &state, 0, id, range)?;
        if plan.is_in_flight(store, &state) && state.fence.failure().is_none() {
            wait_change(store, &mut state);
            continue;
        }
        let limits = JoinLimits::of(store, state.streams.raw_extent_runs());
        let pin = ReadPin::take(store, &mut state, plan.pages(store).collect());
        return Ok((plan, limits, pin));
    }
}
