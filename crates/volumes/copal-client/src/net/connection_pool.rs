//! Pool of connections: one for each process and class of calls.
//!
//! A connection is opened for the first call and reopened after it broke. The server judges each call by the
//! certificate of its connection. So a connection is also reopened once this process has a new certificate.

use crate::net::{
    connection::{CallError, Connection},
    network_estimate::NetworkEstimate,
};
use copal_proto::CallClass;
use parking_lot::Mutex;
use rustls_pki_types::ServerName;
use std::{collections::HashMap, sync::Arc};
use tokio::sync::Mutex as AsyncMutex;
use tokio_rustls::rustls::{ClientConfig, sign::CertifiedKey};

/// Address, name in the certificate, and class of calls.
type PoolKey = (String, ServerName<'static>, CallClass);
type PoolSlot = Arc<AsyncMutex<Option<PooledConnection>>>;

/// A connection, and the certificate with which it was opened.
struct PooledConnection {
    connection: Connection,
    certificate: Option<Arc<CertifiedKey>>,
}

/// See the module. Cheap to clone.
#[derive(Clone)]
pub struct ConnectionPool {
    tls: Arc<ClientConfig>,
    network: NetworkEstimate,
    slots: Arc<Mutex<HashMap<PoolKey, PoolSlot>>>,
}

impl ConnectionPool {
    /// A pool without connections.
    pub fn new(tls: Arc<ClientConfig>) -> ConnectionPool {
        ConnectionPool { tls, network: NetworkEstimate::default(), slots: Arc::default() }
    }

    /// Measurements of the network over all connections.
    pub(crate) fn network_estimate(&self) -> &NetworkEstimate {
        &self.network
    }

    /// The connection to the process `name` at `address` for a class of calls; opens it if necessary. Concurrent
    /// callers wait for the one that opens it.
    /// # Errors
    /// `Unreachable`.
    pub async fn connect(
        &self,
        address: &str,
        name: ServerName<'static>,
        class: CallClass,
    ) -> Result<Connection, CallError> {
        let slot = {
            let mut slots = self.slots.lock();
            let slot = slots.entry((address.to_owned(), name.clone(), class)).or_default();
            Arc::clone(slot)
        };
        let mut pooled = slot.lock().await;
        let certificate = self.certificate();
        let is_same = |pooled: &&PooledConnection| match (&pooled.certificate, &certificate) {
            (Some(then), Some(now)) => Arc::ptr_eq(then, now),
            (then, now) => then.is_none() && now.is_none(),
        };
        if let Some(pooled) = pooled.as_ref().filter(|pooled| pooled.connection.is_open()).filter(is_same) {
            return Ok(pooled.connection.clone());
        }
        let connection =
            Connection::open_measured(address, name, Arc::clone(&self.tls), self.network.clone()).await?;
        *pooled = Some(PooledConnection { connection: connection.clone(), certificate });
        Ok(connection)
    }

    /// The certificate of this process now.
    fn certificate(&self) -> Option<Arc<CertifiedKey>> {
        self.tls.client_auth_cert_resolver.resolve(&[], &[])
    }
}
