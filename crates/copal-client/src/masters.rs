//! Calls to whichever master leads.

use crate::{connection::CallError, connections::Connections, tls::name_of_master};
use copal_proto::{Method, messages::failure::Code};
use prost::Message;
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

/// Between two rounds of asking all masters.
const BETWEEN: Duration = Duration::from_millis(200);

/// The masters of a cluster. Cheap to clone.
#[derive(Clone)]
pub struct Masters {
    addresses: Arc<[String]>,
    connections: Connections,
    /// Which of them answered last.
    leader: Arc<AtomicUsize>,
}

impl Masters {
    /// Masters at these addresses.
    pub fn new(addresses: &[String], connections: Connections) -> Masters {
        Masters {
            addresses: addresses.into(),
            connections,
            leader: Arc::default(),
        }
    }

    /// Calls the master that leads, however often it has to be looked for until the deadline. A call that may have been
    /// carried out is repeated only where that does no harm.
    /// # Errors
    /// All of them.
    pub async fn call<T: Message + Default>(
        &self,
        method: Method,
        request: &impl Message,
        deadline: Duration,
    ) -> Result<T, CallError> {
        let end = Instant::now() + deadline;
        loop {
            let first = self.leader.load(Ordering::Relaxed);
            let mut last = CallError::Deadline;
            for offset in 0..self.addresses.len() {
                let at = (first + offset) % self.addresses.len();
                let left = end.saturating_duration_since(Instant::now());
                match self.call_one(&self.addresses[at], method, request, left).await {
                    Ok(answer) => {
                        self.leader.store(at, Ordering::Relaxed);
                        return Ok(answer);
                    }
                    Err(error) if may_go_on(method, &error) => last = error,
                    Err(error) => return Err(error),
                }
            }
            if Instant::now() + BETWEEN >= end {
                return Err(last);
            }
            tokio::time::sleep(BETWEEN).await;
        }
    }

    async fn call_one<T: Message + Default>(
        &self,
        address: &str,
        method: Method,
        request: &impl Message,
        deadline: Duration,
    ) -> Result<T, CallError> {
        let connection = self.connections.to(address, name_of_master()).await?;
        connection.call(method, request, deadline).await
    }
}

fn may_go_on(method: Method, error: &CallError) -> bool {
    match error {
        CallError::Unreachable { .. } => true,
        CallError::Broken { .. } => !matches!(method, Method::Mkdir | Method::Rename | Method::Join),
        CallError::Failed(failure) => failure.code == i32::from(Code::NotLeader),
        CallError::Deadline | CallError::Malformed(_) => false,
    }
}
