//! The embedded volume store on the whole stack: engine, objects, device.

#![allow(clippy::disallowed_methods, reason = "a test without threads fails")]

mod conformance;
mod crash;
mod damage;
mod faults;
mod filled;
mod member_crash;
mod member_space;
mod members;
mod ranges;
mod rescue;
mod restart;
mod rot;
mod soak;
mod space;
mod stack;
