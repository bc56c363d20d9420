//! The embedded volume store on the whole stack: engine, objects, device.

mod conformance;
mod crash;
mod damage;
mod faults;
mod rescue;
mod restart;
mod rot;
mod soak;
mod space;
mod stack;
