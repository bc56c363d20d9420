//! Helpers of the tests, benches and examples of several crates. No product code may use it: it stands only
//! under `[dev-dependencies]`, and `cargo xtask layers` refuses it elsewhere.
//!
//! - [`Random`]: the one source of random numbers.
//! - [`decoders_survive`]: the one loop over the decoders of a format.
//! - [`GatedDevice`]: a device that delays commands.
//! - [`FailingReads`]: a device with reads that fail.
//! - [`MariaDb`]: a private database server.
//! - [`MotoServer`]: a private server of S3 by others, if it is installed.
//! - [`ObjectServer`]: a private server of S3 with faults.
//! - [`MemoryCap`]: a limit of the kernel on the memory of a process.
//!
//! Not here: random numbers in product code (fault devices, conformance suites, load generators, filter
//! pages). These have their own generators, whose numbers are part of their interface.

mod decoders;
mod device;
mod memory_cap;
mod random;
mod servers;

pub use decoders::{Decoder, decoders_survive};
pub use device::{FailingReads, GateOpener, GateState, GatedDevice};
pub use memory_cap::MemoryCap;
pub use random::{Random, scattered};
pub use servers::{
    KeyRights, LoggedRequest, MariaDb, MariaDbAt, MotoServer, NetworkFault, ObjectServer, RequestFacts,
};
