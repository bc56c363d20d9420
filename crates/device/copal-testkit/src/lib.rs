//! What the tests, benches and examples of several crates share. No crate is built from it: it stands only
//! under `[dev-dependencies]`, and `cargo xtask layers` refuses it elsewhere.
//!
//! [`Random`] is the one source of numbers, and [`decoders_survive`] the one loop over the decoders of a
//! format; [`Gated`] is a device that holds commands back, [`FailingReads`] one whose reads fail, [`MariaDb`]
//! a database server of the test's own.
//!
//! Not here: chance that ships (fault devices, conformance suites, load generators, filter pages); those have
//! generators of their own, whose numbers are part of what they promise.

mod decoders;
mod failing_reads;
mod gate;
mod mariadb;
mod random;

pub use decoders::{Decoder, decoders_survive};
pub use failing_reads::FailingReads;
pub use gate::{Gate, Gated, Opens};
pub use mariadb::{MariaDb, MariaDbAt};
pub use random::{Random, scattered};
