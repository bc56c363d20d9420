//! Agents of a fleet: one per host. An agent backs up its host's VMs and answers for a share of the popular
//! chunks.
//!
//! Design: docs/design/backup.md#a-fleet
//!
//! - [`limits`]: bounds on memory ([`limits::budget`]), on bytes read and sent ([`limits::throttle`]), and waiting
//!   times for answers ([`limits::deadline`]).
//! - [`fleet`]: partitions of the ids and their members ([`fleet::partition`]), connections between members of a
//!   domain ([`fleet::network`]), their messages and commands ([`fleet::messages`], [`fleet::control`]).
//! - [`plan`]: the VMs that a host backs up ([`plan::plan_file`]), the scheme of deduplication ([`plan::scheme`]).
//! - [`detect`]: the answers of an owner, from its runs and the requests of all hosts; [`markers`]: the start of a
//!   comparison.
//! - [`asker`]: asks the owners of ids ([`asker::members`]), and receives their answers. [`server`]: receives
//!   questions, starts comparisons, answers.
//! - [`rounds`]: division of VMs into parts and rounds.
//! - [`agent`]: all of this on one host.
//! - [`job`]: a job on all hosts: the agents that take part ([`job::roster`]), the coordinator and its report.
//!   [`job::settlement`] handles chunks stored twice that agents could not settle with their keys.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "a test without threads fails"))]

pub mod agent;
pub mod asker;
pub mod detect;
pub mod fleet;
#[cfg(any(test, feature = "fuzz"))]
#[doc(hidden)]
pub mod fuzz;
pub mod job;
pub mod limits;
pub mod markers;
pub mod plan;
pub mod rounds;
pub mod server;

#[cfg(test)]
mod fleet_tests;
