//! Shared parts of all suites: rows of numbers with their targets, and facts about the machine.
//!
//! Not here: programs under a meter, images and tables (`xtask`), the measurements themselves (the suites).

pub mod machine;
pub mod report;
