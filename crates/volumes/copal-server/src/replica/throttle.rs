//! Throttle of copies between members: it keeps the clients' share of the disk, and counts bytes for the
//! master.
//!
//! Paper: beanfs §5.3 (copies slow down clients)
//! Not here: the copies (`group_resync`, `donor`), the choice of the rate (`copal data --recovery-rate`).

use copal_client::machine;
use copal_data::{GroupMembership, MemberStore};
use copal_proto::messages;
use copal_volume::{TokenBucket, group::GroupId};
use parking_lot::Mutex;
use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// Longest delay of a reply: callers give up later than this.
const LONGEST_ANSWER: Duration = Duration::from_secs(10);
/// Longest pause that is made up for by a burst.
const BURST: Duration = Duration::from_secs(1);
/// Interval of size measurements.
const MEASURE_INTERVAL: Duration = Duration::from_secs(2);
/// Bytes that may belong to no group, and the pause between two flushes that assign them.
const UNKNOWN_BYTES: u64 = 32 << 20;
const FLUSH_PAUSE: Duration = Duration::from_secs(30);

/// Throttle and counters of copies. See the module.
pub(crate) struct CopyThrottle {
    bytes_per_s: u64,
    bucket: Mutex<TokenBucket>,
    began: Instant,
    received_bytes: AtomicU64,
    sizes: Mutex<GroupSizes>,
}

#[derive(Default)]
struct GroupSizes {
    measured: Option<Instant>,
    flushed: Option<Instant>,
    /// Sum over all groups at the last measurement.
    all_bytes: u64,
    reported: BTreeMap<GroupId, u64>,
}

impl CopyThrottle {
    /// Limits copies to `bytes_per_s`, sent and received together.
    pub(crate) fn new(bytes_per_s: u64) -> CopyThrottle {
        CopyThrottle {
            bytes_per_s,
            bucket: Mutex::new(TokenBucket::new(bytes_per_s, BURST, Duration::ZERO)),
            began: machine::now(),
            received_bytes: AtomicU64::new(0),
            sizes: Mutex::default(),
        }
    }

    /// The limit, bytes a second.
    pub(crate) fn bytes_per_s(&self) -> u64 {
        self.bytes_per_s
    }

    /// Counts bytes received from another member; returns when more may be requested.
    pub(crate) async fn received(&self, bytes: u64) {
        self.received_bytes.fetch_add(bytes, Ordering::Relaxed);
        tokio::time::sleep(self.wait_for(bytes)).await;
    }

    /// Returns when bytes read for another member may be sent.
    pub(crate) async fn sending(&self, bytes: u64) {
        tokio::time::sleep(self.wait_for(bytes).min(LONGEST_ANSWER)).await;
    }

    fn wait_for(&self, bytes: u64) -> Duration {
        let now = machine::since(self.began);
        let mut bucket = self.bucket.lock();
        bucket.take(bytes, now);
        bucket.wait(now)
    }

    /// Bytes received from other members since the process began.
    pub(crate) fn received_bytes(&self) -> u64 {
        self.received_bytes.load(Ordering::Relaxed)
    }

    /// Group sizes that changed much since the last report; measured every two seconds.
    pub(crate) fn changed_sizes(
        &self,
        store: &MemberStore,
        groups: &[GroupMembership],
        used_bytes: u64,
    ) -> Vec<messages::GroupSize> {
        let mut sizes = self.sizes.lock();
        if sizes.measured.is_some_and(|measured| machine::since(measured) < MEASURE_INTERVAL) {
            return Vec::new();
        }
        sizes.measured = Some(machine::now());
        let mut present: BTreeMap<GroupId, u64> =
            groups.iter().map(|membership| (membership.group, store.group_bytes(membership.group))).collect();
        sizes.all_bytes = present.values().fold(0, |sum, bytes| sum.saturating_add(*bytes));
        if sizes.all_bytes > used_bytes {
            // Groups that share a part of a table each count it. Sizes are scaled down so that their sum does
            // not exceed the disk's use.
            for bytes in present.values_mut() {
                *bytes = (u128::from(*bytes) * u128::from(used_bytes) / u128::from(sizes.all_bytes)) as u64;
            }
        }
        let is_news = |(group, bytes): &(&GroupId, &u64)| {
            let reported = sizes.reported.get(group).copied();
            reported.is_none_or(|reported| reported.abs_diff(**bytes) > reported / 16)
        };
        let news: Vec<messages::GroupSize> = present
            .iter()
            .filter(is_news)
            .map(|(group, bytes)| messages::GroupSize { group: group.0, bytes: *bytes })
            .collect();
        sizes.reported.retain(|group, _| present.contains_key(group));
        for size in &news {
            sizes.reported.insert(GroupId(size.group), size.bytes);
        }
        news
    }

    /// Whether many used bytes belong to no group yet, since their keys are still in memtables. A flush
    /// assigns them. Moves off a full disk are chosen by group size.
    pub(crate) fn wants_flush(&self, used_bytes: u64) -> bool {
        let mut sizes = self.sizes.lock();
        let is_due = sizes.flushed.is_none_or(|flushed| machine::since(flushed) > FLUSH_PAUSE);
        let wants = is_due && used_bytes.saturating_sub(sizes.all_bytes) > UNKNOWN_BYTES;
        if wants {
            sizes.flushed = Some(machine::now());
        }
        wants
    }

    /// Reports all sizes again: the last report was lost, or another master leads.
    pub(crate) fn forget_reported(&self) {
        let mut sizes = self.sizes.lock();
        sizes.measured = None;
        sizes.reported.clear();
    }
}
