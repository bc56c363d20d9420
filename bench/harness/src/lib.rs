//! What all suites of measurements share: rows of numbers with their targets, and the machine they were taken
//! on.
//!
//! Not here: programs under a meter, images and tables (`xtask`), what is measured (the suites).

pub mod machine;
pub mod report;
