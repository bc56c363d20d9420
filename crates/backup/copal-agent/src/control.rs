//! Commands to an agent: JSON there, JSON back.
//!
//! Not here: which commands there are (`agent::requests`).

use crate::{
    messages::JSON_BYTES,
    network::{FleetNetwork, PeerError},
};
use copal_client::CallError;
use copal_proto::{Method, messages};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::json;
use std::time::{Duration, Instant};

/// Carries out commands.
pub trait CommandService: Send + Sync {
    /// Carries out `request`, which is JSON, and returns its [`CommandOutcome`] as JSON. Called on a thread that may
    /// block, several at once; one that takes long ends soon after the server's stop flag is set.
    fn handle(&self, request: &[u8]) -> String;
}

/// The outcome of a command.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CommandOutcome<T> {
    /// Its reply.
    Ok(T),
    /// Why it was not carried out.
    Error(String),
}

/// An outcome without a reply, as JSON.
pub(crate) fn refusal(reason: &str) -> String {
    json!({ "error": reason }).to_string()
}

/// A command, or its outcome, as JSON; fields in the order of the alphabet.
pub(crate) fn to_json(message: &impl Serialize) -> Result<String, serde_json::Error> {
    Ok(serde_json::to_value(message)?.to_string())
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
    /// The command has no form as JSON.
    #[error("the command cannot be written as JSON: {0}")]
    Json(serde_json::Error),
    /// The agent's reply is none.
    #[error("{address} sent no valid reply: {source}; run the same copal on all hosts")]
    Reply {
        /// The agent.
        address: String,
        /// What its reply lacks.
        source: serde_json::Error,
    },
}

/// Sends a command to the agent at `address` and waits up to `timeout` for its reply.
/// # Errors
/// `Peer` names the address that cannot be reached or refuses; a command may have been carried out when its
/// reply did not come. `Reply`: it lacks a field, or is not JSON.
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
