//! The connection to one member: opened for the first message, and again after it has ended. After a failure,
//! a member is not tried for a while.

use super::{Shared, batch::ConnectionEvent};
use crate::fleet::messages::AnswerMessage;
use crate::fleet::network::PeerError;
use bytes::Bytes;
use copal_client::{CallError, Connection};
use copal_proto::{Method, messages};
use prost::Message;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::sync::{Mutex, oneshot};
use tracing::{debug, warn};

/// Number for no connection; connections are numbered from 1, and after 255 from 1 again.
const NONE: u8 = 0;
/// Longest time for a member to accept a message.
const TO_ACCEPT: Duration = Duration::from_secs(10);
/// Longest time of a call for answers; the member returns earlier, even without answers.
const TO_ANSWER: Duration = Duration::from_secs(40);

#[derive(Default)]
struct ConnectionState {
    connection: Option<Connection>,
    number: u8,
    down_until: Option<Instant>,
    /// Dropped to end the connection.
    _stays: Option<oneshot::Sender<()>>,
}

/// Outcome of sending a message.
pub(super) enum SendOutcome {
    /// The member accepted it over the connection of this number.
    Over(u8),
    /// The member refused it.
    Refused,
    /// The member did not receive it, or its reply was lost.
    Lost,
}

/// The connection to one member.
pub(super) struct MemberConnection {
    member: usize,
    /// Locked while a connection is opened.
    state: Mutex<ConnectionState>,
    /// Number of the connection over which answers are read.
    alive: AtomicU8,
    /// Number of the newest page of answers.
    received: AtomicU64,
    /// Whether a batch was asked since the last end of a round.
    was_asked: AtomicBool,
}

impl MemberConnection {
    pub(super) fn new(member: usize) -> MemberConnection {
        MemberConnection {
            member,
            state: Mutex::default(),
            alive: AtomicU8::new(NONE),
            received: AtomicU64::new(0),
            was_asked: AtomicBool::new(false),
        }
    }

    /// Records that a batch is asked.
    pub(super) fn note_asked(&self) {
        self.was_asked.store(true, Ordering::Release);
    }

    /// Whether a batch was asked since the last call.
    pub(super) fn take_asked(&self) -> bool {
        self.was_asked.swap(false, Ordering::AcqRel)
    }

    /// Sends a message; connects first if needed.
    pub(super) async fn send(
        &self,
        shared: &Arc<Shared>,
        method: Method,
        message: &impl Message,
    ) -> SendOutcome {
        let Some((connection, number)) = self.connected(shared).await else {
            return SendOutcome::Lost;
        };
        let message = Bytes::from(message.encode_to_vec());
        shared.traffic.note_sent(message.len());
        let accepted = connection.call_encoded(method, message, TO_ACCEPT).await;
        match accepted {
            Ok(messages::AgentAccepted {}) => {
                shared.traffic.note_received(0);
                SendOutcome::Over(number)
            }
            Err(CallError::Failed(failure)) => {
                let member = &shared.options.members[self.member].name;
                debug!(member, reason = failure.text, "a message was refused");
                SendOutcome::Refused
            }
            Err(error) => {
                debug!(%error, "a member accepts nothing");
                let mut state = self.state.lock().await;
                if state.number == number {
                    (state.connection, state._stays) = (None, None);
                }
                SendOutcome::Lost
            }
        }
    }

    /// Whether the connection of this number is still open, as far as is known.
    pub(super) fn is_alive(&self, number: u8) -> bool {
        number != NONE && self.alive.load(Ordering::Acquire) == number
    }

    /// Closes the connection at the end of the asker.
    pub(super) async fn release(&self) {
        let mut state = self.state.lock().await;
        (state.connection, state._stays) = (None, None);
    }

    /// The present connection, or a new one.
    async fn connected(&self, shared: &Arc<Shared>) -> Option<(Connection, u8)> {
        let mut state = self.state.lock().await;
        if let Some(connection) = &state.connection
            && self.is_alive(state.number)
            && connection.is_open()
        {
            return Some((connection.clone(), state.number));
        }
        (state.connection, state._stays) = (None, None);
        if shared.stop.load(Ordering::Acquire) || state.down_until.is_some_and(|until| Instant::now() < until)
        {
            return None;
        }
        match self.connect(shared).await {
            Ok(connection) => {
                state.down_until = None;
                state.number = state.number.checked_add(1).unwrap_or(NONE + 1);
                self.alive.store(state.number, Ordering::Release);
                let (stays, ended) = oneshot::channel();
                state._stays = Some(stays);
                state.connection = Some(connection.clone());
                let (shared_then, member, number) = (Arc::clone(shared), self.member, state.number);
                let taken = connection.clone();
                shared.spawn_task(async move {
                    let violation = tokio::select! {
                        biased;
                        _ = ended => None,
                        violation = take_answers(&shared_then, member, &taken) => violation,
                    };
                    note_end(&shared_then, member, number, violation);
                });
                Some((connection, state.number))
            }
            Err(error) => {
                warn!(member = shared.options.members[self.member].name, %error, "member does not answer");
                state.down_until = Some(Instant::now() + shared.options.retry_after);
                None
            }
        }
    }

    async fn connect(&self, shared: &Arc<Shared>) -> Result<Connection, PeerError> {
        let options = &shared.options;
        let member = &options.members[self.member];
        let (connection, found) = options.network.connect(&member.address, &options.name).await?;
        if found != member.name {
            let (address, wanted) = (member.address.clone(), member.name.clone());
            return Err(PeerError::OtherMember { address, found, wanted });
        }
        Ok(connection)
    }
}

/// Reads answers over a connection until it ends; returns a sentence if the member sent a malformed message.
async fn take_answers(shared: &Arc<Shared>, member: usize, connection: &Connection) -> Option<String> {
    let mut take = messages::AgentTake {
        instance: Bytes::copy_from_slice(&shared.instance),
        received: shared.links[member].received.load(Ordering::Acquire),
    };
    loop {
        shared.traffic.note_sent(take.encoded_len());
        let page: messages::AgentAnswers = match connection.call(Method::AgentTake, &take, TO_ANSWER).await {
            Ok(page) => page,
            Err(CallError::Malformed(reason)) => return Some(reason),
            Err(error) => {
                debug!(%error, "connection for answers ended");
                return None;
            }
        };
        shared.traffic.note_received(page.encoded_len());
        take.received = page.page;
        shared.links[member].received.store(page.page, Ordering::Release);
        for answers in page.answers {
            match AnswerMessage::of_message(answers) {
                Ok(answers) => {
                    let mut pending = shared.pending.lock();
                    if pending.answer(member, &answers, &shared.options, &*shared.patience) {
                        shared.changed.notify_all();
                    }
                }
                Err(error) => return Some(error.to_string()),
            }
        }
    }
}

/// Handles the end of a connection: its batches are asked again.
fn note_end(shared: &Shared, member: usize, number: u8, violation: Option<String>) {
    let link = &shared.links[member];
    let _ = link.alive.compare_exchange(number, NONE, Ordering::AcqRel, Ordering::Acquire);
    let mut pending = shared.pending.lock();
    if let Some(reason) = violation {
        warn!(member = shared.options.members[member].name, reason, "ended a connection");
        pending.dropped.violations += 1;
    }
    pending.events.push(ConnectionEvent::Closed { member, connection: number });
    shared.changed.notify_all();
}
