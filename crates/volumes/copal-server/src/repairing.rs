//! Damage on a member's disk: the group is not whole here until what was lost has come back from another
//! member.
//!
//! Invariants
//! - Nothing is given up before another whole member is there to take it over from.
//! - What was found lacking before something was given up makes nobody whole.
//!
//! Not here: what is given up (`copal-data`), how it comes back (`syncing`).

use crate::{answers::blocking, data_server::DataServer, status::Status};
use copal_client::machine;
use copal_volume::group::GroupId;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// Between two looks at what scrubs and failed repairs have left.
const LOOK: Duration = Duration::from_secs(10);
/// Between the ends and beginnings of scrubs.
const SCRUB_PAUSE: Duration = Duration::from_secs(24 * 3600);
/// A scrub is done in so many seconds, or reads as much as this a second.
const SCRUB_SECONDS: u64 = 10 * 24 * 3600;
const SCRUB_BYTES_PER_S: u64 = 4 << 20;

impl DataServer {
    /// Gives up what is damaged, and lets it be taken over, until the task is dropped. Scrubs the disk
    /// meanwhile.
    pub async fn repair_damage(self: Arc<Self>) {
        let mut scrub = None;
        let mut scrubbed: Option<Instant> = None;
        loop {
            let _ = tokio::time::timeout(LOOK, self.repairs.wait()).await;
            if scrub.as_ref().is_some_and(copal_data::Scrubbing::is_over) {
                (scrub, scrubbed) = (None, Some(machine::now()));
            }
            if scrub.is_none() && scrubbed.is_none_or(|ended| machine::since(ended) > SCRUB_PAUSE) {
                let (used_bytes, _) = self.room.bytes();
                let rate = SCRUB_BYTES_PER_S.max(used_bytes / SCRUB_SECONDS);
                scrub = self.store.scrub(rate);
            }
            let mut damaged = self.repairs.take();
            damaged.extend(self.store.damaged_groups().unwrap_or_default());
            for group in damaged {
                match self.repair(group).await {
                    Ok(true) => self.sync_now.notify_one(),
                    // Looked at again with what is found anew.
                    Ok(false) => self.repairs.later(group),
                    Err(refused) => {
                        tracing::error!(%group, text = refused.text(), "damage could not be given up");
                        self.repairs.later(group);
                    }
                }
            }
        }
    }

    /// Gives up what is damaged of a group; false: nobody is there to take it over from, and nothing was
    /// changed.
    async fn repair(&self, group: GroupId) -> Result<bool, Status> {
        let me = self.disk();
        let view = self.map.view(group);
        let has_donor = view.is_some_and(|view| view.in_sync().any(|disk| disk != me));
        if !has_donor {
            return Ok(false);
        }
        let turn = self.entering.lock().await;
        self.repairs.begin(group);
        let store = self.store.clone();
        let noted = blocking(move || {
            store.note_damage(group)?;
            Ok((store.membership(group)?, store))
        });
        let noted = noted.await;
        drop(turn);
        let given_up = match noted {
            Ok((membership, store)) => {
                // From here on nothing holds by this member's word.
                self.tell(membership.into_iter().collect());
                blocking(move || Ok(store.give_up_damaged(group)?)).await
            }
            Err(refused) => Err(refused),
        };
        self.repairs.end(group);
        let given_up = given_up?;
        tracing::warn!(
            %group,
            files = given_up.files,
            ranges = given_up.ranges,
            "damage was given up; what was lost comes from another member"
        );
        Ok(true)
    }
}

#[cfg(test)]
mod tests;
