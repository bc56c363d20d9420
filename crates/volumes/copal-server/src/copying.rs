//! Bytes that go to other members and come from them: slowed down so that clients keep their share of the
//! disk, counted for the master.
//!
//! Paper: beanfs §5.3 (copies degrade what clients do)
//! Not here: what is copied (`syncing`, `showing`), how fast is right (`copal data --recovery-rate`).

use copal_client::machine;
use copal_data::{MemberStore, Membership};
use copal_proto::messages;
use copal_volume::{TokenBucket, group::GroupId};
use parking_lot::Mutex;
use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// Whoever asks for a file gives up later than this.
const LONGEST_ANSWER: Duration = Duration::from_secs(10);
/// Longest time whose bytes may go at once after a pause.
const BURST: Duration = Duration::from_secs(1);
/// Between two looks at how much groups have.
const LOOK: Duration = Duration::from_secs(2);
/// Bytes that may belong to no group that is known, and the time between two attempts to know them.
const UNKNOWN_BYTES: u64 = 32 << 20;
const FLUSH_PAUSE: Duration = Duration::from_secs(30);

/// See the module.
pub(crate) struct Copying {
    bytes_per_s: u64,
    bucket: Mutex<TokenBucket>,
    began: Instant,
    taken_bytes: AtomicU64,
    sizes: Mutex<Sizes>,
}

#[derive(Default)]
struct Sizes {
    looked: Option<Instant>,
    flushed: Option<Instant>,
    /// Of all groups, at the last look.
    all_bytes: u64,
    told: BTreeMap<GroupId, u64>,
}

impl Copying {
    /// At most so many bytes a second, out and in together.
    pub(crate) fn new(bytes_per_s: u64) -> Copying {
        Copying {
            bytes_per_s,
            bucket: Mutex::new(TokenBucket::new(bytes_per_s, BURST, Duration::ZERO)),
            began: machine::now(),
            taken_bytes: AtomicU64::new(0),
            sizes: Mutex::default(),
        }
    }

    /// What copies may take.
    pub(crate) fn bytes_per_s(&self) -> u64 {
        self.bytes_per_s
    }

    /// Bytes came from another member; returns when the next may be asked for.
    pub(crate) async fn took(&self, bytes: u64) {
        self.taken_bytes.fetch_add(bytes, Ordering::Relaxed);
        tokio::time::sleep(self.wait_for(bytes)).await;
    }

    /// Bytes were read for another member; returns when they may go.
    pub(crate) async fn gives(&self, bytes: u64) {
        tokio::time::sleep(self.wait_for(bytes).min(LONGEST_ANSWER)).await;
    }

    fn wait_for(&self, bytes: u64) -> Duration {
        let now = machine::since(self.began);
        let mut bucket = self.bucket.lock();
        bucket.take(bytes, now);
        bucket.wait(now)
    }

    /// Bytes that came from others since the process began.
    pub(crate) fn taken_bytes(&self) -> u64 {
        self.taken_bytes.load(Ordering::Relaxed)
    }

    /// Sizes of groups that changed much since they were told; a look every two seconds.
    pub(crate) fn sizes(
        &self,
        store: &MemberStore,
        groups: &[Membership],
        used_bytes: u64,
    ) -> Vec<messages::GroupSize> {
        let mut sizes = self.sizes.lock();
        if sizes.looked.is_some_and(|looked| machine::since(looked) < LOOK) {
            return Vec::new();
        }
        sizes.looked = Some(machine::now());
        let mut present: BTreeMap<GroupId, u64> =
            groups.iter().map(|membership| (membership.group, store.group_bytes(membership.group))).collect();
        sizes.all_bytes = present.values().fold(0, |sum, bytes| sum.saturating_add(*bytes));
        if sizes.all_bytes > used_bytes {
            // Groups that share a part of a table count it each: together they have no more than the disk.
            for bytes in present.values_mut() {
                *bytes = (u128::from(*bytes) * u128::from(used_bytes) / u128::from(sizes.all_bytes)) as u64;
            }
        }
        let is_news = |(group, bytes): &(&GroupId, &u64)| {
            let told = sizes.told.get(group).copied();
            told.is_none_or(|told| told.abs_diff(**bytes) > told / 16)
        };
        let news: Vec<messages::GroupSize> = present
            .iter()
            .filter(is_news)
            .map(|(group, bytes)| messages::GroupSize { group: group.0, bytes: *bytes })
            .collect();
        sizes.told.retain(|group, _| present.contains_key(group));
        for size in &news {
            sizes.told.insert(GroupId(size.group), size.bytes);
        }
        news
    }

    /// Whether so much of what the disk holds belongs to no group yet, its keys being in memory only, that
    /// they are to be written: what is moved off a full disk is chosen by sizes.
    pub(crate) fn wants_flush(&self, used_bytes: u64) -> bool {
        let mut sizes = self.sizes.lock();
        let is_due = sizes.flushed.is_none_or(|flushed| machine::since(flushed) > FLUSH_PAUSE);
        let wants = is_due && used_bytes.saturating_sub(sizes.all_bytes) > UNKNOWN_BYTES;
        if wants {
            sizes.flushed = Some(machine::now());
        }
        wants
    }

    /// All sizes are to be told again: nobody heard them, or another master leads.
    pub(crate) fn forget_told(&self) {
        let mut sizes = self.sizes.lock();
        sizes.looked = None;
        sizes.told.clear();
    }
}
