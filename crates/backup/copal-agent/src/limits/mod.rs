//! Bounds on memory, bytes per second and waiting times.

pub mod budget;
pub mod deadline;
pub mod throttle;
