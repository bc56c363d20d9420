//! Which merge comes next. Pure, apart from the queue of requests.

use crate::{
    Error,
    format::entry::KeyRange,
    session::{
        counters::EngineCounters,
        limits::{TIER_RUNS, TIERS},
    },
    tree::{
        damaged_parts,
        manifest::format::TreeLevel,
        version::{SortedRun, TreeVersion},
    },
};
use copal_object::ObjectId;
use parking_lot::Mutex;
use std::{
    collections::{HashSet, VecDeque},
    sync::{Arc, atomic::Ordering::Relaxed},
};

/// Runs of a tier that one merge takes at most: each has a window of read-ahead, and the next merge is not
/// far.
const MOST_RUNS: usize = 12;
/// What a look-up reads at once, about.
const BLOCK_BYTES: u64 = 4096;

/// Where a merge writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MergeTarget {
    pub(crate) level: TreeLevel,
    pub(crate) run: u64,
}

/// Which merge goes first: the least.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum MergeUrgency {
    /// A tier is full; the upper ones first, since flushes end there.
    Tier(TreeLevel),
    /// Something could be dropped or moved together.
    Collection,
    /// Readers alone gain by it.
    ReadTriggered,
}

/// A merge under way.
#[derive(Debug)]
pub(crate) struct MergeJob {
    /// Runs it takes from: one contiguous stretch of the version, newest first.
    pub(crate) inputs: Vec<(TreeLevel, u64)>,
    /// What is left of its key range.
    pub(crate) range: KeyRange,
    pub(crate) target: MergeTarget,
    /// Value objects whose values are moved elsewhere.
    pub(crate) rewrite: HashSet<ObjectId>,
    /// Merge tables that nothing overlaps, too, if something in them can be dropped.
    pub(crate) thorough: bool,
    pub(crate) urgency: MergeUrgency,
}

/// Bytes of each tier that a merge could move on, from the top down: writers owe nothing for what is set
/// apart.
pub(crate) fn tier_bytes(version: &TreeVersion) -> [u64; TIERS as usize] {
    let apart = damaged_parts::ranges(version);
    std::array::from_fn(|level| {
        let runs = version.level(TreeLevel(level as u8));
        let slices = runs.flat_map(|run| &run.slices);
        let movable = slices.filter(|slice| !damaged_parts::covers(&apart, &slice.range));
        movable.map(|slice| slice.bytes()).sum()
    })
}

/// Whether a run holds more than what is set apart: that stays where it is.
fn is_mergeable(run: &SortedRun, apart: &[KeyRange]) -> bool {
    let mut slices = run.slices.iter();
    slices.any(|slice| !damaged_parts::covers(apart, &slice.range))
}

/// The oldest runs of a level, [`MOST_RUNS`] to merge among them at most, newest first.
fn oldest<'a>(version: &'a TreeVersion, level: TreeLevel, apart: &[KeyRange]) -> &'a [Arc<SortedRun>] {
    let runs = &version.runs;
    let end = runs.partition_point(|run| run.level <= level);
    let mut start = end;
    let mut to_merge = 0;
    while start > 0 && runs[start - 1].level == level && to_merge < MOST_RUNS {
        start -= 1;
        to_merge += usize::from(is_mergeable(&runs[start], apart));
    }
    &runs[start..end]
}

/// The merge that the shape of the tree asks for.
///
/// A tier goes down to the bottom once it holds one part in `bottom_share` of it. `new_run` gives the number
/// of a run that there is not yet.
/// `unfinished` is the run that a merge for readers is making: what it takes the place of is still counted,
/// and it is not.
pub(crate) fn pick(
    version: &TreeVersion,
    new_run: impl FnOnce() -> u64,
    bottom_share: u32,
    unfinished: Option<u64>,
) -> Option<MergeJob> {
    let apart = damaged_parts::ranges(version);
    let level = (0..TIERS).map(TreeLevel).find(|level| {
        let runs = version.level(*level);
        let counts = |run: &&Arc<SortedRun>| is_mergeable(run, &apart) && Some(run.id) != unfinished;
        runs.filter(counts).count() >= TIER_RUNS
    })?;
    let inputs = oldest(version, level, &apart);
    let total: u64 = inputs.iter().map(|run| run.bytes()).sum();
    let bottom = version.bottom().map_or(0, |run| run.bytes());
    let down = total.saturating_mul(u64::from(bottom_share)) >= bottom || level.0 + 1 >= TIERS;
    let names = |run: &Arc<SortedRun>| (run.level, run.id);
    if down {
        let deeper = version.runs.iter().filter(|run| run.level > level);
        return Some(MergeJob::new(
            inputs.iter().chain(deeper).map(names).collect(),
            KeyRange::all(),
            bottom_target(),
            MergeUrgency::Tier(level),
        ));
    }
    let next = TreeLevel(level.0 + 1);
    let start = inputs.iter().filter_map(|run| run.slices.first()).map(|slice| &slice.range.start).min();
    // A merge that a crash interrupted goes on into the run it had begun.
    let begun = version.level(next).next().filter(|run| {
        let end = run.slices.last().map(|slice| &slice.range.end);
        matches!((start, end), (Some(start), Some(end)) if end <= start)
    });
    let run = begun.map_or_else(new_run, |run| run.id);
    let inputs = inputs.iter().map(names).collect();
    let target = MergeTarget { level: next, run };
    Some(MergeJob::new(inputs, KeyRange::all(), target, MergeUrgency::Tier(level)))
}

/// Runs above the bottom that go down with no merge among themselves before.
const FEW_RUNS: usize = 2;

/// The merge that readers alone want: the newest runs above the bottom become one, or, once they are few,
/// join it where they would anyway; and the 4 KiB blocks that it moves. Ten runs are two soon after a tenth
/// of the bottom was walked for, where all of it would have to be.
///
/// From the newest on, a run takes part if it holds at most four times the bytes in front of it, as a full
/// tier's next does: what a merge writes again is a fixed multiple of what came in. No flush is under way:
/// its run would be older than that of `new_run`, and is newer.
pub(crate) fn read_triggered(
    version: &TreeVersion,
    new_run: impl FnOnce() -> u64,
    bottom_share: u32,
) -> Option<(MergeJob, u64)> {
    let mut bytes = 0;
    let mut joined: Vec<&Arc<SortedRun>> = Vec::new();
    for run in version.runs.iter().filter(|run| run.level != TreeLevel::BOTTOM) {
        if !joined.is_empty() && run.bytes() > TIER_RUNS as u64 * bytes {
            break;
        }
        bytes += run.bytes();
        joined.push(run);
    }
    // What is set apart stays where it is, and a run with it would never be gone.
    if !damaged_parts::ranges(version).is_empty() {
        return None;
    }
    let last = joined.last()?;
    let bottom = version.bottom().map_or(0, |run| run.bytes());
    let all = joined.len() + usize::from(version.bottom().is_some()) == version.runs.len();
    let few = joined.len() <= FEW_RUNS || bottom == 0;
    let down = all && few && bytes.saturating_mul(u64::from(bottom_share)) >= bottom;
    if joined.len() < 2 && !(down && bottom > 0) {
        return None;
    }
    let mut inputs: Vec<_> = joined.iter().map(|run| (run.level, run.id)).collect();
    let target = if down {
        inputs.extend(version.bottom().map(|run| (run.level, run.id)));
        bytes += bottom;
        bottom_target()
    } else {
        MergeTarget { level: last.level, run: new_run() }
    };
    let job = MergeJob::new(inputs, KeyRange::all(), target, MergeUrgency::ReadTriggered);
    Some((job, bytes.div_ceil(BLOCK_BYTES)))
}

/// The bottom is always the run of this name.
pub(crate) fn bottom_target() -> MergeTarget {
    MergeTarget { level: TreeLevel::BOTTOM, run: 0 }
}

/// A merge of everything in `range` to the bottom.
pub(crate) fn to_bottom(version: &TreeVersion, range: KeyRange, rewrite: HashSet<ObjectId>) -> MergeJob {
    let inputs = version.runs.iter().map(|run| (run.level, run.id)).collect();
    // Whole tables of the bottom: parts of tables would hold their space until the rest is merged.
    let mut whole = range.clone();
    for slice in version.bottom().iter().flat_map(|run| run.overlapping(&range)) {
        whole.start = whole.start.min(slice.range.start.clone());
        whole.end = whole.end.max(slice.range.end.clone());
    }
    MergeJob {
        rewrite,
        thorough: true,
        ..MergeJob::new(inputs, whole, bottom_target(), MergeUrgency::Collection)
    }
}

impl MergeJob {
    fn new(
        inputs: Vec<(TreeLevel, u64)>,
        range: KeyRange,
        target: MergeTarget,
        urgency: MergeUrgency,
    ) -> MergeJob {
        MergeJob { inputs, range, target, rewrite: HashSet::new(), thorough: false, urgency }
    }
}

/// A caller that waits for a range to be merged.
#[derive(Debug)]
pub(crate) struct MergeRequest {
    pub(crate) range: KeyRange,
    done: Mutex<Option<Result<(), Error>>>,
}

impl MergeRequest {
    pub(crate) fn finish(&self, result: Result<(), Error>) {
        *self.done.lock() = Some(result);
    }

    pub(crate) fn result(&self) -> Option<Result<(), Error>> {
        self.done.lock().clone()
    }
}

/// Requests in order of arrival.
#[derive(Debug, Default)]
pub(crate) struct MergeQueue {
    requests: Mutex<VecDeque<Arc<MergeRequest>>>,
}

impl MergeQueue {
    pub(crate) fn request(&self, range: KeyRange) -> Arc<MergeRequest> {
        let request = Arc::new(MergeRequest { range, done: Mutex::new(None) });
        self.requests.lock().push_back(request.clone());
        request
    }

    pub(crate) fn next(&self) -> Option<Arc<MergeRequest>> {
        self.requests.lock().pop_front()
    }
}

/// Notes what the tiers of a version hold.
pub(crate) fn count_tiers(counters: &EngineCounters, version: &TreeVersion) {
    for (counter, bytes) in counters.tier_bytes.iter().zip(tier_bytes(version)) {
        counter.store(bytes, Relaxed);
    }
}
