//! List of a fleet's agents and the VMs of their plans; an agent stays listed until it is retired.
//!
//! Files `agent.<name>.<number>`, each with one AgentListed or AgentRetired record. Of each name only the
//! newest number counts. A job waits for all listed agents, however long one has sent no heartbeat
//! (`heartbeats`).
//!
//! Format: docs/formats/backup-catalog.md v4
//! Invariant: a record of the list is created under the next number, exclusively, and counts only if no newer one is
//! listed behind it. A retirement needs the
//! signature of the delete role (BAK-19), so a backup key cannot hide that VMs of another host are not backed
//! up.
//! Not here: which agents can be reached (`copal-agent`).

use super::files::CatalogFiles;
use super::record::{MAX_LISTED, MAX_NAME_BYTES, Record};
use crate::request::error::{Error, Result};
use crate::request::open_session::HolderId;
use bytes::Bytes;
use copal_volume::{FileId, VolumeError};
use std::collections::BTreeMap;

const PREFIX: &str = "agent.";
/// Longest record of the list: names of VMs, each with its length.
const MAX_LISTED_BYTES: u64 = 2 * (MAX_LISTED as u64 + 4) * MAX_NAME_BYTES as u64;
/// Attempts to create the next record of a name.
const MOST_TRIES: u32 = 16;

/// A listed agent of a fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedAgent {
    /// Its name.
    pub name: String,
    /// The run of the agent that wrote the record; its heartbeats carry its address.
    pub holder: HolderId,
    /// Names of the VMs of its plan, at most 1,024.
    pub vms: Vec<String>,
    /// VMs of its plan that are not in `vms`.
    pub more_vms: u32,
}

/// Files of one name.
#[derive(Default)]
struct AgentFiles {
    newest: u64,
    files: Vec<(Bytes, FileId)>,
}

/// All agents that are listed and not retired, by name.
/// # Errors
/// Errors of the store.
pub(crate) fn listed_agents(files: &CatalogFiles) -> Result<Vec<ListedAgent>> {
    let mut found = Vec::new();
    for (name, stored) in stored_agents(files)? {
        found.extend(listed_agent(files, &name, stored.newest)?);
    }
    Ok(found)
}

/// Lists an agent, unless the newest record of its name is equal.
/// # Errors
/// Errors of the store.
pub(crate) fn list_agent(files: &CatalogFiles, agent: &ListedAgent) -> Result<()> {
    let record = Record::AgentListed {
        name: agent.name.clone(),
        holder: agent.holder,
        vms: agent.vms.iter().take(MAX_LISTED).cloned().collect(),
        more_vms: agent.more_vms + agent.vms.len().saturating_sub(MAX_LISTED) as u32,
    };
    append_agent(files, &agent.name, &record).map(drop)
}

/// Retires an agent; `false`: it is not listed.
/// # Errors
/// Errors of the store.
pub(crate) fn retire_agent(files: &CatalogFiles, name: &str) -> Result<bool> {
    append_agent(files, name, &Record::AgentRetired { name: name.to_owned() })
}

/// Appends to the records of a name, unless that would change nothing. Returns whether it did.
fn append_agent(files: &CatalogFiles, name: &str, record: &Record) -> Result<bool> {
    // A number above the newest one may be taken by an object that no list shows (a settled create).
    let mut tried = 0;
    for _ in 0..MOST_TRIES {
        let stored = stored_agents(files)?.remove(name).unwrap_or_default();
        let newest = match stored.newest {
            0 => None,
            number => agent_record(files, name, number)?,
        };
        let is_listed = matches!(newest, Some(Record::AgentListed { .. }));
        if newest.as_ref() == Some(record) || (!is_listed && matches!(record, Record::AgentRetired { .. })) {
            return Ok(false);
        }
        let number = stored.newest.max(tried) + 1;
        tried = number;
        let place = place(name, number);
        let bytes = record.encode(&place, files.keys());
        match files.put(place.as_bytes(), bytes.into()) {
            Ok(_) => {}
            Err(VolumeError::Unknown { fid }) if files.settled(fid)? => {}
            // Another process created the record first.
            Err(VolumeError::Exists { .. } | VolumeError::Unknown { .. }) => continue,
            Err(error) => return Err(error.into()),
        }
        // The number may have been free because its file was deleted as an old one.
        let newest = stored_agents(files)?.get(name).map_or(0, |now| now.newest);
        if newest > number {
            continue;
        }
        files.delete_unneeded(&stored.files)?;
        return Ok(true);
    }
    Err(Error::Invalid {
        reason: format!("other processes keep listing an agent named {name}; give each agent its own name"),
    })
}

/// Files of the list, by name of the agent.
fn stored_agents(files: &CatalogFiles) -> Result<BTreeMap<String, AgentFiles>> {
    let mut found: BTreeMap<String, AgentFiles> = BTreeMap::new();
    files.for_each(PREFIX, |file, info| {
        // A file with another kind of name is ignored.
        let parsed = std::str::from_utf8(file).ok().and_then(parse);
        if let Some((name, number)) = parsed {
            let stored = found.entry(name.to_owned()).or_default();
            stored.newest = stored.newest.max(number);
            stored.files.push((Bytes::copy_from_slice(file), info.fid));
        }
        Ok(())
    })?;
    Ok(found)
}

fn listed_agent(files: &CatalogFiles, name: &str, number: u64) -> Result<Option<ListedAgent>> {
    Ok(match agent_record(files, name, number)? {
        Some(Record::AgentListed { name: listed, holder, vms, more_vms }) if listed == name => {
            Some(ListedAgent { name: listed, holder, vms, more_vms })
        }
        Some(Record::AgentRetired { .. }) => None,
        // A damaged or unsigned record does not remove an agent from the list.
        _ => Some(ListedAgent {
            name: name.to_owned(),
            holder: HolderId([0; 16]),
            vms: Vec::new(),
            more_vms: 0,
        }),
    })
}

/// One record of the list; `None`: it was removed meanwhile, or cannot be read.
fn agent_record(files: &CatalogFiles, name: &str, number: u64) -> Result<Option<Record>> {
    let place = place(name, number);
    let bytes = match files.get(place.as_bytes(), MAX_LISTED_BYTES) {
        Err(VolumeError::NotFound | VolumeError::Corrupt { .. }) => return Ok(None),
        read => read?,
    };
    let decoded = Record::decode(&bytes, &place, files.keys());
    Ok(decoded
        .inspect_err(|detail| tracing::warn!(place, detail, "malformed record of an agent ignored"))
        .ok())
}

fn place(name: &str, number: u64) -> String {
    format!("{PREFIX}{name}.{number:016x}")
}

/// Name and number of a file; names may contain dots.
fn parse(file: &str) -> Option<(&str, u64)> {
    let (name, digits) = file.strip_prefix(PREFIX)?.rsplit_once('.')?;
    let number = u64::from_str_radix(digits, 16).ok()?;
    (!name.is_empty() && number > 0 && file == place(name, number)).then_some((name, number))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::*;
    use copal_volume::MemoryStore;

    fn agent(name: &str, run: u8, vms: &[&str]) -> ListedAgent {
        ListedAgent {
            name: name.to_owned(),
            holder: HolderId([run; 16]),
            vms: vms.iter().map(|vm| (*vm).to_owned()).collect(),
            more_vms: 0,
        }
    }

    #[test]
    fn the_newest_record_of_an_agent_counts_until_it_is_retired() {
        let repository = init_as(&MemoryStore::new(), FLEET);
        let files = repository.parts().catalog().files();
        assert!(listed_agents(files).unwrap().is_empty());
        for listed in [agent("h.1", 1, &["web"]), agent("h2", 2, &[]), agent("h.1", 3, &["web", "db"])] {
            list_agent(files, &listed).unwrap();
            list_agent(files, &listed).unwrap();
        }
        let now = [agent("h.1", 3, &["web", "db"]), agent("h2", 2, &[])];
        assert_eq!(listed_agents(files).unwrap(), now);
        assert!(retire_agent(files, "h.1").unwrap());
        assert!(!retire_agent(files, "h.1").unwrap(), "it is off the list");
        assert!(!retire_agent(files, "h3").unwrap(), "it never was on it");
        assert_eq!(listed_agents(files).unwrap(), now[1..]);
        list_agent(files, &agent("h.1", 4, &["web"])).unwrap();
        assert_eq!(listed_agents(files).unwrap()[0].holder, HolderId([4; 16]));
        assert_eq!(stored_agents(files).unwrap()["h.1"].files.len(), 1, "older records are removed");
    }

    #[test]
    fn vms_beyond_the_limit_of_a_record_are_only_counted() {
        let repository = init_as(&MemoryStore::new(), FLEET);
        let files = repository.parts().catalog().files();
        let names: Vec<String> = (0..MAX_LISTED + 7).map(|vm| format!("{vm:0>250}")).collect();
        let listed = ListedAgent { vms: names.clone(), ..agent("h1", 1, &[]) };
        list_agent(files, &listed).unwrap();
        let found = listed_agents(files).unwrap().remove(0);
        assert_eq!((&found.vms[..], found.more_vms), (&names[..MAX_LISTED], 7));
    }
}
