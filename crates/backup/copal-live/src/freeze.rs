//! Freeze of a guest's file systems through its agent, for at most a few seconds.
//!
//! Invariant: a thread thaws frozen file systems after [`MAX_FREEZE`] at the latest. If the process is killed
//! meanwhile, a guardian process thaws them, over a new connection if its own has ended. If that fails too,
//! the next backup or `guest-fsfreeze-thaw` thaws them.

use crate::qmp::{GuestAgent, QmpClient, QmpError};
use crate::{error::LiveError, own_command::own_command};
use serde_json::{Value, json};
use std::{
    path::{Path, PathBuf},
    sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel},
    thread::JoinHandle,
    time::Duration,
};

/// Longest time that the file systems stay frozen.
const MAX_FREEZE: Duration = Duration::from_secs(2);
const THAW_ATTEMPTS: usize = 3;

/// A frozen guest. It is thawed on drop, or after [`MAX_FREEZE`].
pub(crate) struct FrozenGuest {
    done: SyncSender<()>,
    thread: Option<JoinHandle<(bool, Result<u64, QmpError>)>>,
}

impl FrozenGuest {
    /// Freezes the guest.
    /// # Errors
    /// `Freeze`: the guest is not frozen; it was thawed if the agent answered.
    pub(crate) fn begin(socket: &Path) -> Result<FrozenGuest, LiveError> {
        let failed = |error: QmpError| LiveError::Freeze {
            reason: format!(
                "{error}; start qemu-ga in the guest, name its socket with --agent-socket, or leave --freeze out"
            ),
        };
        let mut agent = GuestAgent::connect(socket).map_err(failed)?;
        if agent.is_frozen().map_err(failed)? {
            tracing::warn!("guest found frozen, thawing it first");
            agent.thaw().map_err(failed)?;
        }
        // A killed process cannot thaw the guest itself.
        let guardian = agent.guard(&own_command(THAW, socket, None));
        if let Err(error) = &guardian {
            tracing::warn!(%error, "no guardian process for the frozen guest");
        }
        let (done, ended) = sync_channel::<()>(1);
        let (frozen, begun) = sync_channel(1);
        // The thread starts before the guest is frozen.
        let thread = std::thread::Builder::new().name("thaw".into()).spawn(move || {
            let outcome = agent.freeze();
            let is_frozen = outcome.is_ok();
            let _ = frozen.send(outcome);
            let is_late = is_frozen && ended.recv_timeout(MAX_FREEZE) == Err(RecvTimeoutError::Timeout);
            // A freeze that failed may have been carried out anyway.
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
        Ok(FrozenGuest { done, thread: Some(thread) })
    }

    /// Thaws the guest; returns false if it was thawed before, at the time limit.
    /// # Errors
    /// `Freeze`: the guest may still be frozen.
    pub(crate) fn end(mut self) -> Result<bool, LiveError> {
        let (is_late, thawed) = self.join().unwrap_or((true, Ok(0)));
        thawed.map_err(|error| LiveError::Freeze {
            reason: format!("{error}; check with guest-fsfreeze-status whether it is frozen, and thaw it with guest-fsfreeze-thaw"),
        })?;
        Ok(!is_late)
    }

    fn join(&mut self) -> Option<(bool, Result<u64, QmpError>)> {
        let thread = self.thread.take()?;
        // If the time limit has passed, the thread reports it.
        let _ = self.done.try_send(());
        thread.join().ok()
    }
}

impl Drop for FrozenGuest {
    fn drop(&mut self) {
        if let Some((_, Err(error))) = self.join() {
            tracing::error!(%error, "the guest may still be frozen: run guest-fsfreeze-thaw");
        }
    }
}

/// Subcommand of `copal` that calls [`thaw_guest`]; its argument is the socket.
pub const THAW: &str = "thaw-guest";

/// Thaws the guest of this agent socket, if it is frozen; returns whether it was. The guardian of a killed
/// backup calls it after its connection has ended.
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
    for _ in 1..THAW_ATTEMPTS {
        if outcome.is_ok() {
            break;
        }
        outcome = agent.thaw();
    }
    outcome
}

/// The socket of the guest agent: the named one, or a character device of QEMU with a matching name.
/// # Errors
/// `Freeze`: there is none.
pub(crate) fn agent_socket(client: &mut QmpClient, named: Option<&PathBuf>) -> Result<PathBuf, LiveError> {
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
        reason: "no character device of this QEMU has the name of a guest agent socket (qga, agent); name it with --agent-socket, \
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
        // Only the file name counts: a directory with such a name may hold the monitor's socket too.
        let (_, name) = path.rsplit_once('/').unwrap_or(("", path));
        let is_agent = |word: &str| word.contains("qga") || word.contains("agent");
        (is_agent(label) || is_agent(name)).then(|| path.into())
    })
}

#[cfg(test)]
mod tests;
