//! Complete agents in one process, over a repository in memory.

mod jobs;
mod leak;
mod missing_agents;
mod settlement;
mod stand_in;
mod world;
