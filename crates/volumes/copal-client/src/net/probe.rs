//! Probe of one process of a cluster for diagnosis: whether it answers, its identity, and its clock.

use crate::net::{
    connection::{CallError, Connection},
    tls::{TlsIdentity, client_tls},
};
use copal_proto::{Method, messages};
use rustls_pki_types::ServerName;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long the answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Answer of a process to a probe.
#[derive(Clone, Copy, Debug)]
pub struct ProbeReply {
    /// Time of the handshake and the answer.
    pub took: Duration,
    /// How far its clock is ahead of this machine's, in milliseconds; `None`: it is not the leader.
    pub ahead_ms: Option<i64>,
}

/// Calls the process `name` at `address`, and asks a master for its clock. Blocks: do not use it inside a
/// runtime.
/// # Errors
/// The process is not reached, or another one answers there.
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
        let messages::Ping {} = connection.call(Method::Ping, &messages::Ping {}, ANSWER_TIMEOUT).await?;
        let took = began.elapsed();
        if !is_master {
            return Ok(ProbeReply { took, ahead_ms: None });
        }
        let watch = messages::WatchMap { since: u64::MAX, wait_ms: 0 };
        let asked = now_ms();
        let map: Result<messages::Map, _> = connection.call(Method::WatchMap, &watch, ANSWER_TIMEOUT).await;
        let answered = now_ms();
        // The master read its clock about halfway between request and answer. Only the leader's clock counts.
        let ahead_ms = map.ok().map(|map| map.now_ms as i64 - (asked + answered) / 2);
        Ok(ProbeReply { took, ahead_ms })
    })
}

fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as i64)
}
