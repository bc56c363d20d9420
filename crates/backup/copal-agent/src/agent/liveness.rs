//! Live agents: those with fresh heartbeats, each at the address of its newest run.

use crate::asker::FleetMember;
use copal_backup::{HolderInfo, ListedAgent, Repository};
use std::{collections::BTreeMap, time::Duration};

/// An agent without a heartbeat for this long is not asked.
pub(crate) const SILENT_AFTER: Duration = Duration::from_secs(180);

/// Agents with a fresh heartbeat, each once.
/// # Errors
/// Errors of the store.
pub fn alive(repository: &Repository) -> copal_backup::Result<Vec<FleetMember>> {
    Ok(found(repository)?.0)
}

/// Agents with a fresh heartbeat, and all listed agents.
/// # Errors
/// Errors of the store.
pub(crate) fn found(repository: &Repository) -> copal_backup::Result<(Vec<FleetMember>, Vec<ListedAgent>)> {
    let holders = repository.holders()?;
    // Read after the heartbeats: an agent writes a heartbeat before it is listed.
    let listed = repository.listed_agents()?;
    Ok((newest_runs(holders, &listed), listed))
}

/// For each name the listed run if it has a heartbeat, else the run with the newest heartbeat. A killed run
/// leaves heartbeats that may look newer if a clock went back.
fn newest_runs(mut holders: Vec<HolderInfo>, listed: &[ListedAgent]) -> Vec<FleetMember> {
    holders.retain(|holder| {
        !holder.address.is_empty() && u128::from(holder.beat_age_ms) < SILENT_AFTER.as_millis()
    });
    let is_listed = |holder: &HolderInfo| {
        let mut named = listed.iter().filter(|agent| agent.name == holder.name);
        named.any(|agent| agent.holder == holder.holder)
    };
    let mut newest: BTreeMap<String, HolderInfo> = BTreeMap::new();
    for holder in holders {
        let rank = |holder: &HolderInfo| (!is_listed(holder), holder.beat_age_ms);
        match newest.get(&holder.name) {
            Some(other) if rank(other) <= rank(&holder) => {}
            _ => drop(newest.insert(holder.name.clone(), holder)),
        }
    }
    let members =
        newest.into_values().map(|holder| FleetMember { name: holder.name, address: holder.address });
    members.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use copal_backup::HolderId;

    /// Symptom: jobs went to the address of a dead run. Cause: of two runs of a name, the one with the
    /// younger heartbeat was taken, and a clock that had gone back made the dead one younger. Fix: the listed
    /// run counts.
    #[test]
    fn the_run_that_is_listed_is_the_one_that_is_asked() {
        let holder = |name: &str, run: u8, beat_age_ms: u64| HolderInfo {
            name: name.to_owned(),
            address: format!("10.0.0.{run}:7500"),
            holder: HolderId([run; 16]),
            newest_beat_number: 1,
            beat_age_ms,
            progress: 0,
        };
        let listed =
            ListedAgent { name: "h1".to_owned(), holder: HolderId([2; 16]), vms: Vec::new(), more_vms: 0 };
        let holders = vec![
            holder("h1", 1, 10),
            holder("h1", 2, 5_000),
            holder("h2", 3, 400),
            holder("h2", 4, 300),
            holder("h3", 5, 180_000),
        ];
        let addresses = |listed: &[ListedAgent]| -> Vec<String> {
            let members = newest_runs(holders.clone(), listed).into_iter();
            members.map(|member| member.address).collect()
        };
        assert_eq!(addresses(&[listed]), ["10.0.0.2:7500", "10.0.0.4:7500"]);
        assert_eq!(addresses(&[]), ["10.0.0.1:7500", "10.0.0.4:7500"]);
    }
}
