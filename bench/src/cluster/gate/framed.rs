//! The put over frames, the protocol between clients and servers of a cluster.

use super::{CONNECTIONS, Caller, Memory};
use anyhow::Result;
use bytes::Bytes;
use copal_client::{Connection, TlsIdentity, client_tls, name_of_master, server_tls};
use copal_proto::{Method, messages};
use copal_server::{CallHandler, CallListener, PeerIdentity, Status};
use prost::Message;
use std::{sync::Arc, time::Duration};
use tokio::runtime::Runtime;

const DEADLINE: Duration = Duration::from_secs(30);

struct Keeper(&'static Memory);

impl CallHandler for Keeper {
    async fn call(self: Arc<Self>, _: PeerIdentity, method: Method, message: Bytes) -> Result<Bytes, Status> {
        let invalid = |text: &str| Status::new(messages::failure::Code::Invalid, text);
        if method != Method::Put {
            return Err(invalid("only puts are answered"));
        }
        let put = messages::Put::decode(message).map_err(|_| invalid("not a put"))?;
        self.0.put(put);
        Ok(messages::Done {}.encode_to_vec().into())
    }
}

/// A server, and connections to it.
pub(super) fn start(
    server: &Runtime,
    client: &Runtime,
    identity: &TlsIdentity,
    memory: &'static Memory,
) -> Result<Vec<Framed>> {
    let listener = server.block_on(CallListener::bind("127.0.0.1:0", server_tls(identity)?))?;
    let address = listener.address()?.to_string();
    server.spawn(listener.serve(Arc::new(Keeper(memory))));
    let tls = client_tls(identity)?;
    (0..CONNECTIONS)
        .map(|_| {
            let opened = Connection::open(&address, name_of_master(), Arc::clone(&tls));
            Ok(Framed(client.block_on(opened)?))
        })
        .collect()
}

#[derive(Clone)]
pub(super) struct Framed(Connection);

impl Caller for Framed {
    async fn put(&mut self, put: messages::Put) -> Result<()> {
        let _: messages::Done = self.0.call(Method::Put, &put, DEADLINE).await?;
        Ok(())
    }
}
