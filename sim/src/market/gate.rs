//! The gate: limits that the market must hold before the engine gets it.

use super::Compared;

/// Reads of the market beside the better of rows only and blocks only, in each phase.
const BESIDE_ONE_CACHE: f64 = 1.1;
/// Reads beside the best fixed content, once warm.
const BESIDE_OPTIMUM: f64 = 1.5;
/// Fewer reads per Get than this are a few reads, and no ratio.
const FEW: f64 = 0.002;
/// Turns of the budget for each shift of the heat.
const TURNS_OF_SHIFT: f64 = 1.0;
/// Turns of the budget for 1,000 Gets in which nothing changes.
const TURNS_AT_REST: f64 = 0.01;

/// Sentences about each figure that fails.
pub(super) fn failures(compared: &[Compared]) -> Vec<String> {
    let mut failures = Vec::new();
    for one in compared {
        let reads_of = |name: &str, phase: usize| {
            let played = one.played.iter().find(|played| played.plan.name == name)?;
            let reads = &played.phases[phase];
            Some(reads.reads as f64 / reads.gets as f64)
        };
        let mut fail = |phase: usize, sentence: String| {
            failures.push(format!("{}, phase {}: {sentence}", one.trace.name, phase + 1));
        };
        for (at, phase) in one.trace.phases.iter().enumerate() {
            let Some(market) = reads_of("market", at) else { continue };
            let single = [reads_of("rows only", at), reads_of("blocks only", at)];
            if let [Some(rows), Some(blocks)] = single
                && market > BESIDE_ONE_CACHE * rows.min(blocks) + FEW
            {
                fail(at, format!("{market:.4} reads per Get, {:.4} with one cache", rows.min(blocks)));
            }
            let is_warm = at > 0 && !phase.is_shift && one.trace.beside == Default::default();
            if is_warm && market > BESIDE_OPTIMUM * one.optimum[at] + FEW {
                fail(at, format!("{market:.4} reads per Get, {:.4} at best", one.optimum[at]));
            }
            if one.trace.beside.memtable_every > 0
                && let Some(today) = reads_of("today", at)
                && market > today
            {
                fail(at, format!("{market:.4} reads per Get, {today:.4} with reserves"));
            }
            let Some(played) = one.played.iter().find(|played| played.plan.name == "market") else {
                continue;
            };
            let turns = played.phases[at].grown as f64 / one.trace.budget as f64;
            // The first phase fills the memory once.
            let is_shift = at == 0 || phase.is_shift;
            let allowed = TURNS_OF_SHIFT * f64::from(is_shift) + TURNS_AT_REST * phase.gets as f64 / 1000.0;
            if one.trace.beside.memtable_every == 0 && turns > allowed {
                fail(at, format!("{turns:.2} turns of the budget, {allowed:.2} allowed"));
            }
        }
    }
    failures
}
