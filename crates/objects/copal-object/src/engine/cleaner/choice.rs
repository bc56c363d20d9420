//! Choice of segments: those with the fewest pages to move.

use crate::state::{StoreCore, StoreState};
use std::collections::HashMap;

/// How much a segment must gain to be worth its copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CleaningNeed {
    /// No caller waits.
    Background,
    /// A caller waits for space.
    Urgent,
    /// A caller that frees space waits, so any gain is worth it.
    Releasing,
}

/// Most segments of one round. The tables are searched once for all of them.
const VICTIMS_MAX: usize = 8;
/// A caller that waits accepts segments in which one of so many pages has no owner. Below that, each page that it writes
/// would cost more than a hundred.
const URGENT_ONE_IN: u32 = 128;
/// In the background a segment must have so many: the copy costs at most three times its gain.
const BACKGROUND_ONE_IN: u32 = 4;

/// Pages of each segment that wait in quarantine.
pub(super) fn quarantined_pages(state: &StoreState) -> HashMap<u32, u32> {
    let mut pages = HashMap::new();
    if let Some(segments) = state.space.placement().segments() {
        for run in state.space.quarantined() {
            for (segment, part) in segments.parts(*run) {
                *pages.entry(segment).or_default() += part;
            }
        }
    }
    pages
}

/// How much a round must gain now, although no caller waits. `None`: space is not short.
pub(super) fn due_need(store: &StoreCore, state: &StoreState) -> Option<CleaningNeed> {
    let space = &state.space;
    let segments = space.placement().segments()?;
    if store.shape.read_only || store.shape.cleaner_trigger.is_never() || !state.checkpoint.is_mounted() {
        return None;
    }
    let size = u64::from(segments.segment_pages());
    let low = (segments.usable() / 32).max(2) * size;
    if space.available_pages() >= low && !store.shape.cleaner_trigger.is_always() {
        return None;
    }
    // Operations that free space have used a part of the reserve.
    let is_short = space.placement().free_pages() < space.system_pages();
    let ownerless = space.placement().ownerless_pages();
    let step = if store.shape.cleaner_trigger.is_always() || is_short { 1 } else { size / 4 };
    let is_new = state.cleaner.searched_at.is_none_or(|before| ownerless.abs_diff(before) >= step);
    let need = if is_short { CleaningNeed::Urgent } else { CleaningNeed::Background };
    is_new.then_some(need)
}

/// Segments to empty.
#[derive(Debug, Default)]
pub(super) struct CleaningVictims {
    pub(super) segments: Vec<u32>,
    /// Their pages need a segment that is kept for records; more than one becomes free for it.
    pub(super) borrows: bool,
}

/// The segments to empty: as many as there is room for their owned pages elsewhere. A segment is left over if more than
/// one is emptied, since copies of parts that change meanwhile take room, too.
pub(super) fn choose_victims(
    store: &StoreCore,
    state: &mut StoreState,
    need: CleaningNeed,
) -> CleaningVictims {
    let quarantined = quarantined_pages(state);
    let space = &state.space;
    let placement = space.placement();
    let Some(segments) = placement.segments() else {
        return CleaningVictims::default();
    };
    let size = segments.segment_pages();
    let one_in = match need {
        CleaningNeed::Background if !store.shape.cleaner_trigger.is_always() => BACKGROUND_ONE_IN,
        CleaningNeed::Background | CleaningNeed::Urgent => URGENT_ONE_IN,
        CleaningNeed::Releasing => size,
    };
    let least = (size / one_in).max(1);
    let survivor_segments = placement.segments_for_survivors(space.checkpoint_pages());
    state.cleaner.stuck.retain(|&segment, stuck| {
        segments.owned_pages(segment) == stuck.owned
            && stuck.room.is_none_or(|room| survivor_segments <= room)
    });
    let stuck = &state.cleaner.stuck;
    let candidate = |(segment, owned): (u32, u32)| {
        let moved = owned - quarantined.get(&segment).copied().unwrap_or(0).min(owned);
        (moved > 0 && size - moved >= least && !stuck.contains_key(&segment)).then_some((moved, segment))
    };
    let mut candidates: Vec<(u32, u32)> = segments.closed().filter_map(candidate).collect();
    if candidates.len() > VICTIMS_MAX {
        candidates.select_nth_unstable(VICTIMS_MAX - 1);
        candidates.truncate(VICTIMS_MAX);
    }
    candidates.sort_unstable();
    let (rest, size) = (u64::from(placement.survivor_rest()), u64::from(size));
    let victims = match survivor_segments {
        0 => fitting(&candidates, rest),
        more => fitting(&candidates, rest + (more - 1) * size),
    };
    if !victims.is_empty() {
        return CleaningVictims { segments: victims, borrows: false };
    }
    let alone = fitting(&candidates[..candidates.len().min(1)], rest + survivor_segments * size);
    if !alone.is_empty() {
        return CleaningVictims { segments: alone, borrows: false };
    }
    let victims = fitting(&candidates, rest + size);
    let borrows = need != CleaningNeed::Background && victims.len() > 1 && segments.free_segments() > 1;
    if borrows { CleaningVictims { segments: victims, borrows } } else { CleaningVictims::default() }
}

/// The first of `candidates`, pages and segment, that find room for all their pages in `room` pages.
fn fitting(candidates: &[(u32, u32)], mut room: u64) -> Vec<u32> {
    let fitting = candidates.iter().take_while(|&&(moved, _)| {
        let fits = u64::from(moved) <= room;
        room = room.saturating_sub(moved.into());
        fits
    });
    fitting.map(|&(_, segment)| segment).collect()
}
