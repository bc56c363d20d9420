//! What an administrator wants of copies: which goes first.
//!
//! Not here: giving a server up (`replacing`).

use crate::master::{Master, Mastered};
use copal_volume::{VolumeError, group::GroupId};
use serde_json::{Value, json};

impl Master {
    /// Lets the copy of a group go before those that lost theirs in the same minute and are as urgent; each time by one more.
    /// # Errors
    /// `NotFound`: no copy of the group waits or runs. `Meta`.
    pub fn boost(&self, group: GroupId, now_ms: u64) -> Mastered<Value> {
        let mut reign = self.reign.lock();
        if !reign.recovery.needs.contains_key(&group) {
            return Err(VolumeError::NotFound.into());
        }
        let boost = {
            let boost = reign.recovery.boosts.entry(group).or_default();
            *boost = boost.saturating_add(1);
            *boost
        };
        reign.note(
            now_ms,
            "boost",
            &format!("group {group} goes before others of its age"),
        )?;
        reign.replace(self.options.permanent_after_ms, now_ms)?;
        self.changed.notify_all();
        let ahead = reign
            .recovery
            .queue
            .waiting()
            .take_while(|job| job.group != group)
            .count();
        let is_waiting = reign.recovery.queue.waiting().any(|job| job.group == group);
        Ok(json!({ "group": group.0, "boost": boost, "ahead": is_waiting.then_some(ahead) }))
    }
}
