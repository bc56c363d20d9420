//! Accept loop of a server.
//!
//! Each connection is accepted at once and becomes a task of its own (`connection`). Until it is
//! authenticated it counts in `unauthenticated`.

use crate::net::admission::ClassBudgets;
use crate::net::connection::{PendingConnection, serve_connection};
use crate::net::handler::CallHandler;
use crate::net::traffic::TrafficCounters;
use crate::net::unauthenticated::UnauthenticatedPeers;
use copal_client::machine::{self, AcceptedConnection};
use futures_util::future::BoxFuture;
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tokio::net::TcpListener;
use tokio_rustls::{TlsAcceptor, rustls::ServerConfig};

/// Connections of a simulated network, already authenticated.
pub trait SimulatedSource: Send + 'static {
    /// Waits for the next connection.
    fn next(&mut self) -> BoxFuture<'_, std::io::Result<AcceptedConnection>>;
}

/// Origin of connections.
enum ConnectionSource {
    /// A socket; peers authenticate by TLS.
    Socket(TcpListener, TlsAcceptor),
    /// A simulated network, which supplies the certificate of each peer.
    Simulated(Box<dyn SimulatedSource>, SocketAddr),
}

/// The listening side of a server. See the module.
pub struct CallListener {
    source: ConnectionSource,
    traffic: Arc<TrafficCounters>,
}

impl CallListener {
    /// Listens at `address`.
    /// # Errors
    /// The address is in use, or is not an address of this machine.
    pub async fn bind(address: &str, tls: Arc<ServerConfig>) -> std::io::Result<CallListener> {
        let socket = TcpListener::bind(address).await?;
        Ok(CallListener::at(ConnectionSource::Socket(socket, TlsAcceptor::from(tls))))
    }

    /// A listener at `address` of a simulated network.
    pub fn from_source(source: Box<dyn SimulatedSource>, address: SocketAddr) -> CallListener {
        CallListener::at(ConnectionSource::Simulated(source, address))
    }

    fn at(source: ConnectionSource) -> CallListener {
        CallListener { source, traffic: Arc::default() }
    }

    /// Replaces the memory budgets of calls.
    pub fn with_budgets(mut self, budgets: &ClassBudgets) -> CallListener {
        self.traffic = Arc::new(TrafficCounters::new(budgets));
        self
    }

    /// The address that it listens at.
    /// # Errors
    /// The socket is broken.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        match &self.source {
            ConnectionSource::Socket(socket, _) => socket.local_addr(),
            ConnectionSource::Simulated(_, address) => Ok(*address),
        }
    }

    /// Counters of its calls and connections.
    pub fn traffic(&self) -> Arc<TrafficCounters> {
        Arc::clone(&self.traffic)
    }

    /// Serves until the task is dropped, which also drops the calls in progress.
    pub async fn serve<H: CallHandler>(mut self, handler: Arc<H>) {
        let unauthenticated = UnauthenticatedPeers::new();
        loop {
            let pending = match self.source.next().await {
                Ok(pending) => pending,
                Err(error) => {
                    // Mostly no file descriptors are left; some are freed when connections end.
                    tracing::warn!(%error, "a connection could not be accepted");
                    unauthenticated.evict_oldest();
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            };
            let (handler, traffic) = (Arc::clone(&handler), Arc::clone(&self.traffic));
            let slot = unauthenticated.admit(pending.address().ip());
            machine::spawn(async move {
                traffic.connection_opened();
                let address = pending.address();
                let ended = serve_connection(pending, slot, handler, &traffic).await;
                traffic.connection_closed();
                if let Err((why, reason)) = ended {
                    traffic.record_close(why);
                    tracing::debug!(%address, reason, "a connection was closed");
                }
            });
        }
    }
}

impl ConnectionSource {
    async fn next(&mut self) -> std::io::Result<PendingConnection> {
        match self {
            ConnectionSource::Socket(socket, tls) => {
                let (socket, address) = socket.accept().await?;
                Ok(PendingConnection::Socket(socket, address, tls.clone()))
            }
            ConnectionSource::Simulated(source, _) => source.next().await.map(PendingConnection::Simulated),
        }
    }
}

#[cfg(test)]
mod tests;
