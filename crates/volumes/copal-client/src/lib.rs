//! The client of a cluster.
//!
//! A [`Profile`] says where the masters are and who this client is. Calls go over connections that are kept
//! ([`Connections`]); views and addresses come from the master and from members that have newer ones.
//!
//! Invariants
//! - Both sides of a connection show a certificate of the cluster's authority, and the name in it is whom it
//!   was meant for.
//! - A call ends at its deadline, whatever the other side does.
//!
//! Not here: the rules of an operation (`copal_volume::group`), servers (`copal-server`).

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "a test without threads fails"))]

mod chaining;
mod cluster;
mod connection;
mod connections;
mod deadline;
mod errors;
mod files;
mod handed_over;
mod join_tls;
mod lease;
mod link;
pub mod machine;
mod map_cache;
mod masters;
mod operation;
mod pace;
mod permits;
mod permitted;
mod probing;
mod profile;
mod racing;
mod reading;
mod settling;
mod store;
mod strict;
mod threads;
mod tls;
mod tls_time;
mod trace;
mod transfer;
mod upload;
mod verifying;
mod volumes;

pub use cluster::{Cluster, ConnectError};
pub use connection::{CallError, Connection, Encoded, Streamed, codec};
pub use connections::Connections;
pub use deadline::{LONGEST, current_end, is_over, with_end, without_end};
pub use errors::{ended_certificate, volume_error};
pub use files::Writer;
pub use join_tls::{fingerprint, joining_tls};
pub use lease::{LeaseError, WriterLease};
pub use map_cache::{CachedView, DiskPlace, MapCache};
pub use masters::Masters;
pub use probing::{Probed, probe};
pub use profile::{Profile, ProfileError, write_private};
pub use store::ClusterStore;
pub use threads::probe_threads;
pub use tls::{
    AGENT_NAME, Credentials, Identity, TlsError, client_tls, master_tls, name_of_agent, name_of_master,
    name_of_server, server_tls,
};
pub use tls_time::CertificateClock;
pub use trace::{current_trace, last_trace, trace_text, with_trace};
pub use transfer::Transfer;
pub use verifying::{Difference, GroupReport};

pub use copal_proto::administration;
