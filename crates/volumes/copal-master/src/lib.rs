//! The master of a cluster: volumes by name, groups and their members, who is there.
//!
//! The master never hears of a file. It keeps names of volumes, the members of groups and the state of each
//! data server in a database ([`MetaStore`]); [`Master`] turns calls and the passing of time into changes of
//! them, each of which is a new version of the map that clients and data servers follow.
//!
//! Design: docs/design/cluster.md#master
//! Invariants
//! - Nothing changes in memory that is not in the database first.
//! - A failed server is one row: all its groups get a new epoch by it (VOL-11).
//! - Nothing here waits or opens a socket: time comes in as a number.
//!
//! Not here: sockets, TLS and certificates (`copal-server`); rows of files (`copal-data`).

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "a test without threads fails"))]

mod accepting;
mod age;
mod clients;
mod clock_state;
mod clocks;
mod disks;
mod fill;
mod forgetting;
mod keeping;
mod layout;
mod leases;
mod map;
mod master;
mod medium;
mod meta;
mod moving;
mod names;
mod orders;
mod progress;
mod recovery;
mod replacing;
mod server_state;
mod servers;
mod sites;
mod status;
mod tables;
mod tasks;
mod tasks_kept;
mod watch;
mod why_degraded;

pub use accepting::Remaining;
pub use age::SeenBy;
pub use clocks::ClockVerdict;
pub use keeping::{KeepError, Kept, back_up, check as check_tables, put_back};
pub use leases::{Lease, NoLease, WRITER_LEASE_MS};
pub use map::ClusterMap;
pub use master::{Master, MasterError, MasterOptions, Mastered, Opened};
pub use medium::Medium;
pub use meta::{
    ClientRow, ClusterRow, DirRow, EventRow, GroupRow, Holder, LEASE_MS, Lead, MemberKind, Members, Meta,
    MetaError, MetaStore, Missed, Place, Pool, QuotaRow, ServerRow, ServerState, TaskKind, TaskRow, setting,
};
pub use moving::WantedMove;
pub use names::Removing;
pub use servers::{Beat, Joiner};
pub use tables::{MysqlStore, SqliteStore};

#[cfg(test)]
mod tests;

#[cfg(test)]
mod conformance;
