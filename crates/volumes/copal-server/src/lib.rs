//! The processes of a cluster.
//!
//! [`MasterServer`] stands round a `copal_master::Master`, [`DataServer`] round a `copal_data::MemberStore`;
//! both answer calls that a [`Listener`] takes. A new data server comes with a [`JoinToken`].
//!
//! Invariants
//! - Before a certificate was seen a connection has ten seconds and as little memory as its handshake takes.
//! - What one connection sends ends that connection at most: nobody else notices.
//! - What blocks runs on threads of its own, never where sockets are served.
//!
//! Not here: what calls mean (`copal-master`, `copal-data`), the other end (`copal-client`).

mod accepting;
mod access;
mod administration;
mod admission;
mod answers;
mod authority;
mod caller;
mod chaining;
mod comparing;
mod copying;
mod damaged;
mod data_calls;
mod data_server;
mod fetching;
mod following;
mod gossip;
mod heard;
mod homes;
mod joining;
mod leading;
mod listener;
mod master_server;
#[cfg(test)]
mod member_scene;
mod monitoring;
mod own_clock;
mod permitting;
mod processes;
mod repairing;
mod requests;
mod rolling;
mod server_clocks;
mod showing;
mod snapshots;
mod status;
mod syncing;
mod token;
mod traffic;
mod unauthenticated;
mod validity;

pub use admission::{Admitted, Budgets};
pub use answers::{blocking, encoded, read};
pub use authority::{Authority, AuthorityError};
pub use data_server::{DataOptions, DataServer, Room};
pub use following::NotLetIn;
pub use homes::{HomeError, MasterHome, ServerHome};
pub use joining::{JoinError, JoinedMaster, Joining, SigningRequest, join, join_as_master};
pub use leading::{Candidate, OpenMeta};
pub use listener::{Acks, CLIENT_NAME, Gate, Handler, Listener, Part, Parts, Peer};
pub use master_server::{MasterServer, SITE_NAME_BYTES};
pub use monitoring::HttpAt;
pub use processes::{DataProcess, MasterProcess, StartError, report_lost_store};
pub use status::Status;
pub use token::{JoinToken, Joins, NoToken, hex, unhex};
pub use traffic::Traffic;
pub use validity::Validity;
