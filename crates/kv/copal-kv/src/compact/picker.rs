//! Chooses the next merge. Pure, apart from the queue of requests.

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

/// Most runs of a tier that one merge takes. Each run needs a read-ahead window, and the next merge soon
/// takes the rest.
const MOST_RUNS: usize = 12;
/// Approximate bytes of one read of a look-up.
const BLOCK_BYTES: u64 = 4096;

/// Output run of a merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MergeTarget {
    pub(crate) level: TreeLevel,
    pub(crate) run: u64,
}

/// Urgency of a merge; the least value goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum MergeUrgency {
    /// A full tier; upper tiers first, since flushes add runs there.
    Tier(TreeLevel),
    /// Entries can be dropped or values moved together.
    Collection,
    /// Only readers benefit.
    ReadTriggered,
}

/// A merge in progress.
#[derive(Debug)]
pub(crate) struct MergeJob {
    /// Input runs: one contiguous stretch of the version, newest first.
    pub(crate) inputs: Vec<(TreeLevel, u64)>,
    /// Parts of the key range that are not merged yet, in order. Each is one thread's.
    pub(crate) ranges: Vec<KeyRange>,
    pub(crate) target: MergeTarget,
    /// Value objects whose live values are moved to new objects.
    pub(crate) rewrite: HashSet<ObjectId>,
    /// Also merge a table that nothing overlaps, if something in it can be dropped.
    pub(crate) thorough: bool,
    pub(crate) urgency: MergeUrgency,
}

/// Bytes of each tier that a merge could move on, from the top. Quarantined ranges do not count, so writers
/// are not delayed for them.
pub(crate) fn tier_bytes(version: &TreeVersion) -> [u64; TIERS as usize] {
    let apart = damaged_parts::ranges(version);
    std::array::from_fn(|level| {
        let runs = version.level(TreeLevel(level as u8));
        let slices = runs.flat_map(|run| &run.slices);
        let movable = slices.filter(|slice| !damaged_parts::covers(&apart, &slice.range));
        movable.map(|slice| slice.bytes()).sum()
    })
}

/// Whether a run holds more than quarantined ranges, which stay in place.
fn is_mergeable(run: &SortedRun, apart: &[KeyRange]) -> bool {
    let mut slices = run.slices.iter();
    slices.any(|slice| !damaged_parts::covers(apart, &slice.range))
}

/// The oldest runs of a level, newest first, at most [`MOST_RUNS`] of them mergeable.
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

/// The merge that the shape of the tree requires.
///
/// A tier is merged into the bottom once its bytes times `bottom_share` reach the bottom's. `new_run`
/// allocates a run number. `unfinished` is the unfinished output of a merge for readers: its inputs still
/// count as runs, and the output does not.
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
    // A merge that a crash interrupted continues into the run that it had begun, unless several threads left
    // gaps there: a table may reach across a gap's end.
    let start = inputs.iter().filter_map(|run| run.slices.first()).map(|slice| &slice.range.start).min();
    let begun = version.level(next).next().filter(|run| {
        let end = run.slices.last().map(|slice| &slice.range.end);
        matches!((start, end), (Some(start), Some(end)) if end <= start)
    });
    let run = begun.map_or_else(new_run, |run| run.id);
    let inputs = inputs.iter().map(names).collect();
    let target = MergeTarget { level: next, run };
    Some(MergeJob::new(inputs, KeyRange::all(), target, MergeUrgency::Tier(level)))
}

/// Most runs above the bottom that go down without a merge among themselves first.
const FEW_RUNS: usize = 2;

/// A merge that only readers benefit from, and the number of 4 KiB blocks that it moves.
///
/// The newest runs above the bottom become one. Once they are few, they join the bottom if they would by
/// their size. Merging in two stages is cheaper to pay for: ten runs become two after scans have read a tenth
/// of the bottom, instead of all of it.
///
/// From the newest on, a run takes part if it holds at most four times the bytes of the newer runs. The same
/// ratio holds between the tiers of a full tree, so write amplification is bounded. No flush may be in
/// progress: its run would get an older number than `new_run` although its data is newer.
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
    // Quarantined ranges stay in place, so a run that contains one would never be empty.
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

/// The bottom run always has this number.
pub(crate) fn bottom_target() -> MergeTarget {
    MergeTarget { level: TreeLevel::BOTTOM, run: 0 }
}

/// A merge of everything in `range` to the bottom.
pub(crate) fn to_bottom(version: &TreeVersion, range: KeyRange, rewrite: HashSet<ObjectId>) -> MergeJob {
    let inputs = version.runs.iter().map(|run| (run.level, run.id)).collect();
    // Extended to whole tables of the bottom: a partly merged table would hold its space until the rest is
    // merged.
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
        MergeJob { inputs, ranges: vec![range], target, rewrite: HashSet::new(), thorough: false, urgency }
    }
}

/// A caller that waits for the merge of a range.
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

/// Records the bytes of each tier of a version.
pub(crate) fn count_tiers(counters: &EngineCounters, version: &TreeVersion) {
    for (counter, bytes) in counters.tier_bytes.iter().zip(tier_bytes(version)) {
        counter.store(bytes, Relaxed);
    }
}
