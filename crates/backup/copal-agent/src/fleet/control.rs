//! Commands to an agent: request and outcome as JSON.
//!
//! Not here: the list of commands (`agent::requests`).

use crate::fleet::messages::JSON_BYTES;
use crate::fleet::network::{FleetNetwork, PeerError};
use copal_client::CallError;
use copal_proto::{Method, messages};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::json;
use std::time::{Duration, Instant};

/// Executes commands.
pub trait CommandService: Send + Sync {
    /// Executes `request`, which is JSON, and returns its [`CommandOutcome`] as JSON. Called concurrently on
    /// threads that may block; a long command ends soon after the server's stop flag is set.
    fn handle(&self, request: &[u8]) -> String;
}

/// The outcome of a command.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CommandOutcome<T> {
    /// Its reply.
    Ok(T),
    /// Reason of a refusal.
    Error(String),
}

/// An outcome without a reply, as JSON.
pub(crate) fn refusal(reason: &str) -> String {
    json!({ "error": reason }).to_string()
}

/// A command or its outcome as JSON, with fields in alphabetical order.
pub(crate) fn to_json(message: &impl Serialize) -> Result<String, serde_json::Error> {
    Ok(serde_json::to_value(message)?.to_string())
}

/// Reason why a command has no reply.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommandError {
    /// The agent could not be reached.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// The command is too long.
    #[error("the command has {len} bytes, at most {JSON_BYTES} are sent")]
    TooLong {
        /// Its length in bytes.
        len: usize,
    },
    /// The command cannot be serialized.
    #[error("the command cannot be written as JSON: {0}")]
    Json(serde_json::Error),
    /// The agent's reply is invalid.
    #[error("{address} sent no valid reply: {source}; run the same copal on all hosts")]
    Reply {
        /// The agent.
        address: String,
        /// Error of the parser.
        source: serde_json::Error,
    },
}

/// Sends a command to the agent at `address` and waits up to `timeout` for its reply.
/// # Errors
/// `Peer` names the address that cannot be reached or refuses; a command without a reply may have been
/// executed. `Reply`: the reply lacks a field, or is not JSON.
pub fn call<R: DeserializeOwned>(
    address: &str,
    network: &FleetNetwork,
    request: &impl Serialize,
    timeout: Duration,
) -> Result<R, CommandError> {
    let json = to_json(request).map_err(CommandError::Json)?;
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
    let invalid = |source| CommandError::Reply { address: address.to_owned(), source };
    serde_json::from_slice(&reply.json).map_err(invalid)
}
