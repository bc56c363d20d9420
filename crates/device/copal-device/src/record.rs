//! Recorded history of a device: the events in order, enough to rebuild every state that a crash may leave.
//!
//! A history starts from a durable image. Each change begins (from then on a crash may keep any part of it)
//! and ends (from then on a new flush covers it). *Completed* flushes separate the epochs. A flush covers
//! only changes that had ended when it *began* (C3); a `fua` write is durable at its own end (C4).
//!
//! Invariants
//! - A change is recorded as it reaches the medium: a misdirected write with its real address, a lost one not
//!   at all.
//! - Steps count events; step `n` is the moment after the first `n`.

use crate::Image;
use std::sync::Arc;

/// Bytes changed by one command.
#[derive(Clone, Debug)]
pub(crate) enum DeviceChange {
    /// `data` written at `at`.
    Bytes { at: u64, data: Arc<[u8]>, fua: bool },
    /// `len` bytes set to `byte`: zeroes, or the junk of a discarded range.
    Fill { at: u64, len: u64, byte: u8 },
    /// The device grew to `size` bytes.
    Size { size: u64 },
    /// The device shrank to `size` bytes.
    Cut { size: u64 },
}

impl DeviceChange {
    pub(crate) fn is_durable_by_itself(&self) -> bool {
        matches!(self, DeviceChange::Bytes { fua: true, .. })
    }

    /// Applies the change to an image.
    pub(crate) fn apply(&self, image: &mut Image) {
        match self {
            DeviceChange::Bytes { at, data, .. } => image.write(*at, data),
            DeviceChange::Fill { at, len, byte } => image.fill(*at, *len, *byte),
            DeviceChange::Size { size } | DeviceChange::Cut { size } => image.resize(*size),
        }
    }
}

/// One event; `id` joins beginnings and ends.
#[derive(Clone, Debug)]
pub(crate) enum HistoryEvent {
    /// A change was submitted.
    Begin { id: u64, change: DeviceChange },
    /// The change completed.
    End { id: u64 },
    /// The change never reached the device: its process died first.
    Lost { id: u64 },
    /// A flush was submitted.
    FlushBegin { id: u64 },
    /// The flush completed; one that is not honest covers nothing.
    FlushEnd { id: u64, honest: bool },
    /// The medium changed by itself, durably: bit rot.
    Rot { at: u64, data: Arc<[u8]> },
    /// A failed device was reset; it durably holds this image.
    Reset { image: Image },
}

/// Recorded events of a device. Cloning costs little memory, and time linear in the events.
#[derive(Clone, Debug)]
pub struct DeviceHistory {
    pub(crate) start: Image,
    pub(crate) events: Vec<HistoryEvent>,
    pub(crate) logical_block: u32,
}

impl DeviceHistory {
    pub(crate) fn new(start: Image, logical_block: u32) -> DeviceHistory {
        DeviceHistory { start, events: Vec::new(), logical_block }
    }

    /// Number of events; also the last step.
    #[must_use]
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Whether no event was recorded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// The steps just before data becomes durable or is finally lost, and the end.
    /// Between two of them the sets of possible states and of acknowledged data only grow. So these steps
    /// include the states of all others, with stricter demands. (Where states are sampled, more steps still
    /// mean more samples.)
    #[must_use]
    pub fn cut_points(&self) -> Vec<usize> {
        let mut durable_by_itself = std::collections::HashSet::new();
        let mut points = Vec::new();
        for (step, event) in self.events.iter().enumerate() {
            match event {
                HistoryEvent::Begin { id, change } if change.is_durable_by_itself() => {
                    durable_by_itself.insert(*id);
                }
                HistoryEvent::End { id } if durable_by_itself.contains(id) => points.push(step),
                HistoryEvent::FlushEnd { .. }
                | HistoryEvent::Lost { .. }
                | HistoryEvent::Rot { .. }
                | HistoryEvent::Reset { .. } => {
                    points.push(step);
                }
                _ => {}
            }
        }
        points.push(self.events.len());
        points
    }

    /// One line per event, for the report of a failed test.
    #[must_use]
    pub fn describe(&self) -> String {
        use std::fmt::Write;
        let mut out = String::new();
        for (step, event) in self.events.iter().enumerate() {
            let line = match event {
                HistoryEvent::Begin { id, change: DeviceChange::Bytes { at, data, fua } } => {
                    let fua = if *fua { " fua" } else { "" };
                    format!("write {id}: {} bytes at {at}{fua}", data.len())
                }
                HistoryEvent::Begin { id, change: DeviceChange::Fill { at, len, byte } } => {
                    format!("fill {id}: {len} bytes at {at} with {byte:#04x}")
                }
                HistoryEvent::Begin { id, change: DeviceChange::Size { size } } => {
                    format!("grow {id}: to {size} bytes")
                }
                HistoryEvent::Begin { id, change: DeviceChange::Cut { size } } => {
                    format!("cut {id}: to {size} bytes")
                }
                HistoryEvent::End { id } => format!("done {id}"),
                HistoryEvent::Lost { id } => format!("lost {id}"),
                HistoryEvent::FlushBegin { id } => format!("flush {id}"),
                HistoryEvent::FlushEnd { id, honest: true } => format!("flushed {id}"),
                HistoryEvent::FlushEnd { id, honest: false } => format!("flush {id} lied"),
                HistoryEvent::Rot { at, data } => format!("rot: {} bytes at {at}", data.len()),
                HistoryEvent::Reset { .. } => String::from("reset after a failure"),
            };
            // Writing to a String cannot fail.
            let _ = writeln!(out, "{step:5} {line}");
        }
        out
    }
}
