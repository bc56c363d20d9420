//! A job on all hosts: the agents that take part, the coordinator, reports and settlement.

pub mod coordinator;
pub mod job_report;
pub mod roster;
pub mod settlement;
