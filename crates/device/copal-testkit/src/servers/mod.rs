//! Servers that a test starts on loopback and that end with it.

mod mariadb;
mod moto;
mod object_server;

pub use mariadb::{MariaDb, MariaDbAt};
pub use moto::MotoServer;
pub use object_server::{KeyRights, LoggedRequest, NetworkFault, ObjectServer, RequestFacts};
