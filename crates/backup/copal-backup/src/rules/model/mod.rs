//! Exhaustive model of a fleet on several servers: all orders of the steps of two hosts with one or two VMs
//! and a few chunks, and failures at any moment. Decisions are made by the functions and states that the
//! program uses (`steps`, `catalog`).
//!
//! Design: docs/design/backup.md#the-model
//! - [`backup`], [`prune`], [`consolidate`], [`popular_gc`]: the operations of a host, one step for each
//!   point at which others can intervene. [`moves`]: the possible steps.
//! - [`invariants`]: conditions in every state. [`controls`]: rules left out, which a search must notice.
#![expect(clippy::print_stdout, reason = "a search prints its number of states")]

mod backup;
mod consolidate;
mod controls;
mod invariants;
mod moves;
mod popular_gc;
mod prune;
mod rules;
mod search;
mod setup;
mod state;
mod store;
