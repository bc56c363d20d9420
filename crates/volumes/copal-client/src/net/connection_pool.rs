//! Pool of connections: for each process and class of calls one, and further ones while many calls are under
//! way.
//!
//! - The first call opens a connection. It is opened again after it broke.
//! - A call takes the connection with the fewest calls under way; of equal ones the oldest. So a caller that
//!   makes one call at a time always has the same connection.
//! - If each connection has [`CALLS_PER_CONNECTION`] calls under way, a task opens another one. No call waits
//!   for it. One task works on a connection's bytes and their encryption, so further connections are further
//!   processors, in this process and at the server.
//! - Only small calls and bodies get further connections, at most one for each processor and
//!   [`MOST_CONNECTIONS`]. One that no call has used for [`IDLE_TIME`] is closed.
//!
//! The server judges each call by the certificate of its connection. So connections are also replaced once
//! this process has a new certificate.
//!
//! Design: docs/design/cluster.md#connections VOL-31

use crate::net::{
    connection::{CallError, Connection},
    machine,
    network_estimate::NetworkEstimate,
};
use copal_proto::CallClass;
use parking_lot::Mutex;
use rustls_pki_types::ServerName;
use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::Duration,
};
use tokio::sync::Mutex as AsyncMutex;
use tokio_rustls::rustls::{ClientConfig, sign::CertifiedKey};

/// Calls under way on each connection from which another one is opened.
const CALLS_PER_CONNECTION: usize = 4;
/// Most connections to a process for one class of calls.
const MOST_CONNECTIONS: usize = 4;
/// A further connection without calls is closed after this time.
const IDLE_TIME: Duration = Duration::from_secs(30);
/// Pause after a further connection could not be opened.
const OPEN_PAUSE: Duration = Duration::from_secs(1);

/// Address, name in the certificate, and class of calls.
type PoolKey = (String, ServerName<'static>, CallClass);

/// A connection, and the certificate with which it was opened.
struct PooledConnection {
    number: u64,
    connection: Connection,
    certificate: Option<Arc<CertifiedKey>>,
    /// Its number of calls when it was last looked at.
    calls_seen: u64,
}

/// Connections to one process for one class of calls.
struct ConnectionSet {
    /// Most connections.
    most: usize,
    open: Mutex<OpenConnections>,
    /// Held while the first connection is opened.
    first: AsyncMutex<()>,
}

#[derive(Default)]
struct OpenConnections {
    /// The oldest first.
    connections: Vec<PooledConnection>,
    /// Number of the last connection.
    last: u64,
    /// Whether a task opens a further connection.
    is_growing: bool,
}

/// See the module. Cheap to clone.
#[derive(Clone)]
pub struct ConnectionPool {
    tls: Arc<ClientConfig>,
    network: NetworkEstimate,
    sets: Arc<Mutex<HashMap<PoolKey, Arc<ConnectionSet>>>>,
}

impl ConnectionPool {
    /// A pool without connections.
    pub fn new(tls: Arc<ClientConfig>) -> ConnectionPool {
        ConnectionPool { tls, network: NetworkEstimate::default(), sets: Arc::default() }
    }

    /// Measurements of the network over all connections.
    pub(crate) fn network_estimate(&self) -> &NetworkEstimate {
        &self.network
    }

    /// A connection to the process `name` at `address` for a class of calls; opens the first one if necessary.
    /// Concurrent callers wait for the one that opens it. The caller makes its call at once: it does not count
    /// before.
    /// # Errors
    /// `Unreachable`.
    pub async fn connect(
        &self,
        address: &str,
        name: ServerName<'static>,
        class: CallClass,
    ) -> Result<Connection, CallError> {
        let set = {
            let mut sets = self.sets.lock();
            let set = sets.entry((address.to_owned(), name.clone(), class));
            Arc::clone(set.or_insert_with(|| Arc::new(ConnectionSet::of(class))))
        };
        let certificate = self.certificate();
        let (connection, is_crowded) = match set.choose(certificate.as_ref()) {
            Some(chosen) => chosen,
            None => {
                let _first = set.first.lock().await;
                // Another caller may have opened it meanwhile.
                match set.choose(certificate.as_ref()) {
                    Some(chosen) => chosen,
                    None => {
                        let connection = self.open(address, name.clone()).await?;
                        set.add(connection.clone(), certificate);
                        (connection, false)
                    }
                }
            }
        };
        if is_crowded {
            let opener = ConnectionOpener { pool: self.clone(), address: address.to_owned(), name };
            machine::spawn(opener.run(Arc::downgrade(&set)));
        }
        Ok(connection)
    }

    async fn open(&self, address: &str, name: ServerName<'static>) -> Result<Connection, CallError> {
        Connection::open_measured(address, name, Arc::clone(&self.tls), self.network.clone()).await
    }

    /// The certificate of this process now.
    fn certificate(&self) -> Option<Arc<CertifiedKey>> {
        self.tls.client_auth_cert_resolver.resolve(&[], &[])
    }
}

impl ConnectionSet {
    fn of(class: CallClass) -> ConnectionSet {
        let most = match class {
            CallClass::Small | CallClass::Bulk => machine::processors().clamp(1, MOST_CONNECTIONS),
            CallClass::Control | CallClass::Recovery => 1,
        };
        ConnectionSet { most, open: Mutex::default(), first: AsyncMutex::default() }
    }

    /// The connection for a call, and whether the caller must start a task that opens another one. `None`: none
    /// is open.
    fn choose(&self, certificate: Option<&Arc<CertifiedKey>>) -> Option<(Connection, bool)> {
        let mut open = self.open.lock();
        let is_same = |pooled: &PooledConnection| match (&pooled.certificate, certificate) {
            (Some(then), Some(now)) => Arc::ptr_eq(then, now),
            (then, now) => then.is_none() && now.is_none(),
        };
        open.connections.retain(|pooled| pooled.connection.is_open() && is_same(pooled));
        let calls = |pooled: &PooledConnection| pooled.connection.calls_under_way().unwrap_or(usize::MAX);
        let all = open.connections.iter().map(|pooled| (calls(pooled), pooled));
        let (calls, chosen) = all.min_by_key(|(calls, _)| *calls)?;
        let connection = chosen.connection.clone();
        let may_grow = open.connections.len() < self.most && !open.is_growing;
        let is_crowded = calls >= CALLS_PER_CONNECTION && may_grow;
        open.is_growing |= is_crowded;
        Some((connection, is_crowded))
    }

    /// Adds a connection; returns its number.
    fn add(&self, connection: Connection, certificate: Option<Arc<CertifiedKey>>) -> u64 {
        let mut open = self.open.lock();
        open.last += 1;
        let number = open.last;
        open.connections.push(PooledConnection { number, connection, certificate, calls_seen: 0 });
        number
    }

    /// Allows another task that opens a further connection.
    fn end_growth(&self) {
        self.open.lock().is_growing = false;
    }

    /// Removes a connection that has no call under way and had none since the last look. Returns whether it
    /// stays.
    fn keep_if_used(&self, number: u64) -> bool {
        let mut open = self.open.lock();
        let Some(at) = open.connections.iter().position(|pooled| pooled.number == number) else {
            return false;
        };
        let pooled = &mut open.connections[at];
        let calls = pooled.connection.calls_begun();
        let is_idle = calls == pooled.calls_seen && pooled.connection.calls_under_way().unwrap_or(0) == 0;
        pooled.calls_seen = calls;
        if is_idle {
            open.connections.remove(at);
        }
        !is_idle
    }
}

/// Opens one further connection, and closes it when it is no longer used.
struct ConnectionOpener {
    pool: ConnectionPool,
    address: String,
    name: ServerName<'static>,
}

impl ConnectionOpener {
    async fn run(self, set: Weak<ConnectionSet>) {
        let certificate = self.pool.certificate();
        let opened = self.pool.open(&self.address, self.name).await;
        // From here on the pool may end before this task.
        drop(self.pool);
        let number = match opened {
            Ok(connection) => set.upgrade().map(|set| {
                let number = set.add(connection, certificate);
                set.end_growth();
                number
            }),
            Err(error) => {
                tracing::debug!(%error, "no further connection could be opened; calls share the open ones");
                tokio::time::sleep(OPEN_PAUSE).await;
                if let Some(set) = set.upgrade() {
                    set.end_growth();
                }
                None
            }
        };
        let Some(number) = number else { return };
        loop {
            tokio::time::sleep(IDLE_TIME).await;
            if !set.upgrade().is_some_and(|set| set.keep_if_used(number)) {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests;
