//! A job on all hosts: plan files, the agents that take part, the coordinator, reports and settlement.

pub mod coordinator;
pub mod job_report;
pub mod missing_agent;
pub mod plan_file;
pub mod roster;
pub mod scheme;
pub mod settlement;
