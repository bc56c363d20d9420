//! The report of a job: the last status of each agent, and facts that are known without the agents.
//!
//! Not here: querying the agents (`coordinator`), settlement (`settlement`).

use crate::agent::{AgentStatus, VmStatus};
use crate::plan::missing_agent::MissingAgent;
use copal_backup::{peers::Writer, popular::SpoiledPack};
use serde::{Deserialize, Serialize};
use std::{fmt, time::Duration};

/// A host whose popular packs were found to hold wrong chunks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpoilingHost {
    /// The agent name that it gives itself; `None`: no agent of the job has that name.
    pub agent: Option<String>,
    /// The id of its role key, as shown by `copal key ls`; `None`: hosts do not sign in this repository.
    pub key: Option<String>,
    /// Number of its wrong packs.
    pub packs: u64,
}

impl fmt::Display for SpoilingHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.key, &self.agent) {
            (Some(key), Some(agent)) => write!(f, "the host with the key {key} (agent {agent})"),
            (Some(key), None) => write!(f, "the host with the key {key}, which is no agent of this job"),
            (None, Some(agent)) => write!(f, "the host of agent {agent}"),
            (None, None) => f.write_str("a host that is no agent of this job"),
        }
    }
}

/// The hosts of spoiled packs, each once.
pub(crate) fn spoiling_hosts(spoiled: &[SpoiledPack], names: &[&str]) -> Vec<SpoilingHost> {
    let mut hosts: Vec<SpoilingHost> = Vec::new();
    for pack in spoiled {
        let named = names.iter().find(|name| Writer::of(name) == pack.writer);
        let (agent, key) = (named.map(|name| (*name).to_owned()), pack.key.map(|key| key.to_string()));
        match hosts.iter_mut().find(|host| (&host.agent, &host.key) == (&agent, &key)) {
            Some(host) => host.packs += 1,
            None => hosts.push(SpoilingHost { agent, key, packs: 1 }),
        }
    }
    hosts
}

/// The result of a job.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct JobReport {
    /// Its id, as 32 hex digits.
    pub job: String,
    /// Number of its rounds.
    pub rounds: u32,
    /// The last status of each agent; for a lost agent, the one before its loss.
    pub agents: Vec<AgentReport>,
    /// Agents that should have taken part but did not.
    pub missing: Vec<MissingAgent>,
    /// Hosts whose popular packs were found to hold wrong chunks.
    pub spoilers: Vec<SpoilingHost>,
    /// From beginning to end.
    pub took: Duration,
}

/// The report of an agent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AgentReport {
    /// Its name.
    pub name: String,
    /// Its last status; `None`: none has arrived.
    pub status: Option<AgentStatus>,
    /// VMs of its plan without a status. They are named from the beginning: an agent that is killed may never
    /// report.
    pub waiting: Vec<String>,
    /// Reason of a loss, after which nothing more is known.
    pub lost: Option<String>,
}

impl AgentReport {
    /// The report of an agent without a status.
    pub(crate) fn waiting(name: &str, vms: &[String]) -> AgentReport {
        AgentReport { name: name.to_owned(), status: None, waiting: vms.to_vec(), lost: None }
    }

    /// Enters a status of the agent, with all its VMs.
    pub(crate) fn enter_status(&mut self, status: AgentStatus) {
        self.status = Some(status);
        self.waiting.clear();
    }

    pub(crate) fn is_over(&self) -> bool {
        self.lost.is_some() || self.status.as_ref().is_some_and(|status| status.done)
    }

    /// Adds the agent's work in the next stage.
    fn add(&mut self, next: AgentReport) {
        self.waiting.extend(next.waiting);
        self.lost = next.lost;
        match (&mut self.status, next.status) {
            (Some(status), Some(next)) => status.add(next),
            (status @ None, next) => *status = next,
            (Some(_), None) => {}
        }
    }

    /// The VMs with a status.
    #[must_use]
    pub fn vms(&self) -> &[VmStatus] {
        self.status.as_ref().map_or(&[], |status| &status.vms)
    }

    pub(crate) fn vms_mut(&mut self) -> &mut [VmStatus] {
        self.status.as_mut().map_or(&mut [], |status| &mut status.vms)
    }
}

impl JobReport {
    /// Adds the work of the same agents in the next stage.
    pub(crate) fn add_stage(&mut self, stage: JobReport) {
        self.rounds += stage.rounds;
        self.took += stage.took;
        self.spoilers = stage.spoilers;
        for next in stage.agents {
            match self.agents.iter_mut().find(|agent| agent.name == next.name) {
                Some(agent) => agent.add(next),
                None => self.agents.push(next),
            }
        }
    }

    /// Marks an agent as lost between stages; its VMs of later stages stay waiting.
    pub(crate) fn lose(&mut self, name: &str, vms: &[String], reason: &str) {
        let at = self.agents.iter().position(|agent| agent.name == name).unwrap_or_else(|| {
            self.agents.push(AgentReport::waiting(name, &[]));
            self.agents.len() - 1
        });
        let agent = &mut self.agents[at];
        agent.lost = Some(reason.to_owned());
        for vm in vms {
            let is_known = agent.waiting.contains(vm) || agent.vms().iter().any(|known| known.vm == *vm);
            if !is_known {
                agent.waiting.push(vm.clone());
            }
        }
    }

    /// Whether no further status will arrive.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.agents.iter().all(AgentReport::is_over)
    }

    /// Whether every VM of every agent has a new snapshot.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        let is_done = |vm: &VmStatus| vm.backup().is_some();
        let whole = |agent: &AgentReport| {
            agent.lost.is_none() && agent.waiting.is_empty() && agent.vms().iter().all(is_done)
        };
        self.missing.is_empty() && self.agents.iter().all(whole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Packs are counted by their writing host, under the name that the host gives itself.
    #[test]
    fn hosts_that_stored_popular_chunks_without_a_grant_are_named_with_their_packs() {
        let spoiled = |pack: u64, writer: &str| SpoiledPack {
            pack,
            writer: Writer::of(writer),
            key: None,
            position: pack,
        };
        let packs = [spoiled(1, "h2"), spoiled(2, "gone"), spoiled(3, "h2")];
        let hosts = spoiling_hosts(&packs, &["h1", "h2"]);
        let named: Vec<(String, u64)> = hosts.iter().map(|host| (host.to_string(), host.packs)).collect();
        assert_eq!(
            named,
            [("the host of agent h2".to_owned(), 2), ("a host that is no agent of this job".to_owned(), 1)]
        );
        assert!(spoiling_hosts(&[], &["h1"]).is_empty());
    }
}
