//! Block traces of whole programs, in the text of tracefs, replayed on a model.
//!
//! Three events count: `block_rq_issue`, and where the trace has them, `block_rq_complete` and
//! `block_rq_requeue`. A replay keeps the order of the issues. A command goes to the drive when no more earlier
//! ones are in it than were in the traced device at the issue:
//! - A trace with completions says that number.
//! - In a trace without, a command that follows another one within 10 us and the other's transfer at 8 GB/s was
//!   in the device together with it. No device ends the first in that time, so no program can have waited for it.
//!   After a longer gap all earlier commands had ended. The kernel issues the parts of one long read 15 to 30 us
//!   apart.
//!
//! A replay has the time of the disk only, not the processor time of the program between two commands.
//!
//! Invariants
//! - No line, of any bytes, ends the reading; an I/O error of the source does.
//! - A line longer than 4 KiB is one unknown line, and takes no more memory than that.

mod device_number;
mod event;

use super::model::{CommandKind, DiskModel, ModelCommand, ModelCounters};
pub use device_number::{DeviceNumber, DeviceNumberError};
use event::{EventKind, TraceEvent};
use std::collections::BTreeMap;
use std::io::{self, BufRead, Read};
use std::time::Duration;

/// Longest line that is looked at.
const LINE_BYTES: u64 = 4096;
/// Time in which no device ends a command and no program issues the next, without the transfer.
const TOGETHER_NANOS: u64 = 10_000;
/// Bytes that the fastest device transfers in a nanosecond.
const FASTEST_BYTES: u64 = 8;
/// Number of last commands among which a requeued one is looked for.
const REQUEUE_REACH: usize = 256;

/// One command of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceCommand {
    /// Its kind and place.
    pub command: ModelCommand,
    /// Earlier commands that were still in the device when this one was issued.
    pub ahead: u32,
}

/// Commands of a trace, by device.
#[derive(Clone, Debug, Default)]
pub struct BlockTrace {
    devices: BTreeMap<DeviceNumber, Vec<TraceCommand>>,
    unknown_lines: u64,
}

/// Result of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplaySummary {
    /// Read commands.
    pub reads: u64,
    /// Bytes they read.
    pub read_bytes: u64,
    /// Write commands, durable or not.
    pub writes: u64,
    /// Bytes they wrote.
    pub write_bytes: u64,
    /// Flush commands.
    pub flushes: u64,
    /// Discard commands.
    pub discards: u64,
    /// Time of the model from the first command to the last end.
    pub time: Duration,
    /// Work of the model since it was made.
    pub counters: ModelCounters,
}

struct IssuedCommand {
    command: ModelCommand,
    nanos: u64,
    ahead: u32,
}

/// Commands of one device while its trace is read.
#[derive(Default)]
struct DeviceLog {
    issued: Vec<IssuedCommand>,
    in_device: u32,
    has_completions: bool,
}

impl BlockTrace {
    /// Reads a trace to its end.
    /// # Errors
    /// Only those of the source.
    pub fn read(mut source: impl BufRead) -> io::Result<BlockTrace> {
        let mut logs: BTreeMap<DeviceNumber, DeviceLog> = BTreeMap::new();
        let mut unknown_lines = 0;
        let mut line = Vec::new();
        let mut goes_on = false;
        loop {
            line.clear();
            if source.by_ref().take(LINE_BYTES).read_until(b'\n', &mut line)? == 0 {
                break;
            }
            let is_tail = goes_on;
            goes_on = line.last() != Some(&b'\n') && line.len() as u64 == LINE_BYTES;
            match TraceEvent::parse(&line) {
                Some(event) if !is_tail && !goes_on => logs.entry(event.device).or_default().add(&event),
                _ if is_tail || line.trim_ascii().is_empty() || line.starts_with(b"#") => {}
                _ => unknown_lines += 1,
            }
        }
        let devices = logs.into_iter().map(|(device, log)| (device, log.finish())).collect();
        Ok(BlockTrace { devices, unknown_lines })
    }

    /// Devices in the trace, with their number of commands.
    pub fn devices(&self) -> impl Iterator<Item = (DeviceNumber, usize)> + '_ {
        self.devices.iter().map(|(device, commands)| (*device, commands.len()))
    }

    /// Commands of a device in the order of their issue; none for a device that is not in the trace.
    #[must_use]
    pub fn commands(&self, device: DeviceNumber) -> &[TraceCommand] {
        self.devices.get(&device).map_or(&[], Vec::as_slice)
    }

    /// Number of lines that were neither a comment nor one of the three events.
    #[must_use]
    pub fn unknown_lines(&self) -> u64 {
        self.unknown_lines
    }
}

impl ReplaySummary {
    /// Runs `commands` on `model`, whose drive must be empty, until all have ended.
    pub fn replay(commands: &[TraceCommand], model: &mut dyn DiskModel) -> ReplaySummary {
        let begin = model.now();
        let mut summary = ReplaySummary::default();
        let mut in_drive = 0;
        for (id, TraceCommand { command, ahead }) in (0..).zip(commands) {
            while in_drive > *ahead {
                model.serve();
                in_drive -= 1;
            }
            model.accept(id, *command, model.now());
            in_drive += 1;
            match command.kind {
                CommandKind::Read => {
                    summary.reads += 1;
                    summary.read_bytes += command.len;
                }
                CommandKind::Write | CommandKind::WriteThrough => {
                    summary.writes += 1;
                    summary.write_bytes += command.len;
                }
                CommandKind::Flush => summary.flushes += 1,
                CommandKind::Discard => summary.discards += 1,
            }
        }
        while model.serve().is_some() {}
        ReplaySummary { time: model.now() - begin, counters: model.counters(), ..summary }
    }
}

impl DeviceLog {
    fn add(&mut self, event: &TraceEvent) {
        match (event.kind, event.command) {
            (EventKind::Issue, command) => {
                let flush = ModelCommand { kind: CommandKind::Flush, at: 0, len: 0 };
                let both = [event.preflush.then_some(flush), command];
                for command in both.into_iter().flatten() {
                    self.issued.push(IssuedCommand { command, nanos: event.nanos, ahead: self.in_device });
                }
                self.in_device = self.in_device.saturating_add(1);
            }
            (EventKind::Complete, _) => {
                self.has_completions = true;
                self.in_device = self.in_device.saturating_sub(1);
            }
            (EventKind::Requeue, Some(command)) => {
                // The kernel took the command back from a full device, and issues it again.
                let last =
                    self.issued.iter().rev().take(REQUEUE_REACH).position(|old| old.command == command);
                if let Some(back) = last {
                    self.issued.remove(self.issued.len() - 1 - back);
                    self.in_device = self.in_device.saturating_sub(1);
                }
            }
            (EventKind::Requeue, None) => {}
        }
    }

    fn finish(self) -> Vec<TraceCommand> {
        // Time before which the last command cannot have ended.
        let mut busy_until = None;
        let mut together: u32 = 0;
        let mut commands = Vec::with_capacity(self.issued.len());
        for IssuedCommand { command, nanos, ahead } in self.issued {
            let is_near = busy_until.is_some_and(|until| nanos <= until);
            together = if is_near { together.saturating_add(1) } else { 0 };
            let transfer = if command.kind == CommandKind::Discard { 0 } else { command.len / FASTEST_BYTES };
            busy_until = Some(nanos.saturating_add(TOGETHER_NANOS + transfer));
            let ahead = if self.has_completions { ahead } else { together };
            commands.push(TraceCommand { command, ahead });
        }
        commands
    }
}

#[cfg(test)]
mod tests;
