//! The same put over tonic: one method of one service, equal to generated code.

use super::{CONNECTIONS, Caller, Memory};
use anyhow::Result;
use copal_client::TlsIdentity;
use copal_proto::messages;
use std::{
    convert::Infallible,
    future::{Ready, ready},
    net::TcpListener,
    pin::Pin,
    task::{Context, Poll},
};
use tokio::runtime::Runtime;
use tonic::{
    Request, Response, Status,
    body::Body,
    codegen::{Service, http, http::uri::PathAndQuery},
    server::{NamedService, UnaryService},
    transport::{
        Certificate, Channel, ClientTlsConfig, Endpoint, Server, ServerTlsConfig, server::TcpIncoming,
    },
};
use tonic_prost::ProstCodec;

const METHOD: &str = "/bench.File/Put";

#[derive(Clone, Copy)]
struct Keeper(&'static Memory);

impl UnaryService<messages::Put> for Keeper {
    type Response = messages::Done;
    type Future = Ready<Result<Response<messages::Done>, Status>>;

    fn call(&mut self, request: Request<messages::Put>) -> Self::Future {
        self.0.put(request.into_inner());
        ready(Ok(Response::new(messages::Done {})))
    }
}

impl Service<http::Request<Body>> for Keeper {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let keeper = *self;
        Box::pin(async move {
            let codec = ProstCodec::<messages::Done, messages::Put>::default();
            Ok(tonic::server::Grpc::new(codec).unary(keeper, request).await)
        })
    }
}

impl NamedService for Keeper {
    const NAME: &'static str = "bench.File";
}

/// A server, and connections to it.
pub(super) fn start(
    server: &Runtime,
    client: &Runtime,
    identity: &TlsIdentity,
    memory: &'static Memory,
) -> Result<Vec<Grpc>> {
    let own = tonic::transport::Identity::from_pem(&identity.certificate, &identity.key);
    let authority = Certificate::from_pem(&identity.authority);
    let tls = ServerTlsConfig::new().identity(own.clone()).client_ca_root(authority.clone());
    let socket = TcpListener::bind("127.0.0.1:0")?;
    socket.set_nonblocking(true)?;
    let address = socket.local_addr()?;
    let _inside = server.enter();
    let incoming = TcpIncoming::from(tokio::net::TcpListener::from_std(socket)?).with_nodelay(Some(true));
    let serving = Server::builder().tls_config(tls)?.add_service(Keeper(memory));
    server.spawn(serving.serve_with_incoming(incoming));
    let tls = ClientTlsConfig::new().identity(own).ca_certificate(authority).domain_name("master.copal");
    let endpoint = Endpoint::from_shared(format!("https://{address}"))?.tls_config(tls)?.tcp_nodelay(true);
    drop(_inside);
    (0..CONNECTIONS).map(|_| Ok(Grpc(client.block_on(endpoint.connect())?))).collect()
}

#[derive(Clone)]
pub(super) struct Grpc(Channel);

impl Caller for Grpc {
    async fn put(&mut self, put: messages::Put) -> Result<()> {
        let mut grpc = tonic::client::Grpc::new(self.0.clone());
        grpc.ready().await?;
        let codec = ProstCodec::<messages::Put, messages::Done>::default();
        grpc.unary(Request::new(put), PathAndQuery::from_static(METHOD), codec).await?;
        Ok(())
    }
}
