//! Calls to the leader among the masters.
//!
//! The last known leader is called first. If it is silent or no longer leads, all masters are asked at once whether
//! they lead. So a master that is paused or cut off costs one timeout and no more.
//!
//! Paper: beanfs §4.2 (stand-by masters; here clients know all addresses, so no address is taken over)

use crate::net::{connection::CallError, connection_pool::ConnectionPool, machine, tls::name_of_master};
use copal_proto::{
    CallClass, Method, UNKNOWN_CALL,
    messages::{self, failure::Code},
};
use futures_util::{StreamExt, stream::FuturesUnordered};
use parking_lot::RwLock;
use prost::Message;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// Pause between two searches for the leader.
const SEARCH_PAUSE: Duration = Duration::from_millis(200);
/// How long the leader may be silent before the other masters are asked; added to the wait of a long poll.
const SILENCE: Duration = Duration::from_secs(2);
/// How long a master may take to answer whether it leads.
const LEADING_TIMEOUT: Duration = Duration::from_secs(1);
/// Most masters of a cluster. A longer list of addresses is ignored.
const MAX_MASTERS: usize = 64;

struct KnownMasters {
    addresses: Vec<String>,
    /// Address of the last known leader.
    leader: Option<String>,
}

/// The masters of a cluster. Cheap to clone.
#[derive(Clone)]
pub struct Masters {
    known: Arc<RwLock<KnownMasters>>,
    connections: ConnectionPool,
}

impl Masters {
    /// Masters at these addresses.
    pub fn new(addresses: &[String], connections: ConnectionPool) -> Masters {
        let known = KnownMasters { addresses: addresses.to_vec(), leader: None };
        Masters { known: Arc::new(RwLock::new(known)), connections }
    }

    /// All addresses that are known.
    pub fn addresses(&self) -> Vec<String> {
        self.known.read().addresses.clone()
    }

    /// Address of the last known leader.
    pub fn leader(&self) -> Option<String> {
        self.known.read().leader.clone()
    }

    /// Takes the masters' addresses of a map. Returns whether they changed. An empty list is ignored.
    pub fn learn(&self, addresses: &[String]) -> bool {
        if addresses.is_empty() || addresses.len() > MAX_MASTERS {
            return false;
        }
        let mut known = self.known.write();
        let is_new = known.addresses != addresses;
        if is_new {
            known.addresses = addresses.to_vec();
        }
        is_new
    }

    /// Calls the leader, and searches for it as often as necessary until the deadline. A call that may have been
    /// carried out is repeated only if it is idempotent.
    /// # Errors
    /// All of them.
    pub async fn call<T: Message + Default>(
        &self,
        method: Method,
        request: &impl Message,
        deadline: Duration,
    ) -> Result<T, CallError> {
        self.call_long_poll(method, request, Duration::ZERO, deadline).await
    }

    /// As [`Masters::call`], for a long poll: the master may delay its answer by `wait`.
    /// # Errors
    /// All of them.
    pub async fn call_long_poll<T: Message + Default>(
        &self,
        method: Method,
        request: &impl Message,
        wait: Duration,
        deadline: Duration,
    ) -> Result<T, CallError> {
        let end = machine::now() + deadline;
        let mut last = CallError::Deadline;
        loop {
            let known = self.leader();
            let leader = match known {
                Some(leader) => Some(leader),
                None => self.find_leader(end).await.unwrap_or_else(|error| {
                    last = error;
                    None
                }),
            };
            if let Some(leader) = leader {
                let left = end.saturating_duration_since(machine::now());
                // Without other masters, a timeout before the deadline is of no use.
                let is_only = self.known.read().addresses.len() == 1;
                let patience = match is_only || !is_idempotent(method) {
                    true => left,
                    false => left.min(wait + SILENCE),
                };
                let outcome = self.call_one(&leader, method, request, patience).await;
                match outcome {
                    Ok(answer) => return Ok(answer),
                    Err(error) if may_retry(method, &error) || (patience < left && is_silent(&error)) => {
                        self.forget(&leader);
                        last = error;
                    }
                    Err(error) => return Err(error),
                }
            }
            if machine::now() + SEARCH_PAUSE >= end {
                return Err(last);
            }
            tokio::time::sleep(SEARCH_PAUSE).await;
        }
    }

    fn forget(&self, leader: &str) {
        let mut known = self.known.write();
        if known.leader.as_deref() == Some(leader) {
            known.leader = None;
        }
    }

    /// Asks all masters at once whether they lead.
    async fn find_leader(&self, end: Instant) -> Result<Option<String>, CallError> {
        let addresses = self.addresses();
        if let [only] = &addresses[..] {
            return Ok(Some(only.clone()));
        }
        let left = end.saturating_duration_since(machine::now()).min(LEADING_TIMEOUT);
        let asks = addresses.iter().map(|address| async move {
            let request = messages::Leading {};
            let answer = self.call_one::<messages::Leading>(address, Method::Leading, &request, left).await;
            (address, answer)
        });
        let mut asks: FuturesUnordered<_> = asks.collect();
        let mut last = CallError::Deadline;
        while let Some((address, answer)) = asks.next().await {
            match answer {
                Ok(_) => {
                    self.known.write().leader = Some(address.clone());
                    return Ok(Some(address.clone()));
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    async fn call_one<T: Message + Default>(
        &self,
        address: &str,
        method: Method,
        request: &impl Message,
        deadline: Duration,
    ) -> Result<T, CallError> {
        let connect = self.connections.connect(address, name_of_master(), CallClass::Control);
        let connection = tokio::time::timeout(deadline, connect).await.map_err(|_| CallError::Deadline)??;
        let answer = connection.call(method, request, deadline).await;
        answer.map_err(|error| older_release_error(method, error))
    }
}

/// Converts the refusal of an unknown call into an error that names the older release.
fn older_release_error(method: Method, error: CallError) -> CallError {
    match error {
        CallError::Failed(failure)
            if failure.code == i32::from(Code::Invalid) && failure.text == UNKNOWN_CALL =>
        {
            CallError::OtherRelease(format!(
                "the master is of an older release than this program, and does not know the call {}: bring all masters to \
                 release {} first",
                method.name(),
                env!("CARGO_PKG_VERSION")
            ))
        }
        error => error,
    }
}

/// Whether a second call has no further effect.
fn is_idempotent(method: Method) -> bool {
    !matches!(method, Method::Mkdir | Method::Rename | Method::Rmdir | Method::Join | Method::JoinMaster)
}

fn is_silent(error: &CallError) -> bool {
    matches!(error, CallError::Deadline)
}

/// Whether a call may be repeated after this error.
fn may_retry(method: Method, error: &CallError) -> bool {
    match error {
        CallError::Unreachable { .. } => true,
        CallError::Broken { .. } => {
            !matches!(method, Method::Mkdir | Method::Rename | Method::Join | Method::JoinMaster)
        }
        CallError::Failed(failure) => failure.code == i32::from(Code::NotLeader),
        CallError::Deadline | CallError::Malformed(_) | CallError::OtherRelease(_) => false,
    }
}
