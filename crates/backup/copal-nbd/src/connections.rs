//! Several connections to one export, where its server says that they see the same bytes.
//!
//! Requests go round. A flush on one connection is one of all, by what the server says.

use crate::{Client, ConnectOptions, NbdError, Uri};
use std::sync::atomic::{AtomicUsize, Ordering};

/// One connection, or several.
#[derive(Debug)]
pub struct Connections {
    clients: Vec<Client>,
    next: AtomicUsize,
}

impl Connections {
    /// Connects once, and up to `most` times where the server offers it; one that takes fewer has fewer.
    ///
    /// # Errors
    /// As [`Client::connect`]. `Protocol`: two connections say different things of the export.
    pub fn open(uri: &Uri, options: &ConnectOptions, most: usize) -> Result<Connections, NbdError> {
        let first = Client::connect(uri, options)?;
        let mut clients = vec![first];
        while clients[0].export().is_multi_conn() && clients.len() < most {
            match Client::connect(uri, options) {
                Ok(more) if more.export() == clients[0].export() => clients.push(more),
                Ok(_) => {
                    return Err(NbdError::protocol("it says something else of the export each time"));
                }
                // It has its own bound.
                Err(_) => break,
            }
        }
        Ok(Connections { clients, next: AtomicUsize::new(0) })
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.clients.len()
    }

    /// The first one, for what is asked once.
    pub fn first(&self) -> &Client {
        &self.clients[0]
    }

    /// The one whose turn it is.
    pub fn next(&self) -> &Client {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        &self.clients[turn % self.clients.len()]
    }
}
