//! Several connections to one export, if its server guarantees that all see the same bytes.
//!
//! Requests are distributed round-robin. The server guarantees that a flush on one connection covers all of
//! them.

use crate::{Client, ConnectOptions, NbdError, Uri};
use std::sync::atomic::{AtomicUsize, Ordering};

/// One connection, or several.
#[derive(Debug)]
pub struct ConnectionPool {
    clients: Vec<Client>,
    next: AtomicUsize,
}

impl ConnectionPool {
    /// Connects once, and up to `most` times if the server allows several connections. Fewer are no error.
    ///
    /// # Errors
    /// As [`Client::connect`]. `Protocol`: two connections report different exports.
    pub fn open(uri: &Uri, options: &ConnectOptions, most: usize) -> Result<ConnectionPool, NbdError> {
        let first = Client::connect(uri, options)?;
        let mut clients = vec![first];
        while clients[0].export().is_multi_conn() && clients.len() < most {
            match Client::connect(uri, options) {
                Ok(more) if more.export() == clients[0].export() => clients.push(more),
                Ok(_) => {
                    return Err(NbdError::protocol("it describes the export differently on each connection"));
                }
                // The server has its own limit.
                Err(_) => break,
            }
        }
        Ok(ConnectionPool { clients, next: AtomicUsize::new(0) })
    }

    /// Number of connections.
    pub fn count(&self) -> usize {
        self.clients.len()
    }

    /// The first connection, for requests that are sent once.
    pub fn first(&self) -> &Client {
        &self.clients[0]
    }

    /// The next connection, round-robin.
    pub fn next(&self) -> &Client {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        &self.clients[turn % self.clients.len()]
    }
}
