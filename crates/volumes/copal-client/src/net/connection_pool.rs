//! Connections that are kept: one for each process that is called and each class of calls, opened when it is
//! needed, and again when it broke. The other side judges each call by the certificate that its connection
//! was opened with, so a connection is opened again, too, once this process shows another certificate.

use crate::net::connection::{CallError, Connection};
use crate::net::network_estimate::Link;
use copal_proto::CallClass;
use parking_lot::Mutex;
use rustls_pki_types::ServerName;
use std::{collections::HashMap, sync::Arc};
use tokio::sync::Mutex as AsyncMutex;
use tokio_rustls::rustls::{ClientConfig, sign::CertifiedKey};

/// Where, who is to be there, and what is called.
type To = (String, ServerName<'static>, CallClass);
type Slot = Arc<AsyncMutex<Option<Kept>>>;

/// A connection, and what was shown when it was opened.
struct Kept {
    connection: Connection,
    shown: Option<Arc<CertifiedKey>>,
}

/// See the module. Cheap to clone.
#[derive(Clone)]
pub struct ConnectionPool {
    tls: Arc<ClientConfig>,
    link: Link,
    slots: Arc<Mutex<HashMap<To, Slot>>>,
}

impl ConnectionPool {
    /// None yet.
    pub fn new(tls: Arc<ClientConfig>) -> ConnectionPool {
        ConnectionPool { tls, link: Link::default(), slots: Arc::default() }
    }

    /// What is measured of what goes over all of them.
    pub(crate) fn link(&self) -> &Link {
        &self.link
    }

    /// The connection to `name` at `address` for calls of a class; opens it when there is none. Of several
    /// that ask at once one opens it.
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
        let mut kept = slot.lock().await;
        let shown = self.shown();
        let is_same = |kept: &&Kept| match (&kept.shown, &shown) {
            (Some(then), Some(now)) => Arc::ptr_eq(then, now),
            (then, now) => then.is_none() && now.is_none(),
        };
        if let Some(kept) = kept.as_ref().filter(|kept| kept.connection.is_open()).filter(is_same) {
            return Ok(kept.connection.clone());
        }
        let connection = Connection::open_on(address, name, Arc::clone(&self.tls), self.link.clone()).await?;
        *kept = Some(Kept { connection: connection.clone(), shown });
        Ok(connection)
    }

    /// What this process shows now.
    fn shown(&self) -> Option<Arc<CertifiedKey>> {
        self.tls.client_auth_cert_resolver.resolve(&[], &[])
    }
}
