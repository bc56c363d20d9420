//! Devices that tests control.

mod failing_reads;
mod gate;

pub use failing_reads::FailingReads;
pub use gate::{GateOpener, GateState, GatedDevice};
