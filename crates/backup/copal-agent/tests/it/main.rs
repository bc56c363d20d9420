//! Whole agents in one process, over a repository in memory.

mod jobs;
mod leak;
mod missing;
mod settling;
mod stand_in;
mod world;
