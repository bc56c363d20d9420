//! Whether one process of a cluster answers, who it is, and what its clock says: for who looks for what is
//! wrong.

use crate::net::connection::{CallError, Connection};
use crate::net::tls::{TlsIdentity, client_tls};
use copal_proto::{Method, messages};
use rustls_pki_types::ServerName;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long the answer may take.
const TO_ANSWER: Duration = Duration::from_secs(5);

/// A process that answered.
#[derive(Clone, Copy, Debug)]
pub struct ProbeReply {
    /// How long handshake and answer took.
    pub took: Duration,
    /// How far its clock is ahead of this machine's, in milliseconds; `None`: it is no master that leads.
    pub ahead_ms: Option<i64>,
}

/// Calls whoever listens at `address` under `name`; a master is asked for its clock. Blocks; not to be called
/// inside a runtime.
/// # Errors
/// It is not reached, or is not who was meant.
pub fn probe(
    identity: &TlsIdentity,
    address: &str,
    name: ServerName<'static>,
    is_master: bool,
) -> Result<ProbeReply, CallError> {
    let unreachable = |reason: String| CallError::Unreachable { address: address.to_owned(), reason };
    let tls = client_tls(identity).map_err(|error| unreachable(error.to_string()))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| unreachable(error.to_string()))?;
    runtime.block_on(async {
        let began = Instant::now();
        let connection = Connection::open(address, name, tls).await?;
        let messages::Ping {} = connection.call(Method::Ping, &messages::Ping {}, TO_ANSWER).await?;
        let took = began.elapsed();
        if !is_master {
            return Ok(ProbeReply { took, ahead_ms: None });
        }
        let watch = messages::WatchMap { since: u64::MAX, wait_ms: 0 };
        let asked = now_ms();
        let told: Result<messages::Map, _> = connection.call(Method::WatchMap, &watch, TO_ANSWER).await;
        let answered = now_ms();
        // In the middle of question and answer; one that does not lead has no clock that counts.
        let ahead_ms = told.ok().map(|map| map.now_ms as i64 - (asked + answered) / 2);
        Ok(ProbeReply { took, ahead_ms })
    })
}

fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as i64)
}
