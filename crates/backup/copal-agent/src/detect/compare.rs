//! Comparison of one slice: a sorted merge of requests, index run and candidate run, then promotion.
//!
//! Paper: low-profile-dedup §3
//! Invariants
//! - Ids are granted and answered only after both runs were read to their ends without damage.
//! - A stored id has no rows in the candidate run; a granted one keeps them until it is stored.
//! - Of the VMs that ask for an id, at most one is asked to store it as popular.

use super::error::{DetectError, Result};
use super::format::{FilePartition, RunKind, RunRow};
use super::grants::GrantTable;
use super::promotion::{IdTally, MOST_VMS, PromotionState};
use super::run_file::{DamagedRun, RunReader, RunWriter};
use super::slice::{RequestSlice, WantedId};
use copal_backup::peers::{Answer, ShortId};
use std::cmp::Reverse;
use std::path::Path;
use std::time::Instant;
use tracing::warn;

/// Result of a merge.
pub(crate) struct MergedSlice {
    /// Rows of the index run.
    pub(crate) popular: u64,
    /// Number of distinct ids that are not in it.
    pub(crate) candidates: u64,
    /// The next candidate run; `None`: it could not be written, and the old one stays.
    next_candidates: Option<RunWriter>,
}

/// Merges the slice with both runs: answers stored and granted ids, and records the others that several VMs
/// ask for as wanted.
/// # Errors
/// The inner error: a run is damaged, and nothing was changed.
pub(crate) fn merge(
    dir: &Path,
    belongs: FilePartition,
    index: Option<RunReader>,
    grants: &GrantTable,
    slice: &mut RequestSlice,
) -> Result<std::result::Result<MergedSlice, DamagedRun>> {
    let candidates = match RunReader::open(dir, RunKind::Candidates, belongs)? {
        Ok(candidates) => candidates,
        Err(damaged) => return Ok(Err(damaged)),
    };
    let next_candidates = RunWriter::create(dir, RunKind::Candidates, belongs);
    let merge = SliceMerge {
        next_candidates: next_candidates.inspect_err(tell_unwritten).ok(),
        index,
        candidates,
        distinct: 0,
    };
    Ok(merge.run(grants, slice))
}

fn tell_unwritten(error: &DetectError) {
    warn!(%error, "candidates of this round not saved, some chunks become popular later");
}

struct SliceMerge {
    index: Option<RunReader>,
    candidates: Option<RunReader>,
    next_candidates: Option<RunWriter>,
    distinct: u64,
}

/// VMs that asked for one id before.
#[derive(Default)]
struct EarlierVms {
    vms: [u32; MOST_VMS as usize],
    len: usize,
}

impl EarlierVms {
    fn has(&self, vm: u32) -> bool {
        self.vms[..self.len].contains(&vm)
    }

    /// Adds a VM while there is space.
    fn add(&mut self, vm: u32) {
        if let Some(place) = self.vms.get_mut(self.len) {
            *place = vm;
            self.len += 1;
        }
    }
}

impl SliceMerge {
    fn run(
        mut self,
        grants: &GrantTable,
        slice: &mut RequestSlice,
    ) -> std::result::Result<MergedSlice, DamagedRun> {
        let popular = self.index.as_ref().map_or(0, |index| index.head().rows);
        let mut first = 0;
        loop {
            let requested = slice.requests.get(first).map(|request| request.id);
            let asked = self.candidates.as_ref().and_then(|run| run.peek()).map(|row| row.id);
            let Some(id) = requested.into_iter().chain(asked).min() else {
                break;
            };
            let stored = self.stored(&id)?;
            let before = self.asked_before(&id)?;
            let requests = if requested == Some(id) { slice.group(first).len() } else { 0 };
            let group = first..first + requests;
            match stored {
                Some(answer) => group.for_each(|at| slice.answers[slice.requests[at].at as usize] = answer),
                None => self.miss(&id, before, group, grants, slice),
            }
            first += requests;
        }
        if let Some(index) = &mut self.index {
            index.read_to_end()?;
        }
        Ok(MergedSlice { popular, candidates: self.distinct, next_candidates: self.next_candidates })
    }

    /// The answer of the index run for an id. Ids ascend.
    fn stored(&mut self, id: &ShortId) -> std::result::Result<Option<Answer>, DamagedRun> {
        let Some(index) = &mut self.index else {
            return Ok(None);
        };
        while let Some(row) = index.peek().copied()
            && row.id <= *id
        {
            index.advance()?;
            if row.id == *id {
                let kind = RunKind::Popular;
                let what = || format!("a row says {}, which is no answer", row.value);
                let answer = Answer::from_code(row.value).ok_or_else(|| DamagedRun { kind, what: what() })?;
                return Ok(Some(answer));
            }
        }
        Ok(None)
    }

    /// Reads the rows of an id from the candidate run.
    fn asked_before(&mut self, id: &ShortId) -> std::result::Result<EarlierVms, DamagedRun> {
        let mut asked = EarlierVms::default();
        while let Some(run) = &mut self.candidates
            && run.peek().is_some_and(|row| row.id == *id)
        {
            if let Some(row) = run.advance()? {
                asked.add(row.value);
            }
        }
        Ok(asked)
    }

    fn miss(
        &mut self,
        id: &ShortId,
        before: EarlierVms,
        group: std::ops::Range<usize>,
        grants: &GrantTable,
        slice: &mut RequestSlice,
    ) {
        self.distinct += 1;
        let requests = &slice.requests[group.clone()];
        let (mut vms, mut remembered) = (before.len as u32, EarlierVms { ..before });
        for same_vm in requests.chunk_by(|a, b| a.vm == b.vm) {
            if !before.has(same_vm[0].vm) {
                vms += 1;
                remembered.add(same_vm[0].vm);
            }
        }
        self.remember(id, &mut remembered);
        match grants.holder(id) {
            Some(holder) => answer_granted(slice, group, holder),
            None if vms > 1 && !group.is_empty() => {
                slice.wanted.push(WantedId { first: group.start as u32, vms })
            }
            None => {}
        }
    }

    /// Writes the rows of an id that remains a candidate.
    fn remember(&mut self, id: &ShortId, asked: &mut EarlierVms) {
        let Some(out) = &mut self.next_candidates else {
            return;
        };
        let vms = &mut asked.vms[..asked.len];
        vms.sort_unstable();
        if let Err(error) = vms.iter().try_for_each(|&value| out.push(&RunRow { id: *id, value })) {
            tell_unwritten(&error);
            self.next_candidates = None;
        }
    }
}

/// The holder of the grant stores the id, and all others ask again.
fn answer_granted(slice: &mut RequestSlice, group: std::ops::Range<usize>, holder: u32) {
    for request in &slice.requests[group] {
        slice.answers[request.at as usize] = match request.vm == holder {
            true => Answer::STORE_POPULAR,
            false => Answer::CARRY,
        };
    }
}

/// The fraction of popular chunks has no space for the id.
fn answer_refused(slice: &mut RequestSlice, refused: &WantedId) {
    let first = refused.first as usize;
    let group = first..first + slice.group(first).len();
    for request in &slice.requests[group] {
        slice.answers[request.at as usize] = Answer::FRACTION_USED;
    }
}

impl MergedSlice {
    /// Puts the new candidate run in place. A failure only loses candidates.
    pub(crate) fn remember_candidates(self) {
        if let Some(out) = self.next_candidates {
            let _ = out.finish(0).inspect_err(tell_unwritten);
        }
    }

    /// Grants wanted ids as far as the rule allows, those of the most VMs first. Returns the partition's
    /// tally afterwards.
    pub(crate) fn promote(
        &self,
        granted: u64,
        (popular_millionths, others): (u32, IdTally),
        grants: &mut GrantTable,
        now: Instant,
        slice: &mut RequestSlice,
    ) -> IdTally {
        let mut promotion = PromotionState {
            popular_millionths,
            own: IdTally { popular: self.popular + granted, known: self.popular + self.candidates },
            others,
        };
        let mut wanted = std::mem::take(&mut slice.wanted);
        let questions = slice.questions();
        // Requests ascend by id, so ids with equal counts keep their order.
        wanted.sort_unstable_by_key(|wanted| (Reverse(wanted.vms), wanted.first));
        for (at, WantedId { first, vms }) in wanted.iter().enumerate() {
            if promotion.threshold().is_none_or(|threshold| *vms < threshold) {
                // The following ids are wanted by no more VMs.
                wanted[at..].iter().for_each(|refused| answer_refused(slice, refused));
                break;
            }
            let first = *first as usize;
            let group = slice.group(first);
            let (id, len) = (group[0].id, group.len());
            // A VM that was asked to store the id, and has not, would not now.
            let declined = slice.declined.get(&id).copied();
            let willing = group.iter().filter(|request| Some(request.vm) != declined);
            let Some(earliest) = willing.min_by_key(|request| request.at) else {
                continue;
            };
            let holder = earliest.vm;
            let question = questions.get(&holder).and_then(|asked| asked.last());
            if grants.grant(id, (holder, question.copied().unwrap_or(0)), now) {
                promotion.own.popular += 1;
                answer_granted(slice, first..first + len, holder);
            } else {
                // Without space for the grant, all VMs ask again after others have stored theirs.
                let ask_again = slice.requests[first..first + len].iter();
                ask_again.for_each(|request| slice.answers[request.at as usize] = Answer::CARRY);
            }
        }
        slice.wanted = wanted;
        promotion.own
    }
}
