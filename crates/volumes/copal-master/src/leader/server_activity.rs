//! What the master remembers of a server, and no database needs to know.

use crate::leader::medium::Medium;
use copal_volume::group::{Epoch, GroupId, Role};
use parking_lot::{Condvar, MutexGuard};
use std::{collections::BTreeMap, sync::OnceLock, time::Duration};

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Watch {
    /// When it was heard last, ms of the master's own clock; 0: not in this reign.
    pub(crate) heard_ms: u64,
    pub(crate) pid: u32,
    pub(crate) used_bytes: u64,
    /// Its disk takes no new files, or lately did not.
    pub(crate) is_full: bool,
    /// Its disk takes no operation: its host ran full inside a write.
    pub(crate) is_host_full: bool,
    /// Bytes that new files may still take there, about.
    pub(crate) room_bytes: Option<u64>,
    /// The newest map that it has entered, as it told in this reign.
    pub(crate) entered_version: u64,
    /// What its disk is, once it told.
    pub(crate) medium: Option<Medium>,
    /// States of its groups, as it tells them itself.
    pub(crate) roles: BTreeMap<GroupId, (Epoch, Role)>,
    /// Bytes of its groups on its disk, about.
    pub(crate) sizes: BTreeMap<GroupId, u64>,
    /// Bytes that it has taken over from others since its boot.
    pub(crate) copied_bytes: u64,
    /// Bytes a second that copies may take there.
    pub(crate) recovery_bytes_per_s: u64,
    /// How far its clock is ahead of the ruler, ms, and when that was told.
    pub(crate) clock: Option<(i64, u64)>,
    /// Since when its clock has been wrong.
    pub(crate) clock_wrong_since_ms: Option<u64>,
    /// How far from the reference it was when that was told last, ms.
    pub(crate) told_off_ms: i64,
    /// It takes no part in writes for its clock.
    pub(crate) is_shut_out: bool,
    /// When its groups last got a newer view since it keeps seals from the future.
    pub(crate) reopened_ms: u64,
    /// The newest start of this server showed another disk, an older copy of its directory, or no store at
    /// all.
    pub(crate) has_lost_data: bool,
}

/// Who is told when the map changes: threads that wait, and one who is called.
#[derive(Default)]
pub(crate) struct Changed {
    waiting: Condvar,
    hook: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Changed {
    pub(crate) fn set_hook(&self, hook: Box<dyn Fn() + Send + Sync>) {
        // Set once, by the process that serves the master.
        let _ = self.hook.set(hook);
    }

    pub(crate) fn notify_all(&self) {
        self.waiting.notify_all();
        if let Some(hook) = self.hook.get() {
            hook();
        }
    }

    pub(crate) fn wait_while_for<T>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        condition: impl FnMut(&mut T) -> bool,
        limit: Duration,
    ) {
        self.waiting.wait_while_for(guard, condition, limit);
    }
}
