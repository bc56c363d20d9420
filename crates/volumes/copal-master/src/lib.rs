//! The master of a cluster: names of volumes, members of groups, and states of data servers.
//!
//! The master knows no files. It keeps names of volumes, members of groups and the state of each data server
//! in a database ([`MetaStore`]). [`Master`] changes them by calls and by the passing of time. Each change is a
//! new version of the map, which clients and data servers follow.
//!
//! Design: docs/design/cluster.md#master
//! Invariants
//! - Nothing changes in memory that is not in the database first.
//! - The failure of a server changes one row; all its groups get a new epoch by it (VOL-11).
//! - Nothing here waits for a socket or reads a clock: time is a parameter.
//!
//! Not here: sockets, TLS and certificates (`copal-server`); rows of files (`copal-data`).

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "a test without threads fails"))]

mod error;
mod leader;
mod master;
mod membership;
mod names;
mod recovery;
mod status;
mod tables;

pub use error::{MasterError, MasterResult};
pub use leader::disk_medium::DiskMedium;
pub use leader::leader_state::MasterOptions;
pub use leader::staleness::SeenCounters;
pub use master::{Master, OpenedMaster};
pub use membership::clocks::ClockVerdict;
pub use membership::force_accept::RemainingMember;
pub use membership::moves::MoveOrder;
pub use membership::servers::{ServerHeartbeat, ServerJoin};
pub use names::path_leases::{LeaseRefusal, PathLease, WRITER_LEASE_MS};
pub use names::volumes::VolumeRemoval;
pub use tables::cluster_map::ClusterMap;
pub use tables::meta_store::{
    ClientRow, ClusterRow, DirRow, EventRow, GroupRow, LEASE_MS, LeaseHolder, LeaseOutcome, MemberKind,
    MemberList, MetaError, MetaOutcome, MetaStore, MissedMember, PoolConfig, QuotaRow, ServerRow,
    ServerState, TaskKind, TaskRow, VolumePlace, setting,
};
pub use tables::metadata_backup::{
    MetadataBackupError, TableSummary, back_up_tables, check_tables, restore_tables,
};
pub use tables::{MysqlStore, SqliteStore};

#[cfg(test)]
mod tests;
