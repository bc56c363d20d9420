//! Agents of a fleet: one per host, each backs up its host's VMs and answers for a share of the popular
//! chunks.
//!
//! Design: docs/design/backup.md#a-fleet
//!
//! - [`partition`], [`members`]: who answers for which ids.
//! - [`detect`]: what an owner answers, from its runs and the requests of all hosts.
//! - [`deadline`]: how long is waited for an answer; [`markers`]: before a comparison.
//! - [`rounds`]: which parts of which VMs are backed up together.
//! - [`scheme`]: the product's way, and those that it stands beside.
//! - [`plan_file`]: which VMs a host backs up.
//! - [`budget`] and [`throttle`]: bounds on memory, and on bytes read and sent.
//! - [`network`]: connections between members of a domain; [`messages`]: what is said over them.
//! - [`asker`]: asks the owners of ids, and gathers what they answer.
//! - [`server`]: receives questions, has them compared, answers; [`control`]: commands to it.
//! - [`agent`]: all of it on one host. [`coordinator`]: a job on all hosts, [`job_report`]: what it did.
//!   [`roster`]: which agents take part, and which are missing. [`settlement`]: what agents left stored twice,
//!   since their keys may not give it up.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "a test without threads fails"))]

pub mod agent;
pub mod asker;
pub mod budget;
pub mod control;
pub mod coordinator;
pub mod deadline;
pub mod detect;
#[cfg(any(test, feature = "fuzz"))]
#[doc(hidden)]
pub mod fuzz;
pub mod job_report;
pub mod markers;
pub mod members;
pub mod messages;
pub mod missing_agent;
pub mod network;
pub mod partition;
pub mod plan_file;
pub mod roster;
pub mod rounds;
pub mod scheme;
pub mod server;
pub mod settlement;
pub mod throttle;

#[cfg(test)]
mod fleet_tests;
