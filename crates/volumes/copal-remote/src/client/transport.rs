//! HTTP below OpenDAL: limits of requests, and facts of an answer beside its body.
//!
//! Invariant: a call of this crate makes its requests in its own task, so [`AnswerFacts`] are those of its own requests.

use super::server_clock::ServerClock;
use bytes::Bytes;
use copal_volume::TokenBucket;
use opendal::{Buffer, Error, HttpBody, HttpTransport, raw::oio::ReadStream};
use opendal_http_transport_reqwest::ReqwestTransport;
use parking_lot::Mutex;
use std::{
    cell::RefCell,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::Semaphore;

/// Longest body of a failed request that is looked at.
const MAX_ERROR_BYTES: usize = 64 << 10;
/// Time whose requests may come at once after a pause.
const BURST: Duration = Duration::from_millis(250);

/// The last answer of a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct AnswerFacts {
    /// Status; `None`: no answer.
    pub(super) status: Option<u16>,
    /// Code of the error in the body or headers.
    pub(super) code: String,
    /// Length of the whole object, of a read of a part.
    pub(super) total: Option<u64>,
    pub(super) tag: Option<String>,
    /// Version of the object that a write made, if the bucket keeps old ones.
    pub(super) version: Option<String>,
    /// Where the bucket is, if the store says that it is elsewhere.
    pub(super) region: Option<String>,
}

tokio::task_local! {
    static FACTS: RefCell<AnswerFacts>;
}

/// Runs a call; returns its outcome and its last answer.
pub(super) async fn with_facts<T>(call: impl Future<Output = T>) -> (T, AnswerFacts) {
    FACTS
        .scope(RefCell::default(), async {
            let outcome = call.await;
            (outcome, FACTS.with(|facts| facts.borrow().clone()))
        })
        .await
}

/// See the module.
pub(super) struct LimitedTransport {
    inner: ReqwestTransport,
    connections: Semaphore,
    rate: Option<Mutex<TokenBucket>>,
    began: Instant,
    clock: Arc<ServerClock>,
}

impl LimitedTransport {
    pub(super) fn new(
        client: reqwest::Client,
        connections: u32,
        rps: Option<u32>,
        clock: Arc<ServerClock>,
    ) -> LimitedTransport {
        LimitedTransport {
            inner: ReqwestTransport::new(client),
            connections: Semaphore::new(connections as usize),
            rate: rps.map(|rps| Mutex::new(TokenBucket::new(u64::from(rps), BURST, Duration::ZERO))),
            began: Instant::now(),
            clock,
        }
    }

    /// Waits until the rate permits a request, and takes it.
    async fn wait_for_turn(&self) {
        let Some(rate) = &self.rate else { return };
        loop {
            let pause = {
                let (mut rate, now) = (rate.lock(), self.began.elapsed());
                let pause = rate.wait(now);
                if pause.is_zero() {
                    rate.take(1, now);
                }
                pause
            };
            if pause.is_zero() {
                return;
            }
            tokio::time::sleep(pause).await;
        }
    }
}

impl HttpTransport for LimitedTransport {
    async fn fetch(&self, request: http::Request<Buffer>) -> opendal::Result<http::Response<HttpBody>> {
        let _permit = self.connections.acquire().await.ok();
        self.wait_for_turn().await;
        let _ = FACTS.try_with(|facts| *facts.borrow_mut() = AnswerFacts::default());
        let answer = self.inner.fetch(request).await?;
        let (parts, mut body) = answer.into_parts();
        let header = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok());
        if let Some(date) = header("date") {
            self.clock.observe(date);
        }
        let mut facts = AnswerFacts {
            status: Some(parts.status.as_u16()),
            code: header("x-ms-error-code").unwrap_or("").to_owned(),
            total: header("content-range").and_then(|range| range.rsplit_once('/')?.1.parse().ok()).or_else(
                || (parts.status.as_u16() == 200).then(|| header("content-length")?.parse().ok()).flatten(),
            ),
            tag: header("etag").map(str::to_owned),
            version: header("x-amz-version-id")
                .or_else(|| header("x-ms-version-id"))
                .filter(|version| *version != "null")
                .map(str::to_owned),
            region: header("x-amz-bucket-region").map(str::to_owned),
        };
        if parts.status.as_u16() >= 300 {
            let bytes = error_body(&mut body).await?;
            if facts.code.is_empty() {
                facts.code = code_of(&bytes);
            }
            let len = bytes.len() as u64;
            let stream = futures_util::stream::iter([Ok::<Buffer, Error>(Buffer::from(bytes))]);
            body = HttpBody::new(stream, Some(len));
        }
        let _ = FACTS.try_with(|of_call| *of_call.borrow_mut() = facts);
        Ok(http::Response::from_parts(parts, body))
    }
}

/// The first bytes of the body of a failed request.
async fn error_body(body: &mut HttpBody) -> opendal::Result<Bytes> {
    let mut bytes = Vec::new();
    loop {
        let next = body.read().await?;
        if next.is_empty() {
            return Ok(Bytes::from(bytes));
        }
        bytes.extend_from_slice(&next.to_bytes());
        if bytes.len() > MAX_ERROR_BYTES {
            bytes.truncate(MAX_ERROR_BYTES);
            return Ok(Bytes::from(bytes));
        }
    }
}

/// The code in an error's body: XML of S3 and Azure, JSON of Google. Empty: none, or a text that is no code.
fn code_of(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let between = |open: &str, close: &str| {
        let (_, rest) = text.split_once(open)?;
        Some(rest.split_once(close)?.0.trim().to_owned())
    };
    let code = between("<Code>", "</Code>")
        .or_else(|| {
            let (_, rest) = text.split_once("\"reason\"")?;
            Some(rest.split('"').nth(1)?.to_owned())
        })
        .unwrap_or_default();
    let is_code =
        !code.is_empty() && code.len() <= 64 && code.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if is_code { code } else { String::new() }
}

#[cfg(any(test, feature = "fuzz"))]
pub(super) fn fuzz_code(body: &[u8]) {
    let _ = code_of(body);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_failed_requests() {
        assert_eq!(code_of(b"<?xml?><Error><Code>NoSuchKey</Code><Message>x</Message></Error>"), "NoSuchKey");
        assert_eq!(code_of(br#"{"error":{"errors":[{"reason": "conditionNotMet"}]}}"#), "conditionNotMet");
        assert_eq!(code_of(b"<html>busy</html>"), "");
        assert_eq!(code_of(b"<Code>a b\nc</Code>"), "", "no text of a server is repeated");
        assert_eq!(code_of(&[0xff; 300]), "");
    }
}
