//! Probe: measures a device in a range of its own, and chooses the backend and its numbers.
//!
//! Figures come from many short slices. The loads of a step take turns in random order, for several rounds, and
//! each figure is a median over its rounds. Between the steps the same small load is measured again: a device
//! that changes, or a machine that is busy with other work, lowers the confidence of the result.
//!
//! ```
//! use copal_device::{MemoryDevice, probe::{DeviceProbe, ProbeOptions}};
//!
//! let device = MemoryDevice::new(64 << 20);
//! let options = ProbeOptions { time_limit: std::time::Duration::from_millis(300), ..ProbeOptions::of(&*device) };
//! let profile = DeviceProbe::new(&*device, options).run(&mut |_| ())?;
//! println!("{profile}");
//! # Ok::<(), copal_device::probe::ProbeError>(())
//! ```
//!
//! Design: docs/design/object.md#probe
//! Invariants
//! - No command leaves the given range.
//! - Times are those of the device's clock, so a model in virtual time gives the same profile on every machine.
//!
//! Not here: the place of the range (the program), the backends (`copal-object`).

mod choice;
mod confidence;
mod device_probe;
mod error;
mod figure;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
mod load;
mod profile;
mod profile_backend;
mod profile_text;
mod series;
mod statistics;

pub use confidence::ProbeConfidence;
pub use device_probe::{DeviceProbe, ProbeOptions, ProbeProgress, ProbeStep};
pub use error::{PROBE_BYTES_MIN, ProbeError};
pub use figure::DecimalRatio;
pub use profile::{DeviceKind, DeviceProfile};
pub use profile_backend::ProfileBackend;
pub use profile_text::{PROFILE_BYTES_MAX, ProfileTextError};

#[cfg(test)]
mod tests;
