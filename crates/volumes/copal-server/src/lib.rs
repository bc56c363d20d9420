//! The processes of a cluster.
//!
//! [`MasterServer`] serves a `copal_master::Master`, [`DataServer`] a `copal_data::MemberStore`. Both handle
//! the calls that a [`CallListener`] accepts. A new data server joins with a [`JoinToken`].
//!
//! Invariants
//! - Before a connection is authenticated, it has ten seconds and only the memory of its handshake.
//! - Malformed input ends its own connection only and affects no other.
//! - Blocking work runs on its own threads, never on those that serve sockets.
//!
//! Not here: the effects of calls (`copal-master`, `copal-data`), the calling side (`copal-client`).

mod data;
mod master;
mod monitoring;
mod net;
mod process;
mod replica;
mod resync;
mod security;

pub use data::server::DataServer;
pub use master::leadership::{MasterCandidate, OpenMeta};
pub use master::membership::SITE_NAME_BYTES;
pub use master::server::MasterServer;
pub use monitoring::HttpEndpoint;
pub use net::admission::{ClassBudgets, ClassUsage};
pub use net::chain_frames::{ChainAcks, ChainPart, ChainParts};
pub use net::handler::CallHandler;
pub use net::listener::{CallListener, SimulatedSource};
pub use net::messages::{blocking, encoded, read};
pub use net::peer::{CLIENT_NAME, PeerIdentity};
pub use net::status::Status;
pub use net::traffic::TrafficCounters;
pub use net::validity::CertificateValidity;
pub use process::home::{HomeError, MasterHome, ServerHome};
pub use process::processes::{DataProcess, MasterProcess, StartError, report_lost_store};
pub use replica::heartbeat::ServerRefusal;
pub use replica::host::{DataOptions, StoreSpace};
pub use security::authority::{AuthorityError, CertificateAuthority};
pub use security::join::{JoinError, JoinedMaster, JoiningServer, SigningRequest, join, join_as_master};
pub use security::token::{JoinRole, JoinToken, TokenError, hex, unhex};
