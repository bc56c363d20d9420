//! Shared parts of all suites: rows of numbers with their targets, charts, facts about the machine, loop devices and
//! traces of their commands.
//!
//! Not here: programs under a meter, images and tables (`xtask`), the measurements themselves (the suites).

pub mod block_tracer;
pub mod chart;
pub mod disk_kind;
pub mod loop_device;
pub mod machine;
pub mod model_disk;
pub mod mounted_disk;
pub mod report;
pub mod zram_device;
