//! The connection to one member: made when something is sent, made anew after it ended, left alone for a
//! while when it cannot be made.

use super::{Shared, batch::Event};
use crate::{
    asker::batch::BatchId,
    channel::{ChannelReader, ChannelWriter, Closer},
    greeting::{self, GreetingError},
    wire::Message,
};
use parking_lot::Mutex;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, Ordering},
    },
    time::{Duration, Instant},
};
use tracing::{debug, warn};

/// No connection; connections are numbered from 1, and after 255 from 1 again.
const NONE: u8 = 0;
/// How long a member is left alone that had too many connections.
const CROWDED_PAUSE: Duration = Duration::from_secs(1);

#[derive(Default)]
struct State {
    writer: Option<ChannelWriter>,
    connection: u8,
    down_until: Option<Instant>,
}

/// The connection to one member.
pub(super) struct Link {
    member: usize,
    /// Held while one message is written.
    state: Mutex<State>,
    closer: Mutex<Option<Closer>>,
    /// Number of the connection whose reader still reads.
    alive: AtomicU8,
    /// Whether a batch was asked since the last end of a round.
    was_asked: AtomicBool,
}

impl Link {
    pub(super) fn new(member: usize) -> Link {
        Link {
            member,
            state: Mutex::default(),
            closer: Mutex::default(),
            alive: AtomicU8::new(NONE),
            was_asked: AtomicBool::new(false),
        }
    }

    /// Notes that a batch is asked.
    pub(super) fn note_asked(&self) {
        self.was_asked.store(true, Ordering::Release);
    }

    /// Whether a batch was asked since the last call.
    pub(super) fn take_asked(&self) -> bool {
        self.was_asked.swap(false, Ordering::AcqRel)
    }

    /// Sends a message, after connecting if need be; the number of the connection. `None`: it could not be
    /// sent over this connection, or the member could not be reached.
    pub(super) fn send(&self, shared: &Arc<Shared>, message: &[u8]) -> Option<u8> {
        let mut state = self.state.lock();
        if !self.is_alive(state.connection) {
            state.writer = None;
        }
        if state.writer.is_none() {
            self.connect(shared, &mut state)?;
        }
        match state.writer.as_mut()?.send(message) {
            Ok(()) => Some(state.connection),
            Err(error) => {
                debug!(%error, "a member takes nothing");
                state.writer = None;
                self.close();
                None
            }
        }
    }

    /// Whether the connection of this number has not ended, as far as is known.
    pub(super) fn is_alive(&self, connection: u8) -> bool {
        connection != NONE && self.alive.load(Ordering::Acquire) == connection
    }

    /// Ends the connection.
    pub(super) fn close(&self) {
        if let Some(closer) = self.closer.lock().take() {
            closer.close();
        }
    }

    /// Gives the descriptor back. The asker has ended.
    pub(super) fn release(&self) {
        self.close();
        self.state.lock().writer = None;
    }

    fn connect(&self, shared: &Arc<Shared>, state: &mut State) -> Option<()> {
        if shared.stop.load(Ordering::Acquire) || state.down_until.is_some_and(|until| Instant::now() < until)
        {
            return None;
        }
        match self.try_connect(shared, state) {
            Ok(()) => {
                state.down_until = None;
                Some(())
            }
            Err(error) => {
                warn!(member = shared.options.members[self.member].name, %error, "a member does not answer");
                let pause = match error.is_crowded() {
                    true => CROWDED_PAUSE.min(shared.options.retry_after),
                    false => shared.options.retry_after,
                };
                state.down_until = Some(Instant::now() + pause);
                None
            }
        }
    }

    fn try_connect(&self, shared: &Arc<Shared>, state: &mut State) -> Result<(), GreetingError> {
        let options = &shared.options;
        let member = &options.members[self.member];
        let address = &member.address;
        let (channel, theirs) = greeting::connect_patiently(
            address,
            &options.secret,
            &shared.hello,
            &options.timeouts,
            &shared.traffic,
            options.timeouts.connect,
        )?;
        if theirs.name != member.name {
            return Err(GreetingError::Other {
                address: address.clone(),
                found: theirs.name,
                wanted: member.name.clone(),
            });
        }
        let connection = state.connection.checked_add(1).unwrap_or(NONE + 1);
        *self.closer.lock() = Some(channel.closer.clone());
        self.alive.store(connection, Ordering::Release);
        let (index, reader) = (self.member, channel.reader);
        let spawned = shared.spawn("agent-answers", move |shared| {
            receive_all(shared, index, connection, reader);
        });
        if let Err(source) = spawned {
            self.alive.store(NONE, Ordering::Release);
            self.close();
            return Err(crate::channel::ChannelError::Io { address: address.clone(), source }.into());
        }
        state.connection = connection;
        state.writer = Some(channel.writer);
        Ok(())
    }
}

/// The reader of one connection: until it ends.
fn receive_all(shared: &Arc<Shared>, member: usize, connection: u8, mut reader: ChannelReader) {
    let violation = loop {
        let bytes = match reader.receive(None) {
            Ok(bytes) => bytes,
            Err(error) => break error.is_violation().then(|| error.to_string()),
        };
        match Message::decode(&bytes) {
            Ok(Message::Answers(answers)) => {
                let mut pending = shared.pending.lock();
                if pending.answer(member, &answers, &shared.options, &*shared.patience) {
                    shared.changed.notify_all();
                }
            }
            Ok(Message::Refused(refused)) => {
                debug!(member, reason = refused.reason, "a batch was refused");
                let batch = BatchId::of_number(refused.batch);
                shared.pending.lock().events.push(Event::Refused { batch, member });
                shared.changed.notify_all();
            }
            Ok(_) => break Some("it said what only askers say".to_owned()),
            Err(error) => break Some(error.to_string()),
        }
    };
    let link = &shared.links[member];
    let _ = link.alive.compare_exchange(connection, NONE, Ordering::AcqRel, Ordering::Acquire);
    let mut pending = shared.pending.lock();
    if let Some(what) = violation {
        warn!(member = shared.options.members[member].name, what, "ended a connection");
        pending.dropped.violations += 1;
    }
    pending.events.push(Event::Closed { member, connection });
    shared.changed.notify_all();
}
