//! Whether the tables are as new as what data servers have heard of, and how a reign begins on tables that
//! are not.
//!
//! A copy that was put back, a disk image of yesterday, a database that lost its last commits with its
//! machine: a reign over any of these would give versions of the map, terms and numbers of volumes a second
//! time, and count members as whole that have missed what was acknowledged since. So each reign asks the data
//! servers first, and looks at what their heartbeats say afterwards; who finds that it is behind leads no
//! more, and writes that down, until somebody says that this is meant.
//!
//! Design: docs/design/cluster.md#rules VOL-70, VOL-71
//! Not here: asking them (`copal-server`), copying and putting back (`keeping`).

use crate::master::{Master, MasterError, Mastered, Reign};
use crate::tables::meta_store::{MemberKind, Members, MetaError, Missed, ServerState, setting};
use copal_volume::group::{Epoch, GroupId};
use std::{collections::BTreeMap, sync::atomic::Ordering};

/// What a data server has heard of, ever.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenBy {
    /// Its disk.
    pub disk: u32,
    /// The newest reign.
    pub term: u64,
    /// The newest version of the map.
    pub version: u64,
    /// Groups that it holds, and the newest epoch in which it was whole in each; 0: never.
    pub groups: Vec<(GroupId, Epoch)>,
}

impl Master {
    /// Whether nobody has heard of a newer reign or map than this one's.
    /// # Errors
    /// `Older`: somebody has. It is written down, and no reign begins before that is dealt with. `Meta`.
    pub fn check_age(&self, seen: &[SeenBy]) -> Mastered<()> {
        let mut reign = self.reign.lock();
        let version = reign.map.version;
        let newer = seen.iter().find(|seen| seen.term > self.term || seen.version > version);
        match newer {
            Some(seen) => Err(self.note_age(&mut reign, (seen.disk, seen.term, seen.version))),
            None => Ok(()),
        }
    }

    /// Whether a data server has told of a newer reign or map: this one is to end.
    pub fn is_older(&self) -> bool {
        self.is_older.load(Ordering::Acquire)
    }

    /// Writes down that a server has heard of something newer. Who is deposed knows less than its database:
    /// that is no news.
    pub(crate) fn note_age(&self, reign: &mut Reign, (disk, term, version): (u32, u64, u64)) -> MasterError {
        let name = reign.map.servers.get(&disk).map(|server| server.name.clone());
        let reason = format!(
            "{} has heard of reign {term} and version {version} of the map, and the tables end at reign {} and version {}",
            name.unwrap_or_default(),
            self.term,
            reign.map.version
        );
        match reign.meta.set(setting::OLDER, Some(&reason)) {
            Ok(()) => {
                self.is_older.store(true, Ordering::Release);
                MasterError::Older(reason)
            }
            Err(error) => error.into(),
        }
    }

    /// Begins anew above everything that was given, as the data servers tell it: versions and terms are
    /// raised; members that were not whole as lately as others of their group, and servers that do not
    /// answer, count as having missed something; a disk that holds a group later than all its members in the
    /// tables is a member again.
    /// # Errors
    /// `Denied`: the database is another's by now. `Meta`.
    pub fn rise(self, seen: &[SeenBy], now_ms: u64) -> Mastered<Master> {
        let options = self.options;
        let mut reign = self.reign.into_inner();
        let version = seen.iter().map(|seen| seen.version).max().unwrap_or_default();
        let term = seen.iter().map(|seen| seen.term).max().unwrap_or_default();
        let term = reign.meta.raise(version, term)?;
        let silent: Vec<u32> = reign
            .map
            .servers
            .values()
            .filter(|server| !server.state.is_lost())
            .map(|server| server.disk)
            .filter(|disk| seen.iter().all(|seen| seen.disk != *disk))
            .collect();
        let mut names = Vec::new();
        for disk in &silent {
            if let Some(mut server) = reign.map.servers.get(disk).cloned() {
                server.state = ServerState::Failed;
                server.failed_since_ms = now_ms;
                reign.meta.change_server(&server, &[])?;
                names.push(server.name);
            }
        }
        let (changes, missed) = reign.after(seen);
        if !changes.is_empty() {
            reign.meta.change_groups(&changes, &missed)?;
        }
        let mut text = format!(
            "the reign begins above versions that were lost: {} members take over what they may lack",
            missed.len()
        );
        if !names.is_empty() {
            text.push_str(&format!("; {} did not answer", names.join(", ")));
        }
        tracing::warn!("{text}");
        reign.meta.note(now_ms, "restored", &text)?;
        let cluster =
            reign.meta.cluster()?.ok_or_else(|| MetaError::Failed("it holds no cluster".to_owned()))?;
        Master::load(reign.meta, cluster, term, options)
    }
}

impl Reign {
    /// Members of groups by what the servers say, and who of them may lack something.
    fn after(&self, seen: &[SeenBy]) -> (Vec<(GroupId, Members)>, Vec<Missed>) {
        let mut held: BTreeMap<GroupId, BTreeMap<u32, Epoch>> = BTreeMap::new();
        for server in seen {
            for &(group, whole_in) in &server.groups {
                held.entry(group).or_default().insert(server.disk, whole_in);
            }
        }
        let (mut changes, mut missed) = (Vec::new(), Vec::new());
        for row in self.map.groups.values() {
            let none = BTreeMap::new();
            let held = held.get(&row.group).unwrap_or(&none);
            let of = |disk: u32| held.get(&disk).copied().unwrap_or_default();
            let best = held.values().copied().max().unwrap_or_default();
            // In a group in which nobody was ever whole nothing was ever held.
            if best == Epoch(0) {
                continue;
            }
            let mut members = row.members.clone();
            let newest = held.iter().filter(|(_, whole_in)| **whole_in == best);
            for (&disk, _) in newest {
                let is_member = members.iter().any(|(member, _)| *member == disk);
                if is_member || !self.map.servers.contains_key(&disk) {
                    continue;
                }
                // It came after the copy was made, in the place of one that has less.
                let least = members
                    .iter()
                    .enumerate()
                    .filter(|(_, (member, _))| of(*member) < best)
                    .min_by_key(|(_, (member, _))| of(*member))
                    .map(|(at, _)| at);
                if let Some(at) = least {
                    members[at] = (disk, MemberKind::Full);
                }
            }
            members.sort_unstable_by_key(|(disk, _)| *disk);
            let lacking = members.iter().filter(|(disk, _)| of(*disk) < best);
            let lacking: Vec<Missed> = lacking.map(|(disk, _)| (row.group, *disk)).collect();
            if !lacking.is_empty() || members != row.members {
                changes.push((row.group, members));
                missed.extend(lacking);
            }
        }
        (changes, missed)
    }
}

#[cfg(test)]
mod tests;
