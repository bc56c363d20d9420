//! The client of a cluster.
//!
//! A [`ClientProfile`] says where the masters are and who this client is. Calls go over connections that are kept
//! ([`ConnectionPool`]); views and addresses come from the master and from members that have newer ones.
//!
//! Invariants
//! - Both sides of a connection show a certificate of the cluster's authority, and the name in it is whom it
//!   was meant for.
//! - A call ends at its deadline, whatever the other side does.
//!
//! Not here: the rules of an operation (`copal_volume::group`), servers (`copal-server`).

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "a test without threads fails"))]

mod api;
mod net;
mod operation;
mod permits;
mod read;

pub use api::cluster::{Cluster, ConnectError};
pub use api::files::ClusterWriter;
pub use api::store::ClusterStore;
pub use net::connection::{CallError, Connection, EncodedRequest, StreamedCall, codec};
pub use net::connection_pool::ConnectionPool;
pub use net::deadline::{MAX_CALL_TIME, current_deadline, deadline_passed, with_deadline, without_deadline};
pub use net::errors::{expired_certificate, volume_error};
pub use net::join_tls::{fingerprint, joining_tls};
pub use net::machine;
pub use net::map_cache::{CachedView, DiskPlace, MapCache};
pub use net::masters::Masters;
pub use net::probe::{ProbeReply, probe};
pub use net::profile::{ClientProfile, ProfileError, write_private};
pub use net::threads::probe_threads;
pub use net::tls::{
    AGENT_NAME, TlsCredentials, TlsError, TlsIdentity, client_tls, master_tls, name_of_agent, name_of_master,
    name_of_server, server_tls,
};
pub use net::tls_time::CertificateClock;
pub use net::trace::{current_trace, last_trace, trace_text, with_trace};
pub use operation::transfer::TransferMode;
pub use operation::verify::{ReplicaDifference, VerifyReport};
pub use permits::lease::{LeaseError, WriterLease};

pub use copal_proto::administration;
