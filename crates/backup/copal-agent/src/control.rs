//! Commands to an agent: JSON there, JSON back.

use crate::{
    messages::JSON_BYTES,
    network::{Network, PeerError},
};
use copal_client::CallError;
use copal_proto::{Method, messages};
use serde_json::Value;
use std::time::{Duration, Instant};

/// Carries out commands.
pub trait Control: Send + Sync {
    /// Carries out `request` and returns its outcome, errors included. Called on a thread that may block,
    /// several at once; one that takes long ends soon after the server's stop flag is set.
    fn handle(&self, request: Value) -> Value;
}

/// Why a command has no reply.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommandError {
    /// The agent could not be talked to.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// The command is too long.
    #[error("the command has {len} bytes, at most {JSON_BYTES} are sent")]
    TooLong {
        /// Bytes it has.
        len: usize,
    },
    /// The agent's reply is none.
    #[error("{address} sent no valid reply")]
    Reply {
        /// The agent.
        address: String,
    },
}

/// Sends a command to the agent at `address` and waits up to `timeout` for its reply.
/// # Errors
/// `Peer` names the address that cannot be reached or refuses; a command may have been carried out when its
/// reply did not come.
pub fn call(
    address: &str,
    network: &Network,
    request: &Value,
    timeout: Duration,
) -> Result<Value, CommandError> {
    let json = request.to_string();
    if json.len() > JSON_BYTES {
        return Err(CommandError::TooLong { len: json.len() });
    }
    let end = Instant::now() + timeout;
    let failed = |source| PeerError::Call { address: address.to_owned(), source };
    let called = async {
        let (connection, _) = network.connect(address, "control").await?;
        let command = messages::AgentCommand { json: json.into() };
        let left = end.saturating_duration_since(Instant::now());
        let reply: messages::AgentReply =
            connection.call(Method::AgentCommand, &command, left).await.map_err(failed)?;
        Ok::<_, PeerError>(reply)
    };
    let reply = network.wait(async { tokio::time::timeout(timeout, called).await });
    let reply = reply.map_err(|_| failed(CallError::Deadline))??;
    serde_json::from_slice(&reply.json).map_err(|_| CommandError::Reply { address: address.to_owned() })
}
