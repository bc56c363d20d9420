//! All orders of events of a group: three members, a master, a few clients, failures at any moment. The steps
//! are those of servers and clients.
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
