//! Dispatch of a master's calls, with the checks of their callers.

use crate::master::administration;
use crate::master::membership::{self, require};
use crate::master::permits;
use crate::master::server::MasterServer;
use crate::master::volumes;
use crate::net::handler::CallHandler;
use crate::net::messages::{blocking, encoded, read};
use crate::net::peer::PeerIdentity;
use crate::net::status::Status;
use bytes::Bytes;
use copal_client::machine;
use copal_proto::{
    Method,
    messages::{self, failure::Code},
};
use std::sync::Arc;

impl CallHandler for MasterServer {
    const UNAUTHENTICATED_CALLS: &'static [Method] = &[Method::Join, Method::JoinMaster];

    /// `None` until a data server has reported its clock. With a wrong clock of its own, a master would
    /// otherwise refuse all servers and never be corrected.
    fn clock_ms(&self) -> Option<u64> {
        self.master.has_server_clock().then(|| self.now_ms())
    }

    async fn call(
        self: Arc<Self>,
        peer: PeerIdentity,
        method: Method,
        message: Bytes,
    ) -> Result<Bytes, Status> {
        if let Some(client) = peer.client_name() {
            let this = Arc::clone(&self);
            let (client, message) = (client.to_owned(), message.clone());
            blocking(move || permits::check_client(&this, &client, method, message)).await?;
        }
        match method {
            Method::Ping => Ok(encoded(&messages::Ping {})),
            Method::Permit => {
                let request = read(message)?;
                blocking(move || permits::sign_permit(&self, &request, &peer)).await
            }
            Method::WatchMap => self.watch_map(read(message)?).await,
            Method::Suspect => {
                let request: messages::Suspect = read(message)?;
                machine::spawn(membership::suspect(self, request.disk));
                Ok(encoded(&messages::Done {}))
            }
            Method::Heartbeat => {
                let request = read(message)?;
                blocking(move || membership::heartbeat(&self, request, &peer)).await
            }
            Method::BecomeWhole => {
                let request = read(message)?;
                blocking(move || membership::record_in_sync(&self, request, &peer)).await
            }
            Method::Leading => Ok(encoded(&messages::Leading {})),
            Method::Renew => {
                let request = read(message)?;
                blocking(move || membership::renew(&self, &request, &peer)).await
            }
            Method::JoinMaster => {
                let request = read(message)?;
                blocking(move || membership::join_master(&self, request)).await
            }
            Method::Join => {
                let request = read(message)?;
                blocking(move || membership::join(&self, request)).await
            }
            Method::Rmdir => {
                require_any_client(&peer)?;
                volumes::rmdir(self, read(message)?).await
            }
            Method::Ask => Err(older_release()),
            Method::WriterLease => {
                require_any_client(&peer)?;
                let request = read(message)?;
                blocking(move || volumes::writer_lease(&self, request)).await
            }
            method if Method::ADMINISTRATION.contains(&method) => {
                require_any_client(&peer)?;
                administration::administer(self, method, message).await
            }
            Method::Mkdir => {
                require_any_client(&peer)?;
                volumes::mkdir(self, read(message)?).await
            }
            Method::Rename => {
                require_any_client(&peer)?;
                blocking(move || volumes::answer_names(&self, method, message)).await
            }
            other => blocking(move || volumes::answer_names(&self, other, message)).await,
        }
    }
}

/// Refusal of a text request of an earlier release.
fn older_release() -> Status {
    let own = env!("CARGO_PKG_VERSION");
    let text = format!("this command line is of an older release than the master: use that of release {own}");
    Status::new(Code::Denied, text)
}

/// Requires a client's certificate; the rights of named clients were checked before.
fn require_any_client(peer: &PeerIdentity) -> Result<(), Status> {
    require(peer.is_client(), "this takes a client's certificate")
}
