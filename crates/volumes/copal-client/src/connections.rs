//! Connections that are kept: one for each process that is called and each class of calls, opened when it is needed, and again when it broke.

use crate::{
    connection::{CallError, Connection},
    link::Link,
};
use copal_proto::Class;
use parking_lot::Mutex;
use rustls_pki_types::ServerName;
use std::{collections::HashMap, sync::Arc};
use tokio::sync::Mutex as AsyncMutex;
use tokio_rustls::rustls::ClientConfig;

/// Where, who is to be there, and what is called.
type To = (String, ServerName<'static>, Class);
type Slot = Arc<AsyncMutex<Option<Connection>>>;

/// See the module. Cheap to clone.
#[derive(Clone)]
pub struct Connections {
    tls: Arc<ClientConfig>,
    link: Link,
    slots: Arc<Mutex<HashMap<To, Slot>>>,
}

impl Connections {
    /// None yet.
    pub fn new(tls: Arc<ClientConfig>) -> Connections {
        Connections {
            tls,
            link: Link::default(),
            slots: Arc::default(),
        }
    }

    /// What is measured of what goes over all of them.
    pub(crate) fn link(&self) -> &Link {
        &self.link
    }

    /// The connection to `name` at `address` for calls of a class; opens it when there is none. Of several that ask at once one opens it.
    /// # Errors
    /// `Unreachable`.
    pub async fn to(
        &self,
        address: &str,
        name: ServerName<'static>,
        class: Class,
    ) -> Result<Connection, CallError> {
        let slot = {
            let mut slots = self.slots.lock();
            let slot = slots
                .entry((address.to_owned(), name.clone(), class))
                .or_default();
            Arc::clone(slot)
        };
        let mut kept = slot.lock().await;
        if let Some(connection) = kept.as_ref().filter(|connection| connection.is_open()) {
            return Ok(connection.clone());
        }
        let connection = Connection::open_on(address, name, Arc::clone(&self.tls), self.link.clone()).await?;
        *kept = Some(connection.clone());
        Ok(connection)
    }
}
