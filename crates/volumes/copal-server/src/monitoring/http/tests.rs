use super::*;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

struct Sick;

impl MonitorPages for Sick {
    fn metrics(&self) -> Result<String, fmt::Error> {
        Ok("copal_up 1\n".to_owned())
    }

    fn health(&self) -> HealthReply {
        HealthReply { is_good: false, json: json!({ "sentence": "the disk is gone" }) }
    }

    fn ready(&self) -> HealthReply {
        HealthReply { is_good: true, json: json!({}) }
    }
}

async fn started() -> SocketAddr {
    let at = HttpEndpoint::Address("127.0.0.1:0".to_owned());
    let listener = bind(&at, ([127, 0, 0, 1], 1).into()).await.unwrap().unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(serve(listener, Arc::new(Sick)));
    address
}

async fn said(address: SocketAddr, sent: &[u8]) -> String {
    let mut socket = TcpStream::connect(address).await.unwrap();
    // It may be closed before all of it was sent.
    let _ = socket.write_all(sent).await;
    let mut answer = Vec::new();
    let _ = socket.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

async fn got(address: SocketAddr, line: &str) -> String {
    said(address, format!("{line} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).await
}

#[tokio::test]
async fn each_page_has_its_status_and_its_body() {
    let address = started().await;
    let metrics = got(address, "GET /metrics").await;
    assert!(metrics.starts_with("HTTP/1.1 200 "), "{metrics}");
    assert!(metrics.contains("version=0.0.4") && metrics.ends_with("\r\n\r\ncopal_up 1\n"), "{metrics}");
    let health = got(address, "GET /health?verbose=1").await;
    assert!(health.starts_with("HTTP/1.1 503 "), "{health}");
    assert!(health.ends_with("{\"sentence\":\"the disk is gone\"}\n"), "{health}");
    assert!(got(address, "GET /ready").await.starts_with("HTTP/1.1 200 "));
    assert!(got(address, "GET /elsewhere").await.starts_with("HTTP/1.1 404 "));
}

#[tokio::test]
async fn nothing_but_reading_is_answered_and_no_body_follows_a_head() {
    let address = started().await;
    let posted = got(address, "POST /metrics").await;
    assert!(posted.starts_with("HTTP/1.1 405 "), "{posted}");
    let head = got(address, "HEAD /metrics").await;
    assert!(head.starts_with("HTTP/1.1 200 ") && head.ends_with("\r\n\r\n"), "{head}");
}

#[tokio::test]
async fn endless_headers_and_garbage_are_closed_and_others_are_answered() {
    let address = started().await;
    let endless = [b"GET /metrics HTTP/1.1\r\nX: ".to_vec(), vec![b'x'; 1 << 20]].concat();
    let refused = said(address, &endless).await;
    assert!(!refused.starts_with("HTTP/1.1 200"), "{refused}");
    let refused = said(address, b"\x16\x03\x01\x02\x00\x01\x00").await;
    assert!(!refused.contains("copal_up"), "{refused}");
    // More than are served at a time, and silent: they have ten seconds, and the others wait no longer.
    let mut silent = Vec::new();
    for _ in 0..CONNECTIONS - 1 {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    assert!(got(address, "GET /ready").await.starts_with("HTTP/1.1 200 "));
}

#[test]
fn an_address_is_a_host_and_a_port() {
    assert_eq!("none".parse(), Ok(HttpEndpoint::Nowhere));
    assert_eq!("10.0.0.1:9100".parse(), Ok(HttpEndpoint::Address("10.0.0.1:9100".to_owned())));
    for typed in ["", "10.0.0.1", "10.0.0.1:", "10.0.0.1:port", "x:99999"] {
        assert!(typed.parse::<HttpEndpoint>().is_err(), "{typed}");
    }
}
