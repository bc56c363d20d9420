//! The client of a cluster.
//!
//! A [`ClientProfile`] holds the addresses of the masters and the client's credentials. Calls use pooled
//! connections ([`ConnectionPool`]). Views and addresses come from the master, and from replicas that have newer
//! ones.
//!
//! Invariants
//! - Both sides of a connection show a certificate of the cluster's authority, and the name in it is that of the
//!   process that was called.
//! - A call ends at its deadline, whichever state the other side is in.
//!
//! Not here: the rules of an operation (`copal_volume::group`), servers (`copal-server`).

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "a test without threads fails"))]

mod api;
mod net;
mod operation;
mod permits;
mod read;
mod routing;
mod strict;

pub use api::{
    cluster::{Cluster, ConnectError},
    file_writer::ClusterWriter,
    store::ClusterStore,
};
pub use net::{
    connection::{CallError, Connection, EncodedRequest, StreamedCall, codec},
    connection_pool::ConnectionPool,
    deadline::{MAX_CALL_TIME, current_deadline, deadline_passed, with_deadline, without_deadline},
    errors::{expired_certificate, volume_error},
    join_tls::{fingerprint, joining_tls},
    machine,
    map_cache::{CachedView, DiskPlace, MapCache},
    masters::Masters,
    probe::{ProbeReply, probe},
    profile::{ClientProfile, ProfileError, write_private},
    threads::{connection_threads, probe_threads},
    tls::{
        AGENT_NAME, TlsCredentials, TlsError, TlsIdentity, client_tls, master_tls, name_of_agent,
        name_of_master, name_of_server, server_tls,
    },
    tls_time::CertificateClock,
    trace::{current_trace, last_trace, trace_text, with_trace},
};
pub use operation::{
    transfer::TransferMode,
    verify::{GroupComparison, ReplicaDifference},
    writer_lease::{LeaseError, WriterLease},
};

pub use copal_proto::administration;
