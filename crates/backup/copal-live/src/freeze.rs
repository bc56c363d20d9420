//! File systems of a guest that hold still, for a moment.
//!
//! Invariant: frozen file systems are thawed by a thread after [`HOLD`] at the latest. If the process is
//! killed in that time, a guardian thaws them, by another connection where its own has ended; if that fails
//! as well, the next backup or `guest-fsfreeze-thaw` does.

use crate::qmp::{Client, GuestAgent, QmpError};
use crate::{error::LiveError, own_command::own_command};
use serde_json::{Value, json};
use std::{
    path::{Path, PathBuf},
    sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel},
    thread::JoinHandle,
    time::Duration,
};

/// Longest time that a guest is kept from writing.
const HOLD: Duration = Duration::from_secs(2);
const TRIES: usize = 3;

/// A guest that holds still until this is dropped, or [`HOLD`] is over.
pub(crate) struct Frozen {
    done: SyncSender<()>,
    thread: Option<JoinHandle<(bool, Result<u64, QmpError>)>>,
}

impl Frozen {
    /// Freezes.
    /// # Errors
    /// `Freeze`: it holds not still, and is thawed as far as somebody answers.
    pub(crate) fn begin(socket: &Path) -> Result<Frozen, LiveError> {
        let failed = |error: QmpError| LiveError::Freeze {
            reason: format!(
                "{error}; start qemu-ga in the guest, name its socket with --agent-socket, or leave --freeze out"
            ),
        };
        let mut agent = GuestAgent::connect(socket).map_err(failed)?;
        if agent.is_frozen().map_err(failed)? {
            tracing::warn!("the guest was frozen already, by somebody who is gone: it is thawed");
            agent.thaw().map_err(failed)?;
        }
        // A process that is killed thaws nobody.
        let guardian = agent.guard(&own_command(THAW, socket, None));
        if let Err(error) = &guardian {
            tracing::warn!(%error, "no process watches over the guest while it is frozen");
        }
        let (done, told) = sync_channel::<()>(1);
        let (frozen, begun) = sync_channel(1);
        // The thread is there before anything is frozen.
        let thread = std::thread::Builder::new().name("thaw".into()).spawn(move || {
            let outcome = agent.freeze();
            let is_frozen = outcome.is_ok();
            let _ = frozen.send(outcome);
            let is_late = is_frozen && told.recv_timeout(HOLD) == Err(RecvTimeoutError::Timeout);
            // One that failed may have been carried out all the same.
            let thawed = thaw(&mut agent);
            drop(guardian);
            (is_late, thawed)
        });
        let thread = thread.map_err(|error| LiveError::Freeze { reason: format!("no thread: {error}") })?;
        let frozen = begun
            .recv()
            .unwrap_or_else(|_| Err(QmpError::Closed { command: "guest-fsfreeze-freeze".into() }));
        if let Err(error) = frozen {
            let _ = thread.join();
            return Err(failed(error));
        }
        Ok(Frozen { done, thread: Some(thread) })
    }

    /// Thaws; `false`: time was over before.
    /// # Errors
    /// `Freeze`: nobody knows whether it writes again.
    pub(crate) fn end(mut self) -> Result<bool, LiveError> {
        let (is_late, thawed) = self.join().unwrap_or((true, Ok(0)));
        thawed.map_err(|error| LiveError::Freeze {
            reason: format!("{error}; see with guest-fsfreeze-status whether it holds still, and end that with guest-fsfreeze-thaw"),
        })?;
        Ok(!is_late)
    }

    fn join(&mut self) -> Option<(bool, Result<u64, QmpError>)> {
        let thread = self.thread.take()?;
        // Too late is said by the thread.
        let _ = self.done.try_send(());
        thread.join().ok()
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        if let Some((_, Err(error))) = self.join() {
            tracing::error!(%error, "the guest may hold still: run guest-fsfreeze-thaw");
        }
    }
}

/// The word of `copal` for [`thaw_guest`], which is followed by the socket.
pub const THAW: &str = "thaw-guest";

/// Thaws the guest behind the socket of its agent, if it is frozen; whether it was. For the guardian of a
/// backup that was killed, and whose connection has ended.
/// # Errors
/// Those of the agent.
pub fn thaw_guest(socket: &Path) -> Result<bool, LiveError> {
    let mut agent = GuestAgent::connect(socket)?;
    let is_frozen = agent.is_frozen()?;
    if is_frozen {
        thaw(&mut agent)?;
    }
    Ok(is_frozen)
}

fn thaw(agent: &mut GuestAgent) -> Result<u64, QmpError> {
    let mut outcome = agent.thaw();
    for _ in 1..TRIES {
        if outcome.is_ok() {
            break;
        }
        outcome = agent.thaw();
    }
    outcome
}

/// The socket of the guest's agent: what was named, or what QEMU has that is called like one.
/// # Errors
/// `Freeze`: there is none.
pub(crate) fn agent_socket(client: &mut Client, named: Option<&PathBuf>) -> Result<PathBuf, LiveError> {
    if let Some(path) = named {
        return Ok(path.clone());
    }
    match client.execute("query-status", json!({})) {
        Err(error) if error.is_unknown_command() => {
            return Err(LiveError::Freeze {
                reason: "a storage daemon has no guest; name the socket of the agent with --agent-socket, or leave --freeze out".into(),
            });
        }
        answer => answer?,
    };
    let listed = client.execute("query-chardev", json!({}))?;
    find(&listed).ok_or_else(|| LiveError::Freeze {
        reason: "no character device of this QEMU is called like the socket of a guest agent (qga, agent); name it with --agent-socket, \
                 or leave --freeze out"
            .into(),
    })
}

fn find(listed: &Value) -> Option<PathBuf> {
    let mut devices = listed.as_array()?.iter();
    devices.find_map(|device| {
        let (label, filename) = (device["label"].as_str()?, device["filename"].as_str()?);
        let path = filename
            .strip_prefix("disconnected:")
            .unwrap_or(filename)
            .strip_prefix("unix:")?
            .split(',')
            .next()?;
        // A directory may be called like that for all sockets of a VM, that of its monitor included.
        let (_, name) = path.rsplit_once('/').unwrap_or(("", path));
        let is_agent = |word: &str| word.contains("qga") || word.contains("agent");
        (is_agent(label) || is_agent(name)).then(|| path.into())
    })
}

#[cfg(test)]
mod tests;
