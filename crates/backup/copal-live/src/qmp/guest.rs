//! Client of the agent in a guest (`qemu-ga`): freezing and thawing file systems.

use crate::qmp::{client::QmpClient, error::QmpError, guardian::GuardianProcess};
use serde_json::{Value, json};
use std::{ffi::OsString, io, path::Path, time::Duration};

/// Timeout of a reply; an agent that is not running never replies.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection to the agent of a guest.
#[derive(Debug)]
pub(crate) struct GuestAgent {
    client: QmpClient,
}

impl GuestAgent {
    /// Connects and checks that an agent in the guest answers.
    /// # Errors
    /// `Connect`; `TimedOut`: no agent runs in the guest.
    pub(crate) fn connect(path: &Path) -> Result<GuestAgent, QmpError> {
        let mut client = QmpClient::attach(path)?;
        client.set_timeout(REPLY_TIMEOUT);
        // Discards a partial line of an earlier client.
        client.send_raw("guest-sync", b"\xff")?;
        let id = u64::from(std::process::id());
        client.execute("guest-sync", json!({ "id": id }))?;
        Ok(GuestAgent { client })
    }

    /// Starts a guardian process that thaws all file systems if this process is killed. If the connection has
    /// ended by then, it executes the command line `fallback`, unless that is empty.
    /// # Errors
    /// The system cannot start a process.
    /// The system starts no process.
    pub(crate) fn guard(&self, fallback: &[OsString]) -> io::Result<GuardianProcess> {
        GuardianProcess::start(&self.client, &[("guest-fsfreeze-thaw", json!({}))], fallback)
    }

    /// Whether the file systems are frozen.
    /// # Errors
    /// Those of [`QmpClient::execute`].
    pub(crate) fn is_frozen(&mut self) -> Result<bool, QmpError> {
        let status = self.client.execute("guest-fsfreeze-status", json!({}))?;
        Ok(status.as_str() == Some("frozen"))
    }

    /// Freezes all file systems; returns their number.
    /// # Errors
    /// Those of [`QmpClient::execute`]. The file systems may be frozen anyway, so thaw them.
    pub(crate) fn freeze(&mut self) -> Result<u64, QmpError> {
        let frozen = self.client.execute("guest-fsfreeze-freeze", json!({}))?;
        Ok(frozen.as_u64().unwrap_or(0))
    }

    /// Thaws all file systems; returns their number.
    /// # Errors
    /// Those of [`QmpClient::execute`].
    pub(crate) fn thaw(&mut self) -> Result<u64, QmpError> {
        let thawed: Value = self.client.execute("guest-fsfreeze-thaw", json!({}))?;
        Ok(thawed.as_u64().unwrap_or(0))
    }
}
