//! All orders of what may happen to a group: three members, a master, a few clients, failures at any moment.
//! The steps are those that servers and clients run.
//!
//! Design: docs/design/cluster.md#invariants
#![expect(clippy::print_stdout, reason = "a search says how many states it has looked at")]

mod calls;
mod controls;
mod moves;
mod recovery;
mod rules;
mod search;
mod setup;
mod state;
