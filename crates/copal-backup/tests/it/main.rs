//! The backup layer from end to end, on stores that live in memory.

mod backups;
mod errors;
mod world;
