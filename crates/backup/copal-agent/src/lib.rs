//! Agents of a fleet: one per host. An agent backs up its host's VMs and answers for a share of the popular
//! chunks.
//!
//! Design: docs/design/backup.md#a-fleet
//!
//! - [`partition`], [`members`]: assignment of ids to agents.
//! - [`detect`]: the answers of an owner, from its runs and the requests of all hosts.
//! - [`deadline`]: waiting times for answers; [`markers`]: the start of a comparison.
//! - [`rounds`]: division of VMs into parts and rounds.
//! - [`scheme`]: the scheme of the product, and those for comparison.
//! - [`plan_file`]: the VMs that a host backs up.
//! - [`budget`] and [`throttle`]: bounds on memory, and on bytes read and sent.
//! - [`network`]: connections between members of a domain; [`messages`]: their messages.
//! - [`asker`]: asks the owners of ids, and receives their answers.
//! - [`server`]: receives questions, starts comparisons, answers; [`control`]: commands to it.
//! - [`agent`]: all of this on one host. [`coordinator`]: a job on all hosts, [`job_report`]: its result.
//!   [`roster`]: agents that take part, and missing ones. [`settlement`]: chunks stored twice that agents
//!   could not settle with their keys.

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
