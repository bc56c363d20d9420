//! The calls of an agent: each is checked and passed to the detector, the outbox or the commands.

use super::Shared;
use crate::fleet::control::refusal;
use crate::fleet::messages::{AskMessage, JSON_BYTES, MarkerMessage, MessageError, VERSION, instance};
use crate::fleet::network::check_hello;
use bytes::Bytes;
use copal_proto::{
    Method,
    messages::{self, failure::Code},
};
use copal_server::{CallHandler, PeerIdentity, Status, blocking, encoded, read};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

/// Longest wait of a call for answers; it then returns without.
const TO_ANSWER: Duration = Duration::from_secs(20);

impl CallHandler for Shared {
    async fn call(
        self: Arc<Self>,
        _peer: PeerIdentity,
        method: Method,
        message: Bytes,
    ) -> Result<Bytes, Status> {
        match method {
            Method::AgentHello => {
                let hello: messages::AgentHello = read(message)?;
                check_hello(&hello).map_err(|reason| Status::new(Code::Invalid, reason))?;
                let name = self.options.name.clone();
                Ok(encoded(&messages::AgentHello { version: VERSION, name }))
            }
            Method::AgentAsk => {
                let (host, ask) = AskMessage::of_message(&read(message)?).map_err(invalid)?;
                self.outbox.register(host);
                let shared = Arc::clone(&self);
                blocking(move || {
                    shared.detect.take(&ask, host).map_err(|reason| Status::new(Code::Unavailable, reason))
                })
                .await?;
                self.accepted()
            }
            Method::AgentMark => {
                let (host, marker) = MarkerMessage::of_message(&read(message)?).map_err(invalid)?;
                self.detect.mark(&marker, host);
                self.accepted()
            }
            Method::AgentTake => {
                let take: messages::AgentTake = read(message)?;
                let host = instance(&take.instance).map_err(invalid)?;
                let taken = self.outbox.take(host, take.received, TO_ANSWER).await;
                let Some((page, answers)) = taken else {
                    return Err(Status::new(
                        Code::Unavailable,
                        "answers were dropped: they were not taken in time",
                    ));
                };
                let answers =
                    answers.into_iter().map(crate::fleet::messages::AnswerMessage::into_message).collect();
                Ok(encoded(&messages::AgentAnswers { page, answers }))
            }
            Method::AgentCommand => {
                let command: messages::AgentCommand = read(message)?;
                blocking(move || Ok(encoded(&messages::AgentReply { json: self.carry_out(&command.json) })))
                    .await
            }
            _ => Err(Status::new(Code::Invalid, "an agent of a fleet does not know this call")),
        }
    }
}

fn invalid(error: MessageError) -> Status {
    Status::new(Code::Invalid, error.to_string())
}

impl Shared {
    /// Signals the compare thread, since a partition may be due now.
    fn accepted(&self) -> Result<Bytes, Status> {
        self.due.wake();
        Ok(encoded(&messages::AgentAccepted {}))
    }

    /// Executes a command; returns its outcome as JSON.
    fn carry_out(&self, json: &[u8]) -> Bytes {
        let slot = CommandSlot::take(&self.commands);
        let under_way = slot.before;
        let reply = match json.len() {
            0..=JSON_BYTES if under_way < self.options.commands => self.control.handle(json),
            0..=JSON_BYTES => refusal(&format!("{under_way} commands are in progress: try again later")),
            bytes => refusal(&format!("the command has {bytes} bytes, at most {JSON_BYTES} are taken")),
        };
        drop(slot);
        match reply.len() {
            0..=JSON_BYTES => reply.into(),
            bytes => refusal(&format!("the reply has {bytes} bytes, at most {JSON_BYTES} are sent")).into(),
        }
    }
}

/// Counts a command until it has ended, also after a panic.
struct CommandSlot<'a> {
    commands: &'a AtomicUsize,
    /// Number of commands in progress before it.
    before: usize,
}

impl CommandSlot<'_> {
    fn take(commands: &AtomicUsize) -> CommandSlot<'_> {
        CommandSlot { commands, before: commands.fetch_add(1, Ordering::AcqRel) }
    }
}

impl Drop for CommandSlot<'_> {
    fn drop(&mut self) {
        self.commands.fetch_sub(1, Ordering::AcqRel);
    }
}
