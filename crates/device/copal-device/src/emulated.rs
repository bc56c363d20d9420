//! Models of disks in virtual time: a hard disk and a flash drive, as functions of commands and as devices.
//!
//! A model ([`HddModel`], [`SsdModel`]) takes commands without bytes and computes when each ends. A device
//! ([`Hdd`], [`Ssd`]) adds contents in memory and runs the real store on the same model. A trace
//! ([`BlockTrace`]) runs the commands of a whole program on it.
//!
//! Invariants
//! - A model never reads a clock of the machine: the same commands give the same times on every machine.
//! - No command ends inside `submit`: a drive reorders commands that wait together, and commits that wait
//!   together share a group.
//! - Devices own no thread. A waiter or [`crate::Device::drive`] serves the next command.
//!
//! Design: docs/design/object.md#emulated-devices
//! Not here: crashes and faults ([`crate::fault`]), a clock that follows the wall clock.

mod device;
mod hdd;
mod model;
mod ssd;
mod trace;
mod translation;
mod write_cache;

pub use device::{EmulatedDevice, Hdd, Ssd};
pub use hdd::{HddModel, HddProfile};
pub use model::{CommandKind, DiskModel, ModelCommand, ModelCounters};
pub use ssd::{SsdModel, SsdProfile};
pub use trace::{BlockTrace, DeviceNumber, DeviceNumberError, ReplaySummary, TraceCommand};
pub use translation::TranslationProfile;

#[cfg(test)]
mod tests;
