//! QMP client: commands are sent one after another, a thread receives replies and events.
//!
//! The thread reads all the time, so a server with many events never blocks on a client that is busy with a
//! backup.

use crate::qmp::{
    error::QmpError,
    line::LineReader,
    message::{self, CommandError, QemuVersion, QmpEvent, QmpMessage},
};
use serde_json::{Value, json};
use std::{
    collections::VecDeque,
    io::{self, ErrorKind, Write},
    net::Shutdown,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel},
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// Timeout of the greeting.
const GREETING_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of a command. Most are instant; a command that changes the graph waits for running requests of the
/// disk.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum number of queued messages; beyond it events are dropped.
const MAX_QUEUED: usize = 256;
/// Maximum number of events that are kept while a reply is awaited.
const MAX_EVENTS: usize = 256;

/// Messages from the receiving thread.
type Incoming = Result<QmpMessage, String>;

/// A connection to QEMU or a storage daemon; closed on drop.
#[derive(Debug)]
pub(crate) struct QmpClient {
    path: PathBuf,
    stream: UnixStream,
    incoming: Receiver<Incoming>,
    events: VecDeque<QmpEvent>,
    next_id: u64,
    timeout: Duration,
    deadline: Option<ProcedureDeadline>,
    version: QemuVersion,
    reader: Option<JoinHandle<()>>,
}

/// Time limit of a procedure of several commands.
#[derive(Clone, Copy, Debug)]
struct ProcedureDeadline {
    until: Instant,
    all: Duration,
}

impl QmpClient {
    /// Connects and negotiates capabilities. Blocks for at most five seconds.
    /// # Errors
    /// `Connect`; `NoGreeting`: another program is connected. `Protocol`: not a QMP server.
    pub(crate) fn connect(path: &Path) -> Result<QmpClient, QmpError> {
        let mut client = QmpClient::attach(path)?;
        let until = Instant::now() + GREETING_TIMEOUT;
        match client.receive(until, "the greeting") {
            Ok(QmpMessage::Greeting(version)) => client.version = version,
            Ok(_) => {
                return Err(QmpError::Protocol { reason: "its first line is not a greeting".into() });
            }
            Err(QmpError::TimedOut { .. }) => {
                return Err(QmpError::NoGreeting {
                    path: path.to_owned(),
                    seconds: GREETING_TIMEOUT.as_secs(),
                });
            }
            Err(error) => return Err(error),
        }
        client.execute("qmp_capabilities", json!({}))?;
        Ok(client)
    }

    /// Opens a connection to a server that sends no greeting.
    pub(crate) fn attach(path: &Path) -> Result<QmpClient, QmpError> {
        let failed = |source| QmpError::Connect { path: path.to_owned(), source };
        let stream = UnixStream::connect(path).map_err(failed)?;
        stream.set_write_timeout(Some(COMMAND_TIMEOUT)).map_err(failed)?;
        let input = stream.try_clone().map_err(failed)?;
        let (sender, incoming) = sync_channel(MAX_QUEUED);
        let reader = std::thread::Builder::new()
            .name("qmp".into())
            .spawn(move || read_all(input, &sender))
            .map_err(failed)?;
        Ok(QmpClient {
            path: path.to_owned(),
            stream,
            incoming,
            events: VecDeque::new(),
            next_id: 1,
            timeout: COMMAND_TIMEOUT,
            deadline: None,
            version: QemuVersion::default(),
            reader: Some(reader),
        })
    }

    /// Sets the timeout of a command, 60 s by default.
    pub(crate) fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Sets the time limit of all further commands together; `None` removes it.
    pub(crate) fn set_deadline(&mut self, all: Option<Duration>) {
        self.deadline = all.map(|all| ProcedureDeadline { until: Instant::now() + all, all });
    }

    /// The version in the greeting.
    #[must_use]
    pub(crate) fn version(&self) -> QemuVersion {
        self.version
    }

    /// The path of the socket.
    #[must_use]
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Process id of the listener; `None` if the system does not report it.
    #[must_use]
    pub(crate) fn peer(&self) -> Option<i32> {
        let peer = rustix::net::sockopt::socket_peercred(&self.stream).ok()?;
        Some(peer.pid.as_raw_nonzero().get())
    }

    /// Closes the connection, since a server serves one at a time, and opens a new one with the same limits.
    /// # Errors
    /// As [`QmpClient::connect`]; the client has no connection then.
    pub(crate) fn reconnect(&mut self, path: &Path) -> Result<(), QmpError> {
        self.close();
        let fresh = QmpClient::connect(path)?;
        let limits = (self.timeout, self.deadline);
        *self = fresh;
        (self.timeout, self.deadline) = limits;
        Ok(())
    }

    /// Duplicates the connection, for another process.
    pub(crate) fn duplicate(&self) -> io::Result<UnixStream> {
        self.stream.try_clone()
    }

    /// Sends a command and waits for its reply.
    /// # Errors
    /// `Refused`: it was not carried out. `TimedOut`, `Late`: the outcome is unknown. `Closed`, `Protocol`:
    /// the connection is unusable.
    pub(crate) fn execute(&mut self, command: &str, arguments: Value) -> Result<Value, QmpError> {
        let id = self.next_id;
        self.next_id += 1;
        self.send(command, &json!({ "execute": command, "arguments": arguments, "id": id }))?;
        let until = self.limit();
        loop {
            match self.receive(until, command)? {
                // An error about a malformed line has no id.
                QmpMessage::Answer { id: answered, outcome }
                    if answered.is_none_or(|answered| answered == id) =>
                {
                    return outcome.map_err(|CommandError { class, description }| QmpError::Refused {
                        command: command.to_owned(),
                        class,
                        description,
                    });
                }
                QmpMessage::Event(event) => self.keep(event),
                QmpMessage::Answer { .. } | QmpMessage::Greeting(_) => {}
            }
        }
    }

    /// As [`QmpClient::execute`], but without the deadline of the procedure: for commands that undo others.
    /// # Errors
    /// As [`QmpClient::execute`].
    pub(crate) fn execute_late(&mut self, command: &str, arguments: Value) -> Result<Value, QmpError> {
        let deadline = self.deadline.take();
        let outcome = self.execute(command, arguments);
        self.deadline = deadline;
        outcome
    }

    /// Waits for an event, including those received since the last call. Other events are dropped.
    /// # Errors
    /// As [`QmpClient::execute`], without `Refused`.
    pub(crate) fn wait_for(
        &mut self,
        wanted: impl Fn(&QmpEvent) -> bool,
        what: &str,
    ) -> Result<QmpEvent, QmpError> {
        let until = self.limit();
        loop {
            while let Some(event) = self.events.pop_front() {
                if wanted(&event) {
                    return Ok(event);
                }
            }
            if let QmpMessage::Event(event) = self.receive(until, what)? {
                self.keep(event);
            }
        }
    }

    /// Sends raw bytes before a line.
    pub(crate) fn send_raw(&mut self, command: &str, bytes: &[u8]) -> Result<(), QmpError> {
        self.stream.write_all(bytes).map_err(|error| match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                QmpError::TimedOut { command: command.to_owned(), seconds: COMMAND_TIMEOUT.as_secs() }
            }
            _ => closed(command),
        })
    }

    fn send(&mut self, command: &str, message: &Value) -> Result<(), QmpError> {
        self.send_raw(command, format!("{message}\n").as_bytes())
    }

    fn keep(&mut self, event: QmpEvent) {
        if self.events.len() == MAX_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    /// Deadline of the next reply.
    fn limit(&self) -> Instant {
        let own = Instant::now() + self.timeout;
        self.deadline.map_or(own, |deadline| own.min(deadline.until))
    }

    fn receive(&mut self, until: Instant, command: &str) -> Result<QmpMessage, QmpError> {
        let rest = until.saturating_duration_since(Instant::now());
        match self.incoming.recv_timeout(rest) {
            Ok(Ok(message)) => Ok(message),
            Ok(Err(reason)) => Err(QmpError::Protocol { reason }),
            Err(RecvTimeoutError::Timeout) => Err(match self.deadline {
                Some(deadline) if deadline.until <= until => {
                    QmpError::Late { command: command.to_owned(), seconds: deadline.all.as_secs() }
                }
                _ => QmpError::TimedOut { command: command.to_owned(), seconds: self.timeout.as_secs() },
            }),
            Err(RecvTimeoutError::Disconnected) => Err(closed(command)),
        }
    }
}

fn closed(command: &str) -> QmpError {
    QmpError::Closed { command: command.to_owned() }
}

fn read_all(input: UnixStream, sender: &SyncSender<Incoming>) {
    let mut lines = LineReader::new(input);
    loop {
        let message = match lines.next_line() {
            Ok(Some(line)) => message::parse(&line),
            Err(error) if error.kind() == ErrorKind::InvalidData => Err(error.to_string()),
            Ok(None) | Err(_) => return,
        };
        let is_event = matches!(message, Ok(QmpMessage::Event(_)));
        let is_end = message.is_err();
        let sent = match is_event {
            // An event may be dropped: its receiver also queries the state.
            true => match sender.try_send(message) {
                Err(TrySendError::Disconnected(_)) => Err(()),
                Ok(()) | Err(TrySendError::Full(_)) => Ok(()),
            },
            false => sender.send(message).map_err(|_| ()),
        };
        if sent.is_err() || is_end {
            return;
        }
    }
}

impl QmpClient {
    fn close(&mut self) {
        // The peer may have disconnected already.
        let _ = self.stream.shutdown(Shutdown::Both);
        // Replacing the receiver unblocks a thread that waits for space in the queue.
        let (_, disconnected) = sync_channel(1);
        self.incoming = disconnected;
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

impl Drop for QmpClient {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests;
