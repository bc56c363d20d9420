//! A small HTTP server: `/metrics`, `/health`, `/ready`, for GET and HEAD.

use crate::unauthenticated::Unauthenticated;
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

/// How far the port lies behind that of the calls, unless an address is given.
const PORT_BEHIND: u16 = 200;
/// How long a connection may last, its answer included.
const TO_ANSWER: Duration = Duration::from_secs(10);
/// Bytes of a request's headers, the least that hyper takes.
const HEADER_BYTES: usize = 8 << 10;
/// Headers of a request.
const HEADERS: usize = 64;
/// Connections at a time; of more the oldest makes room, one that has asked for nothing first.
const CONNECTIONS: usize = 64;
/// Answers that are made at a time.
const ANSWERS: usize = 16;

/// Where a process answers a monitor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HttpAt {
    /// On loopback, 200 ports behind that of the calls; nowhere, where somebody has that port.
    #[default]
    Behind,
    /// There.
    Address(String),
    /// Nowhere.
    Nowhere,
}

impl FromStr for HttpAt {
    type Err = String;

    fn from_str(typed: &str) -> Result<HttpAt, String> {
        let port = typed.rsplit_once(':').map(|(_, port)| port.parse::<u16>());
        match (typed, port) {
            ("none", _) => Ok(HttpAt::Nowhere),
            (_, Some(Ok(_))) => Ok(HttpAt::Address(typed.to_owned())),
            _ => Err("give HOST:PORT, or `none`".to_owned()),
        }
    }
}

/// A word for machines and whether it is a good one.
pub(crate) struct Said {
    pub(crate) is_good: bool,
    pub(crate) json: Value,
}

/// What a process has to tell. All of it may block on the device.
pub(crate) trait Pages: Send + Sync + 'static {
    /// Numbers, as Prometheus reads them.
    /// # Errors
    /// Something of it cannot be written as text.
    fn metrics(&self) -> Result<String, fmt::Error>;
    /// Whether somebody has to look after the process.
    fn health(&self) -> Said;
    /// Whether the process serves.
    fn ready(&self) -> Said;
}

/// Listens where `at` says; `None`: nowhere.
/// # Errors
/// An address that was given cannot be listened at.
pub(crate) async fn bind(
    at: &HttpAt,
    calls: SocketAddr,
) -> Result<Option<TcpListener>, (String, std::io::Error)> {
    match at {
        HttpAt::Nowhere => Ok(None),
        HttpAt::Address(address) => match TcpListener::bind(address).await {
            Ok(listener) => Ok(Some(listener)),
            Err(error) => Err((address.clone(), error)),
        },
        HttpAt::Behind => {
            let Some(port) = calls.port().checked_add(PORT_BEHIND) else {
                return Ok(None);
            };
            let host = match calls.ip() {
                own if own.is_loopback() => own,
                _ => IpAddr::V4(Ipv4Addr::LOCALHOST),
            };
            match TcpListener::bind((host, port)).await {
                Ok(listener) => Ok(Some(listener)),
                Err(error) => {
                    // Nobody asked for it, so it keeps no server from its work.
                    tracing::info!(%host, port, %error, "no monitor is answered; --http says where to");
                    Ok(None)
                }
            }
        }
    }
}

/// Answers until the task is dropped.
pub(crate) async fn serve(listener: TcpListener, pages: Arc<dyn Pages>) {
    let turns = Arc::new(Semaphore::new(ANSWERS));
    let connections = Unauthenticated::with(CONNECTIONS, CONNECTIONS);
    loop {
        let Ok((socket, address)) = listener.accept().await else {
            // No descriptors left, mostly: some come back when connections end.
            connections.make_room();
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let (pages, turns) = (Arc::clone(&pages), Arc::clone(&turns));
        let mut place = connections.enter(address.ip());
        tokio::spawn(async move {
            let conversation = converse(socket, pages, turns, Arc::clone(&place.has_spoken));
            // Whoever is too slow, or sends something else, is not answered.
            tokio::select! {
                _ = timeout(TO_ANSWER, conversation) => {}
                () = place.lost() => {}
            }
        });
    }
}

async fn converse(
    socket: TcpStream,
    pages: Arc<dyn Pages>,
    turns: Arc<Semaphore>,
    has_asked: Arc<AtomicBool>,
) -> Result<(), hyper::Error> {
    let answer = service_fn(move |request: Request<Incoming>| {
        let (pages, turns) = (Arc::clone(&pages), Arc::clone(&turns));
        has_asked.store(true, Ordering::Relaxed);
        async move {
            // Never closed.
            let _turn = turns.acquire_owned().await;
            Ok::<_, Infallible>(answer(&request, pages).await)
        }
    });
    http1::Builder::new()
        .timer(TokioTimer::new())
        .keep_alive(false)
        .header_read_timeout(TO_ANSWER)
        .max_buf_size(HEADER_BYTES)
        .max_headers(HEADERS)
        .serve_connection(TokioIo::new(socket), answer)
        .await
}

async fn answer(request: &Request<Incoming>, pages: Arc<dyn Pages>) -> Response<String> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut refused = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n".to_owned());
        let allowed = header::HeaderValue::from_static("GET, HEAD");
        refused.headers_mut().insert(header::ALLOW, allowed);
        return refused;
    }
    let path = request.uri().path().to_owned();
    let told = tokio::task::spawn_blocking(move || match path.as_str() {
        "/metrics" => match pages.metrics() {
            Ok(page) => text(StatusCode::OK, page),
            Err(_) => failed(),
        },
        "/health" => json(&pages.health()),
        "/ready" => json(&pages.ready()),
        _ => text(StatusCode::NOT_FOUND, "there are /metrics, /health and /ready\n".to_owned()),
    });
    told.await.unwrap_or_else(|_| failed())
}

fn failed() -> Response<String> {
    text(StatusCode::INTERNAL_SERVER_ERROR, "the answer ended early\n".to_owned())
}

fn text(status: StatusCode, body: String) -> Response<String> {
    with_type(status, body, prometheus_text::CONTENT_TYPE)
}

fn json(said: &Said) -> Response<String> {
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
