//! Latest reports of each data server, kept in memory only.

use crate::leader::disk_medium::DiskMedium;
use copal_volume::group::{Epoch, GroupId, Role};
use std::collections::BTreeMap;

/// Latest reports of one data server in this term.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServerActivity {
    /// Time of the last heartbeat, ms of the master's own clock; 0: none in this term.
    pub(crate) last_heartbeat_ms: u64,
    pub(crate) pid: u32,
    pub(crate) used_bytes: u64,
    /// Its disk takes no new files, or lately did not.
    pub(crate) is_full: bool,
    /// Its disk takes no operation, because its host ran full inside a write.
    pub(crate) is_host_full: bool,
    /// Bytes that new files may still take there, estimated.
    pub(crate) room_bytes: Option<u64>,
    /// Newest version of the map that it has entered, as it reported in this term.
    pub(crate) entered_version: u64,
    /// Medium of its disk, once reported.
    pub(crate) medium: Option<DiskMedium>,
    /// Its own roles in its groups, each with the epoch of the report.
    pub(crate) roles: BTreeMap<GroupId, (Epoch, Role)>,
    /// Bytes of its groups on its disk, estimated.
    pub(crate) sizes: BTreeMap<GroupId, u64>,
    /// Bytes that it has copied from other servers since its boot.
    pub(crate) copied_bytes: u64,
    /// Bytes a second that copies may take there.
    pub(crate) recovery_bytes_per_s: u64,
    /// How far its clock is ahead of the ruler, ms, and the time of that report.
    pub(crate) clock: Option<(i64, u64)>,
    /// Time since when its clock has been wrong.
    pub(crate) clock_wrong_since_ms: Option<u64>,
    /// Distance of its clock from the reference in the last event about it, ms.
    pub(crate) reported_off_ms: i64,
    /// It takes no part in writes because of its clock.
    pub(crate) is_shut_out: bool,
    /// Last time when its groups got a newer view because it holds seals from the future.
    pub(crate) reopened_ms: u64,
    /// The newest start of this server had another disk, an older copy of its directory, or no store at all.
    pub(crate) has_lost_data: bool,
}
