//! The plan of a host and the terms of a job: plan files, schemes of deduplication, missing agents.

pub mod missing_agent;
pub mod plan_file;
pub mod scheme;
