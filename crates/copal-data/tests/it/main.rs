//! The embedded volume store on the whole stack: engine, objects, device.

mod conformance;
mod crash;
mod damage;
mod restart;
mod space;
mod stack;
