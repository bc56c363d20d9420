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

mod leader;
mod master;
mod membership;
mod names;
mod recovery;
mod status;
mod tables;

pub use leader::medium::Medium;
pub use leader::staleness::SeenBy;
pub use master::{Master, MasterError, MasterOptions, Mastered, Opened};
pub use membership::clocks::ClockVerdict;
pub use membership::force_accept::Remaining;
pub use membership::moves::WantedMove;
pub use membership::servers::{Beat, Joiner};
pub use names::volumes::Removing;
pub use names::writer_leases::{Lease, NoLease, WRITER_LEASE_MS};
pub use tables::cluster_map::ClusterMap;
pub use tables::meta_store::{
    ClientRow, ClusterRow, DirRow, EventRow, GroupRow, Holder, LEASE_MS, Lead, MemberKind, Members, Meta,
    MetaError, MetaStore, Missed, Place, Pool, QuotaRow, ServerRow, ServerState, TaskKind, TaskRow, setting,
};
pub use tables::metadata_backup::{KeepError, Kept, back_up, check as check_tables, put_back};
pub use tables::{MysqlStore, SqliteStore};

#[cfg(test)]
mod tests;
