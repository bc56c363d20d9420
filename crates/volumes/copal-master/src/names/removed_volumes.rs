//! Volumes that are gone, until everybody knows.
//!
//! A member that was told writes it down for ever, and refuses whatever comes late for the volume; who
//! becomes a member afterwards is told by the member that it copies from, or, where its group has a volume
//! that is remembered here, by the map. So the master remembers a volume until all members of its group have
//! entered a map with its removal, in which they were members already. A member that is away is waited for,
//! unless it was given up: then it is not let back in.
//!
//! Design: docs/design/cluster.md#master
//! Not here: removing a volume (`names`), what a member does with what it is told (`copal-data`).

use crate::master::{Mastered, Reign};
use copal_volume::VolumeId;

/// Between two looks.
const LOOK_MS: u64 = 10_000;
/// Volumes that are forgotten at one look: each is a transaction.
const MOST: usize = 100;

impl Reign {
    /// Forgets volumes of which nobody has to be told any more.
    pub(crate) fn forget_gone_volumes(&mut self, now_ms: u64) -> Mastered<()> {
        if self.gone.is_empty() || now_ms < self.forgot_ms + LOOK_MS {
            return Ok(());
        }
        self.forgot_ms = now_ms;
        let told = self.gone.iter().filter(|(vid, version)| self.is_told(*vid, *version));
        let told: Vec<VolumeId> = told.map(|(vid, _)| *vid).take(MOST).collect();
        for vid in told {
            self.meta.forget_gone(vid)?;
            self.gone.retain(|(other, _)| *other != vid);
        }
        Ok(())
    }

    fn is_told(&self, vid: VolumeId, version: u64) -> bool {
        let Some(row) = self.map.groups.get(&vid.birth_group()) else {
            return false;
        };
        row.members.iter().all(|(disk, _)| {
            let server = self.map.servers.get(disk);
            let is_given_up = server.is_some_and(|server| server.state.is_lost());
            let entered = self.watches.get(disk).map_or(0, |watch| watch.entered_version);
            is_given_up || entered >= version.max(row.version)
        })
    }
}
