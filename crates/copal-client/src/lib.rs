//! The client of a cluster.
//!
//! A [`Profile`] says where the masters are and who this client is. Calls go over connections that are kept
//! ([`Connections`]); views and addresses come from the master and from members that have newer ones.
//!
//! Invariants
//! - Both sides of a connection show a certificate of the cluster's authority, and the name in it is whom it was meant for.
//! - A call ends at its deadline, whatever the other side does.
//!
//! Not here: the rules of an operation (`copal_volume::group`), servers (`copal-server`).

mod connection;
mod connections;
mod profile;
mod tls;

pub use connection::{CallError, Connection, codec};
pub use connections::Connections;
pub use profile::{Profile, ProfileError};
pub use tls::{Identity, TlsError, client_tls, name_of_master, name_of_server, server_tls};
