//! The agents of a job: those that take part with their plans, and the missing ones.
//!
//! An agent that is listed with a plan is expected in each job until it is removed (`copal agent rm`). An
//! agent that is unreachable, or whose plan cannot be read, is missing: the others continue without it, and
//! the job is not complete.
//!
//! Not here: the list (`copal_backup`), running the job (`coordinator`).

use crate::agent::PlanInfo;
use crate::agent::liveness::found;
use crate::agent::requests::{PlanRequest, call, info};
use crate::asker::FleetMember;
use crate::fleet::network::FleetNetwork;
use crate::plan::missing_agent::MissingAgent;
use copal_backup::{ListedAgent, Repository};
use std::collections::{BTreeMap, HashSet};

/// Agents of a job.
pub(crate) struct JobRoster {
    /// Those that take part.
    pub(crate) members: Vec<FleetMember>,
    /// The plan of each member.
    pub(crate) plans: Vec<PlanInfo>,
    pub(crate) missing: Vec<MissingAgent>,
}

impl JobRoster {
    /// Queries all agents with `plan`. Blocks for some seconds for each agent that does not answer.
    /// # Errors
    /// Errors of the store.
    pub(crate) fn call(
        repository: &Repository,
        network: &FleetNetwork,
        plan: &PlanRequest,
    ) -> copal_backup::Result<JobRoster> {
        let (alive, listed) = found(repository)?;
        let mut roster = JobRoster { members: Vec::new(), plans: Vec::new(), missing: Vec::new() };
        let mut reasons = BTreeMap::new();
        let is_listed = |name: &str| listed.iter().any(|agent| agent.name == name);
        for member in alive {
            if let Err(reason) = info(&member, network) {
                // It was removed, or has no plan: no VM needs it.
                if is_listed(&member.name) {
                    tracing::warn!(reason, "takes no part");
                    reasons.insert(member.name, reason);
                }
                continue;
            }
            match call(&member, network, plan.clone()) {
                Ok(plan) => {
                    roster.members.push(member);
                    roster.plans.push(plan);
                }
                Err(reason) => {
                    tracing::warn!(reason, "takes no part");
                    reasons.insert(member.name, reason);
                }
            }
        }
        roster.miss(listed, reasons);
        Ok(roster)
    }

    /// Enters as missing all agents that are listed, or gave a reason, and take no part.
    fn miss(&mut self, listed: Vec<ListedAgent>, mut reasons: BTreeMap<String, String>) {
        let here: HashSet<&str> = self.members.iter().map(|member| member.name.as_str()).collect();
        // A VM that moved to another host is not missing.
        let planned: HashSet<&str> =
            self.plans.iter().flat_map(|plan| &plan.vms).map(String::as_str).collect();
        let mut missing = Vec::new();
        for agent in listed {
            if here.contains(agent.name.as_str()) {
                continue;
            }
            let reason = reasons.remove(&agent.name);
            let mut vms = agent.vms;
            vms.retain(|vm| !planned.contains(vm.as_str()));
            missing.push(MissingAgent {
                reason: reason.unwrap_or_else(|| {
                    format!(
                        "it is not running, or sends no heartbeats; start it, or retire it with `copal agent rm {}`",
                        agent.name
                    )
                }),
                name: agent.name,
                vms,
                more_vms: agent.more_vms,
            });
        }
        missing.extend(reasons.into_iter().map(|(name, reason)| MissingAgent {
            name,
            vms: Vec::new(),
            more_vms: 0,
            reason,
        }));
        self.missing = missing;
    }
}

/// Queries the plan of an agent.
/// # Errors
/// A sentence: the agent cannot be reached, or its plan cannot be read.
pub(crate) fn plan_of(
    member: &FleetMember,
    network: &FleetNetwork,
    plan: &PlanRequest,
) -> Result<PlanInfo, String> {
    info(member, network)?;
    call(member, network, plan.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use copal_backup::HolderId;

    #[test]
    fn a_listed_but_absent_agent_is_missing_with_the_vms_that_only_it_has() {
        let mut roster = JobRoster {
            members: vec![FleetMember { name: "h1".to_owned(), address: String::new() }],
            plans: vec![PlanInfo { vms: vec!["web".to_owned(), "moved".to_owned()], bytes: 0, rounds: 1 }],
            missing: Vec::new(),
        };
        let listed = |name: &str, vms: &[&str], more_vms| ListedAgent {
            name: name.to_owned(),
            holder: HolderId([1; 16]),
            vms: vms.iter().map(|vm| (*vm).to_owned()).collect(),
            more_vms,
        };
        let all =
            vec![listed("h1", &["web"], 0), listed("h2", &["moved", "db", "mail"], 2), listed("h3", &[], 0)];
        let reasons = [("h3", "it sleeps"), ("h4", "no plan")];
        let reasons = reasons.map(|(name, reason)| (name.to_owned(), reason.to_owned()));
        roster.miss(all, reasons.into());
        let sentences: Vec<String> = roster.missing.iter().map(ToString::to_string).collect();
        assert!(
            sentences[0].starts_with("agent h2 with db, mail and 2 more VMs: it is not running"),
            "{sentences:?}"
        );
        assert_eq!(sentences[1..], ["agent h3: it sleeps", "agent h4: no plan"]);
    }
}
