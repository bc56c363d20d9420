//! Models of disks: a hard disk and a flash drive, as functions of commands and as devices on two clocks.
//!
//! A model ([`HddModel`], [`SsdModel`]) takes commands without bytes and computes when each ends. A device in
//! virtual time ([`Hdd`], [`Ssd`]) adds contents in memory and runs the real store on the same model, in one
//! thread. A paced device ([`PacedHdd`], [`PacedSsd`]) lets each command take its time on the wall clock, for
//! whole programs. A trace ([`BlockTrace`]) runs the commands of a program on a model.
//!
//! Invariants
//! - A model never reads a clock of the machine: the same commands at the same times give the same ends on every
//!   machine.
//! - No command ends inside `submit`: a drive reorders commands that wait together, and commits that wait
//!   together share a group.
//! - A device in virtual time owns no thread. A waiter or [`crate::Device::drive`] serves the next command.
//!
//! Design: docs/design/object.md#emulated-devices
//! Not here: crashes and faults ([`crate::fault`]).

mod contents;
mod device;
mod disk_state;
mod hdd;
mod model;
mod paced;
mod paced_clock;
mod ssd;
mod trace;
mod translation;
mod write_cache;

pub use contents::DiskContents;
pub use device::{EmulatedDevice, Hdd, Ssd};
pub use hdd::{HddModel, HddProfile};
pub use model::{CommandKind, DiskModel, ModelCommand, ModelCounters};
pub use paced::{PacedDevice, PacedHdd, PacedSsd};
pub use paced_clock::{PacedClock, WallClock};
pub use ssd::{SsdModel, SsdProfile};
pub use trace::{BlockTrace, DeviceNumber, DeviceNumberError, ReplaySummary, TraceCommand};
pub use translation::TranslationProfile;

#[cfg(test)]
mod tests;
