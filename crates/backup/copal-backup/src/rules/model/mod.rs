//! All orders of what may happen to a fleet on several servers: two hosts, one or two VMs, a few chunks,
//! failures at any moment. What is decided is decided by the steps and folds that the program runs (`steps`,
//! `catalog`).
//!
//! Design: docs/design/backup.md#the-model
//! - [`backup`], [`prune`], [`cleanup`], [`unneeded`]: what a host does, as many steps as others can come
//!   between. [`moves`]: what may happen.
//! - [`invariants`]: what must hold. [`controls`]: rules left out, each of which a search must notice.
#![expect(clippy::print_stdout, reason = "a search says how many states it has looked at")]

mod backup;
mod cleanup;
mod controls;
mod invariants;
mod moves;
mod prune;
mod rules;
mod search;
mod setup;
mod state;
mod store;
mod unneeded;
