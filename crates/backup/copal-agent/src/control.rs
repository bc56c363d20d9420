//! Commands to an agent: JSON there, JSON back.

use crate::{
    channel::{Channel, ChannelError, Secret, Timeouts},
    greeting::{self, GreetingError},
    wire::{Hello, JSON_BYTES, Message},
};
use serde_json::Value;
use std::{
    io,
    sync::Arc,
    time::{Duration, Instant},
};

/// Carries out what control messages say.
pub trait Control: Send + Sync {
    /// Carries out `request` and says what came of it, errors included. Called on a thread of its own,
    /// several at once; one that takes long ends soon after the server's stop flag is set.
    fn handle(&self, request: Value) -> Value;
}

/// Why a command has no reply.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The agent could not be talked to.
    #[error(transparent)]
    Greeting(#[from] GreetingError),
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
    /// The system has no randomness.
    #[error("no random numbers: {0}")]
    Random(#[source] io::Error),
}

impl From<ChannelError> for CallError {
    fn from(error: ChannelError) -> CallError {
        CallError::Greeting(error.into())
    }
}

/// Sends a command to the agent at `address` and waits up to `timeout` for its reply.
/// # Errors
/// `Greeting` names the address that cannot be reached or does not talk to us; a command may have been
/// carried out when its reply did not come.
pub fn call(address: &str, secret: &Secret, request: &Value, timeout: Duration) -> Result<Value, CallError> {
    let deadline = Instant::now() + timeout;
    let json = request.to_string().into_bytes();
    if json.len() > JSON_BYTES {
        return Err(CallError::TooLong { len: json.len() });
    }
    let mut instance = [0; 16];
    getrandom::fill(&mut instance).map_err(|error| CallError::Random(io::Error::other(error)))?;
    let hello = Hello { name: "control".to_owned(), instance };
    let defaults = Timeouts::default();
    let timeouts = Timeouts {
        connect: defaults.connect.min(timeout),
        handshake: defaults.handshake.min(timeout),
        ..defaults
    };
    let (channel, _) =
        greeting::connect_patiently(address, secret, &hello, &timeouts, &Arc::default(), timeout)?;
    let Channel { mut reader, mut writer, .. } = channel;
    writer.send(&Message::Control(json).encode())?;
    let bytes = reader.receive(Some(deadline.saturating_duration_since(Instant::now())))?;
    let reply = match Message::decode(&bytes) {
        Ok(Message::ControlReply(json)) => serde_json::from_slice(&json).ok(),
        _ => None,
    };
    reply.ok_or_else(|| CallError::Reply { address: address.to_owned() })
}
