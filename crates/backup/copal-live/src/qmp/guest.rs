//! The agent inside a guest (`qemu-ga`), as far as it freezes file systems.

use crate::qmp::{client::Client, error::QmpError, guardian::Guardian};
use serde_json::{Value, json};
use std::{ffi::OsString, io, path::Path, time::Duration};

/// How long the agent may take; one that is not running never answers.
const ANSWER: Duration = Duration::from_secs(10);

/// A connection to the agent of a guest.
#[derive(Debug)]
pub(crate) struct GuestAgent {
    client: Client,
}

impl GuestAgent {
    /// Connects, and sees that somebody in the guest answers.
    /// # Errors
    /// `Connect`; `TimedOut`: no agent runs in the guest.
    pub(crate) fn connect(path: &Path) -> Result<GuestAgent, QmpError> {
        let mut client = Client::attach(path)?;
        client.set_timeout(ANSWER);
        // Throws away half a line that an earlier client left behind.
        client.send_raw("guest-sync", b"\xff")?;
        let id = u64::from(std::process::id());
        client.execute("guest-sync", json!({ "id": id }))?;
        Ok(GuestAgent { client })
    }

    /// Starts a process that thaws all file systems if this one ends before it drops that. Where the
    /// connection has ended by then, the process becomes the program `otherwise`, with its arguments; empty:
    /// none.
    /// # Errors
    /// The system starts no process.
    pub(crate) fn guard(&self, otherwise: &[OsString]) -> io::Result<Guardian> {
        Guardian::start(&self.client, &[("guest-fsfreeze-thaw", json!({}))], otherwise)
    }

    /// Whether its file systems are frozen.
    /// # Errors
    /// Those of [`Client::execute`].
    pub(crate) fn is_frozen(&mut self) -> Result<bool, QmpError> {
        let status = self.client.execute("guest-fsfreeze-status", json!({}))?;
        Ok(status.as_str() == Some("frozen"))
    }

    /// Freezes all file systems; returns how many.
    /// # Errors
    /// Those of [`Client::execute`]. They may be frozen all the same: thaw.
    pub(crate) fn freeze(&mut self) -> Result<u64, QmpError> {
        let frozen = self.client.execute("guest-fsfreeze-freeze", json!({}))?;
        Ok(frozen.as_u64().unwrap_or(0))
    }

    /// Thaws all file systems; returns how many.
    /// # Errors
    /// Those of [`Client::execute`].
    pub(crate) fn thaw(&mut self) -> Result<u64, QmpError> {
        let thawed: Value = self.client.execute("guest-fsfreeze-thaw", json!({}))?;
        Ok(thawed.as_u64().unwrap_or(0))
    }
}
