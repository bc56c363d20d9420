//! A small HTTP server: `/metrics`, `/health`, `/ready`, for GET and HEAD.

use crate::net::unauthenticated::UnauthenticatedPeers;
use hyper::{
    Method, Request, Response, StatusCode, body::Incoming, header, server::conn::http1, service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::encoding::prometheus_text;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::{
    convert::Infallible,
    fmt,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::timeout,
};

/// Offset of the default port from the port of calls.
const PORT_OFFSET: u16 = 200;
/// Time limit of a connection, including its reply.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Limit of a request's headers, bytes: the least that hyper accepts.
const HEADER_BYTES: usize = 8 << 10;
/// Most headers of a request.
const HEADERS: usize = 64;
/// Connections at a time. Above it the oldest is evicted, a silent one first.
const CONNECTIONS: usize = 64;
/// Replies computed at a time.
const ANSWERS: usize = 16;

/// Endpoint of a process for monitors.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HttpEndpoint {
    /// Loopback, 200 ports above the port of calls; none if that port is in use.
    #[default]
    Behind,
    /// This address.
    Address(String),
    /// None.
    Nowhere,
}

impl FromStr for HttpEndpoint {
    type Err = String;

    fn from_str(typed: &str) -> Result<HttpEndpoint, String> {
        let port = typed.rsplit_once(':').map(|(_, port)| port.parse::<u16>());
        match (typed, port) {
            ("none", _) => Ok(HttpEndpoint::Nowhere),
            (_, Some(Ok(_))) => Ok(HttpEndpoint::Address(typed.to_owned())),
            _ => Err("give HOST:PORT, or `none`".to_owned()),
        }
    }
}

/// A reply to `/health` or `/ready`.
pub(crate) struct HealthReply {
    pub(crate) is_good: bool,
    pub(crate) json: Value,
}

/// The pages of a process. Each may block on the device.
pub(crate) trait MonitorPages: Send + Sync + 'static {
    /// Metrics in the text format of Prometheus.
    /// # Errors
    /// A value cannot be formatted.
    fn metrics(&self) -> Result<String, fmt::Error>;
    /// Whether the process needs attention.
    fn health(&self) -> HealthReply;
    /// Whether the process answers calls.
    fn ready(&self) -> HealthReply;
}

/// Listens at the endpoint; `None`: there is none.
/// # Errors
/// The given address cannot be used.
pub(crate) async fn bind(
    at: &HttpEndpoint,
    calls: SocketAddr,
) -> Result<Option<TcpListener>, (String, std::io::Error)> {
    match at {
        HttpEndpoint::Nowhere => Ok(None),
        HttpEndpoint::Address(address) => match TcpListener::bind(address).await {
            Ok(listener) => Ok(Some(listener)),
            Err(error) => Err((address.clone(), error)),
        },
        HttpEndpoint::Behind => {
            let Some(port) = calls.port().checked_add(PORT_OFFSET) else {
                return Ok(None);
            };
            let host = match calls.ip() {
                own if own.is_loopback() => own,
                _ => IpAddr::V4(Ipv4Addr::LOCALHOST),
            };
            match TcpListener::bind((host, port)).await {
                Ok(listener) => Ok(Some(listener)),
                Err(error) => {
                    // The default endpoint is optional: the server starts without it.
                    tracing::info!(%host, port, %error, "monitoring is off, since its default port is in use; set --http");
                    Ok(None)
                }
            }
        }
    }
}

/// Serves until the task is dropped.
pub(crate) async fn serve(listener: TcpListener, pages: Arc<dyn MonitorPages>) {
    let turns = Arc::new(Semaphore::new(ANSWERS));
    let connections = UnauthenticatedPeers::with(CONNECTIONS, CONNECTIONS);
    loop {
        let Ok((socket, address)) = listener.accept().await else {
            // Mostly no file descriptors are left; some are freed when connections end.
            connections.evict_oldest();
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let (pages, turns) = (Arc::clone(&pages), Arc::clone(&turns));
        let mut place = connections.admit(address.ip());
        tokio::spawn(async move {
            let conversation = converse(socket, pages, turns, Arc::clone(&place.has_sent));
            // A slow or malformed request gets no reply.
            tokio::select! {
                _ = timeout(REQUEST_TIMEOUT, conversation) => {}
                () = place.evicted() => {}
            }
        });
    }
}

async fn converse(
    socket: TcpStream,
    pages: Arc<dyn MonitorPages>,
    turns: Arc<Semaphore>,
    has_asked: Arc<AtomicBool>,
) -> Result<(), hyper::Error> {
    let answer = service_fn(move |request: Request<Incoming>| {
        let (pages, turns) = (Arc::clone(&pages), Arc::clone(&turns));
        has_asked.store(true, Ordering::Relaxed);
        async move {
            // The semaphore is never closed.
            let _turn = turns.acquire_owned().await;
            Ok::<_, Infallible>(answer(&request, pages).await)
        }
    });
    http1::Builder::new()
        .timer(TokioTimer::new())
        .keep_alive(false)
        .header_read_timeout(REQUEST_TIMEOUT)
        .max_buf_size(HEADER_BYTES)
        .max_headers(HEADERS)
        .serve_connection(TokioIo::new(socket), answer)
        .await
}

async fn answer(request: &Request<Incoming>, pages: Arc<dyn MonitorPages>) -> Response<String> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut refused = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n".to_owned());
        let allowed = header::HeaderValue::from_static("GET, HEAD");
        refused.headers_mut().insert(header::ALLOW, allowed);
        return refused;
    }
    let path = request.uri().path().to_owned();
    let response = tokio::task::spawn_blocking(move || match path.as_str() {
        "/metrics" => match pages.metrics() {
            Ok(page) => text(StatusCode::OK, page),
            Err(_) => failed(),
        },
        "/health" => json(&pages.health()),
        "/ready" => json(&pages.ready()),
        _ => text(StatusCode::NOT_FOUND, "there are /metrics, /health and /ready\n".to_owned()),
    });
    response.await.unwrap_or_else(|_| failed())
}

fn failed() -> Response<String> {
    text(StatusCode::INTERNAL_SERVER_ERROR, "the answer ended early\n".to_owned())
}

fn text(status: StatusCode, body: String) -> Response<String> {
    with_type(status, body, prometheus_text::CONTENT_TYPE)
}

fn json(said: &HealthReply) -> Response<String> {
    let status = match said.is_good {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    };
    with_type(status, format!("{}\n", said.json), "application/json")
}

fn with_type(status: StatusCode, body: String, kind: &'static str) -> Response<String> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let kind = header::HeaderValue::from_static(kind);
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

#[cfg(test)]
mod tests;
