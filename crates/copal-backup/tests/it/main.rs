//! The backup layer from end to end, on stores that live in memory.

mod backups;
mod damage;
mod engine;
mod errors;
mod failing;
mod flips;
mod histories;
mod isolation;
mod progress;
mod world;
