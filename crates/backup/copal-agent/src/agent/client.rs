//! Queries of a backup that runs outside of any agent: it asks the reachable agents, and no agent waits for
//! its questions.

use super::{liveness::alive, patience::HostPatience, peers::tag_of, requests};
use crate::asker::members::{ResponsibleMembers, partition_bits};
use crate::asker::{Asker, AskerOptions, FleetMember};
use crate::fleet::network::FleetNetwork;
use copal_backup::{
    Repository,
    peers::{Answer, Ids, Peers, Turn},
};
use parking_lot::Mutex;
use std::{
    io,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};
use uuid::Uuid;

/// Interval between repeated queries about carried chunks.
const PAUSE: Duration = Duration::from_millis(300);

/// Asks the agents of a fleet for one backup.
pub struct FleetClient {
    asker: Asker,
    timeout: Duration,
    again_since: Mutex<Option<Instant>>,
    members: Vec<FleetMember>,
}

impl FleetClient {
    /// Finds the agents that answer; `None`: none answers, so the backup works without others.
    /// # Errors
    /// Errors of the store, and failures to start threads.
    pub fn connect(
        repository: &Repository,
        name: &str,
        spool: &Path,
        timeout: Duration,
    ) -> copal_backup::Result<Option<FleetClient>> {
        let network = FleetNetwork::of(repository)?;
        let mut members = alive(repository)?;
        members.retain(|member| match requests::info(member, &network) {
            Ok(_) => true,
            Err(reason) => {
                tracing::warn!(reason, "not asked");
                false
            }
        });
        let bits = partition_bits(members.len());
        let Some(owners) = ResponsibleMembers::of(&members, bits) else {
            return Ok(None);
        };
        let failed = |error: io::Error| copal_backup::Error::Invalid {
            reason: format!("the agents cannot be asked: {error}"),
        };
        let mut job = [0; 16];
        getrandom::fill(&mut job).map_err(|error| failed(io::Error::other(error)))?;
        let mut options = AskerOptions::new(job, name, members.clone(), network, spool.to_owned());
        options.participants = 1;
        let patience = Arc::new(HostPatience::new(timeout, 1));
        let asker = Asker::new(options, Arc::new(owners), patience).map_err(failed)?;
        Ok(Some(FleetClient { asker, timeout, again_since: Mutex::default(), members }))
    }

    /// The agents that are asked.
    #[must_use]
    pub fn members(&self) -> &[FleetMember] {
        &self.members
    }

    /// Bytes sent and received.
    #[must_use]
    pub fn message_bytes(&self) -> u64 {
        let traffic = self.asker.traffic();
        traffic.sent_bytes() + traffic.received_bytes()
    }
}

impl Peers for FleetClient {
    fn begin(&self, _vm: Uuid, _turn: Turn) -> Result<(), String> {
        Ok(())
    }

    fn end(&self, _vm: Uuid, _turn: Turn) {}

    fn send(&self, vm: Uuid, ids: Ids<'_>) -> io::Result<u64> {
        *self.again_since.lock() = None;
        let sent = self.asker.send(tag_of(vm), ids)?;
        self.asker.end_round();
        Ok(sent)
    }

    fn receive(&self, sent: u64) -> Vec<Answer> {
        self.asker.receive(sent)
    }

    fn ask_again(&self, vm: Uuid, ids: Ids<'_>) -> io::Result<Option<Vec<Answer>>> {
        let since = *self.again_since.lock().get_or_insert_with(Instant::now);
        if since.elapsed() >= self.timeout {
            return Ok(None);
        }
        std::thread::park_timeout(PAUSE);
        let sent = self.asker.send(tag_of(vm), ids)?;
        self.asker.end_round();
        Ok(Some(self.asker.receive(sent)))
    }

    fn stored(&self) {}
}
