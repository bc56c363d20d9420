//! Calls to whichever master leads.
//!
//! The one that answered last is asked first. When it is silent, or leads no more, all are asked at once who
//! leads: a master that is paused or cut off costs no more than the wait for its silence.
//!
//! Paper: beanfs §4.2 (stand-by masters; here clients know all addresses, and none is taken over)

use crate::net::connection::CallError;
use crate::net::connection_pool::ConnectionPool;
use crate::net::machine;
use crate::net::tls::name_of_master;
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

/// Between two rounds of asking all masters.
const BETWEEN: Duration = Duration::from_millis(200);
/// How long the leader may be silent before others are asked whether they lead; beyond the wait that a call
/// asks for.
const SILENCE: Duration = Duration::from_secs(2);
/// How long a master may take to say whether it leads.
const TO_SAY: Duration = Duration::from_secs(1);
/// More addresses than this are no masters.
const MOST: usize = 64;

struct Known {
    addresses: Vec<String>,
    /// Which of them led last.
    leader: Option<String>,
}

/// The masters of a cluster. Cheap to clone.
#[derive(Clone)]
pub struct Masters {
    known: Arc<RwLock<Known>>,
    connections: ConnectionPool,
}

impl Masters {
    /// Masters at these addresses.
    pub fn new(addresses: &[String], connections: ConnectionPool) -> Masters {
        let known = Known { addresses: addresses.to_vec(), leader: None };
        Masters { known: Arc::new(RwLock::new(known)), connections }
    }

    /// All addresses that are known.
    pub fn addresses(&self) -> Vec<String> {
        self.known.read().addresses.clone()
    }

    /// Who led last, as far as is known.
    pub fn leader(&self) -> Option<String> {
        self.known.read().leader.clone()
    }

    /// Takes the addresses that a map tells; whether they are others than before. A map that tells none says
    /// nothing.
    pub fn learn(&self, addresses: &[String]) -> bool {
        if addresses.is_empty() || addresses.len() > MOST {
            return false;
        }
        let mut known = self.known.write();
        let is_new = known.addresses != addresses;
        if is_new {
            known.addresses = addresses.to_vec();
        }
        is_new
    }

    /// Calls the master that leads, however often it has to be looked for until the deadline. A call that may
    /// have been carried out is repeated only where that does no harm.
    /// # Errors
    /// All of them.
    pub async fn call<T: Message + Default>(
        &self,
        method: Method,
        request: &impl Message,
        deadline: Duration,
    ) -> Result<T, CallError> {
        self.call_waiting(method, request, Duration::ZERO, deadline).await
    }

    /// As [`Masters::call`], for a call that the master answers after `wait` at the latest, on purpose.
    /// # Errors
    /// All of them.
    pub async fn call_waiting<T: Message + Default>(
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
                // With one master there is nobody else to ask.
                let is_only = self.known.read().addresses.len() == 1;
                let patience = match is_only || !is_harmless(method) {
                    true => left,
                    false => left.min(wait + SILENCE),
                };
                let outcome = self.call_one(&leader, method, request, patience).await;
                match outcome {
                    Ok(answer) => return Ok(answer),
                    Err(error) if may_go_on(method, &error) || (patience < left && is_silent(&error)) => {
                        self.forget(&leader);
                        last = error;
                    }
                    Err(error) => return Err(error),
                }
            }
            if machine::now() + BETWEEN >= end {
                return Err(last);
            }
            tokio::time::sleep(BETWEEN).await;
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
        let left = end.saturating_duration_since(machine::now()).min(TO_SAY);
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
        answer.map_err(|error| of_older_master(method, error))
    }
}

/// Says which release is too old where a master does not know a call.
fn of_older_master(method: Method, error: CallError) -> CallError {
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

/// Whether a call may be sent twice.
fn is_harmless(method: Method) -> bool {
    !matches!(method, Method::Mkdir | Method::Rename | Method::Rmdir | Method::Join | Method::JoinMaster)
}

fn is_silent(error: &CallError) -> bool {
    matches!(error, CallError::Deadline)
}

fn may_go_on(method: Method, error: &CallError) -> bool {
    match error {
        CallError::Unreachable { .. } => true,
        CallError::Broken { .. } => {
            !matches!(method, Method::Mkdir | Method::Rename | Method::Join | Method::JoinMaster)
        }
        CallError::Failed(failure) => failure.code == i32::from(Code::NotLeader),
        CallError::Deadline | CallError::Malformed(_) | CallError::OtherRelease(_) => false,
    }
}
