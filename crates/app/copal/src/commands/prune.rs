//! `copal prune` and `copal delete`: free the space of forgotten snapshots.

use super::{
    CommandContext,
    fields::{self, MeasuredFields},
    forget::{self, ForgetJudgement, JudgedSnapshot, JudgementFields},
};
use crate::{
    arguments::{DeleteArgs, MethodWord, PruneArgs},
    failure::{Failure, Outcome},
    human,
    pins::ExportPins,
    place::RepositoryPlace,
    repository::OpenRepository,
    repository::RemoteView,
};
use copal_backup::{FreeMethod, Layout, PruneOptions, PruneSummary};
use copal_node::Access;
use copal_object::ShrinkReport;
use serde::Serialize;
use std::time::Instant;

pub(super) fn delete(context: &CommandContext<'_>, delete: &DeleteArgs) -> Outcome<()> {
    let judge = |opened: &OpenRepository, pins: &ExportPins| judge_named(opened, delete, pins);
    let pins = forget::pins_out_of_the_way(context, delete.dry_run, delete.force, judge)?;
    let opened = context.open_behind(access(delete.dry_run), RemoteView::Current, &pins)?;
    let seen = forget::pins_now(context, &opened, pins, delete.dry_run, delete.force, judge);
    let outcome = seen.and_then(|pins| free(context, &opened, delete, &pins));
    let freed = close(context, opened, outcome, delete.dry_run)?;
    report(context, "delete", delete.dry_run, &freed);
    Ok(())
}

fn judge_named(opened: &OpenRepository, delete: &DeleteArgs, pins: &ExportPins) -> Outcome<ForgetJudgement> {
    // Checked before an export is closed or a snapshot forgotten.
    method_of(opened, delete)?;
    let visible = not_forgotten(opened, &delete.snapshots)?;
    forget::by_name(opened, &visible, None, delete.accept_clock, pins)
}

fn free(
    context: &CommandContext<'_>,
    opened: &OpenRepository,
    delete: &DeleteArgs,
    pins: &ExportPins,
) -> Outcome<FreedSpace> {
    let judgement = judge_named(opened, delete, pins)?.or_refuse(delete.dry_run)?;
    if !delete.dry_run {
        forget::forget_all(opened, &judgement.judged, delete.accept_clock)?;
        if !delete.force {
            forget::refuse_to_free(context, opened)?;
        }
    }
    // A pack that is needed in part stays, even for a single frame.
    let options = PruneOptions {
        method: method_of(opened, delete)?,
        max_unused_percent: 100,
        dry_run: delete.dry_run,
        ..PruneOptions::default()
    };
    sweep(context, opened, judgement, &options)
}

/// The method of finding dead frames. The layout solo has one.
fn method_of(opened: &OpenRepository, delete: &DeleteArgs) -> Outcome<FreeMethod> {
    if delete.method.is_some() && opened.repository().info().layout == Layout::Solo {
        return Err(Failure::usage(
            "--method is for the layout fleet; in this repository deletion is always exact, so leave it out",
        ));
    }
    Ok(match delete.method {
        Some(MethodWord::MarkSweep) => FreeMethod::MarkSweep,
        Some(MethodWord::Grouped) => FreeMethod::Grouped,
        Some(MethodWord::Local) => FreeMethod::Exact,
        Some(MethodWord::Summary) => FreeMethod::Summary,
        None if delete.exact => FreeMethod::Exact,
        None => FreeMethod::Summary,
    })
}

/// The named snapshots that are not yet forgotten: the space of the others is freed anyway.
fn not_forgotten(opened: &OpenRepository, names: &[String]) -> Outcome<Vec<String>> {
    let mut visible = Vec::new();
    for name in names {
        if !opened.repository().is_forgotten(name)? {
            visible.push(name.clone());
        }
    }
    Ok(visible)
}

/// Forgotten snapshots and freed space.
struct FreedSpace {
    judgement: ForgetJudgement,
    /// `None`: a refusal of a dry run.
    summary: Option<PruneSummary>,
    seconds: f64,
    /// Peak memory of the process before the search for dead frames, and during it.
    peak_before: u64,
    peak_bytes: u64,
    /// Method of finding dead frames.
    method: &'static str,
    /// Bytes in the store; `None` for a cluster, which others share.
    store_bytes: Option<u64>,
    /// Bytes returned to the file system, and bytes that the store then uses of it.
    shrunk: ShrinkReport,
    allocated_bytes: Option<u64>,
}

fn access(dry_run: bool) -> Access {
    match dry_run {
        true => Access::Read,
        false => Access::Write,
    }
}

fn sweep(
    context: &CommandContext<'_>,
    opened: &OpenRepository,
    mut judgement: ForgetJudgement,
    options: &PruneOptions,
) -> Outcome<FreedSpace> {
    // Rewritten data moves away from the end of the file, which is then truncated.
    if let Some(store) = opened.store() {
        store.objects().place_low();
    }
    let meter = context.meter();
    let gone = judgement.judged.iter().filter(|one| !one.is_kept());
    let options = PruneOptions {
        // A dry run ignores the snapshots that would be forgotten.
        without: gone.map(JudgedSnapshot::id).collect(),
        ..options.clone()
    };
    // The memory for checking the password is not counted for the method.
    let peak_before = fields::begin_peak();
    let begun = Instant::now();
    let summary = match opened.repository().prune(&options, &meter, &context.cancel) {
        // A dry run reports the obstacles of the real run.
        Err(error) if options.dry_run && error.is_corruption() => {
            judgement.refusals.push(error.to_string());
            None
        }
        summary => Some(summary?),
    };
    drop(meter);
    Ok(FreedSpace {
        judgement,
        summary,
        seconds: begun.elapsed().as_secs_f64(),
        peak_before,
        peak_bytes: fields::peak_memory_bytes(),
        method: match options.method {
            FreeMethod::MarkSweep => "mark-sweep",
            FreeMethod::Grouped => "grouped",
            FreeMethod::Exact => "local",
            FreeMethod::Summary => "summary",
        },
        store_bytes: opened.store().map(|store| store.objects().space().live_bytes),
        shrunk: ShrinkReport::default(),
        allocated_bytes: None,
    })
}

/// Closes the store and returns the freed space to its file system. After a failure or a dry run, the file
/// keeps its size.
fn close(
    context: &CommandContext<'_>,
    opened: OpenRepository,
    outcome: Outcome<FreedSpace>,
    dry_run: bool,
) -> Outcome<FreedSpace> {
    if dry_run || outcome.is_err() {
        return super::close(opened, outcome);
    }
    let shrunk = opened.close_and_shrink();
    Ok(FreedSpace {
        shrunk: shrunk?,
        allocated_bytes: RepositoryPlace::find(&context.arguments.common)?.allocated_bytes(),
        ..outcome?
    })
}

pub(super) fn prune(context: &CommandContext<'_>, prune: &PruneArgs) -> Outcome<()> {
    let policy = forget::policy(&prune.keep);
    if policy.is_empty() && (prune.vm.is_some() || prune.force || prune.accept_clock) {
        return Err(Failure::usage(
            "--vm, --force and --accept-clock belong to a policy; give one (--keep-last 3)",
        ));
    }
    let memory_bytes = context.memory()?.work;
    let guards = forget::GuardOptions { force: prune.force, accept_clock: prune.accept_clock };
    let judge = |opened: &OpenRepository, pins: &ExportPins| match policy.is_empty() {
        true => forget::by_name(opened, &[], None, false, pins),
        false => forget::by_policy(opened, prune.vm.as_deref(), &policy, guards, pins),
    };
    let pins = forget::pins_out_of_the_way(context, prune.dry_run, prune.force, judge)?;
    let opened = context.open_behind(access(prune.dry_run), RemoteView::Current, &pins)?;
    let work = || -> Outcome<FreedSpace> {
        let pins = forget::pins_now(context, &opened, pins, prune.dry_run, prune.force, judge)?;
        let judgement = judge(&opened, &pins)?.or_refuse(prune.dry_run)?;
        if !prune.dry_run {
            forget::forget_all(&opened, &judgement.judged, prune.accept_clock)?;
            if !prune.force {
                forget::refuse_to_free(context, &opened)?;
            }
        }
        let options = PruneOptions {
            max_unused_percent: prune.max_unused,
            dry_run: prune.dry_run,
            memory_bytes,
            ..PruneOptions::default()
        };
        sweep(context, &opened, judgement, &options)
    };
    let outcome = work();
    let freed = close(context, opened, outcome, prune.dry_run)?;
    report(context, "prune", prune.dry_run, &freed);
    Ok(())
}

fn report(context: &CommandContext<'_>, command: &'static str, dry_run: bool, freed: &FreedSpace) {
    let ForgetJudgement { judged, refusals } = &freed.judgement;
    // The kernel's peak of a process may fall by some pages: the whole is at least each part.
    let peak = freed.peak_before.max(freed.peak_bytes);
    let fields = MeasuredFields::new(command, FreedFields::new(freed, dry_run)).with_peak(peak);
    let text = || {
        let mut words = String::new();
        if !judged.is_empty() {
            words.push_str(&forget::judged_text(judged, dry_run));
        }
        words.push_str(&forget::refusals_text(refusals));
        match freed.summary {
            Some(summary) => words + &text(dry_run, &summary, freed),
            None => words,
        }
    };
    match dry_run {
        true => context.output.answer(fields, text),
        false => context.output.summary(fields, text),
    }
}

/// Fields of the summary.
#[derive(Serialize)]
struct FreedFields<'a> {
    #[serde(flatten)]
    judgement: JudgementFields<'a>,
    #[serde(flatten)]
    summary: PruneSummary,
    freed_bytes: u64,
    mode: &'static str,
    method: &'static str,
    seconds: f64,
    peak_bytes: u64,
    store_live_bytes: Option<u64>,
    store_allocated_bytes: Option<u64>,
    given_back_bytes: u64,
}

impl FreedFields<'_> {
    fn new(freed: &FreedSpace, dry_run: bool) -> FreedFields<'_> {
        let summary = freed.summary.unwrap_or_default();
        FreedFields {
            judgement: JudgementFields::new(&freed.judgement, dry_run),
            summary,
            freed_bytes: freed_bytes(&summary),
            mode: mode(&summary),
            method: freed.method,
            seconds: freed.seconds,
            peak_bytes: freed.peak_bytes,
            store_live_bytes: freed.store_bytes,
            store_allocated_bytes: freed.allocated_bytes,
            given_back_bytes: freed.shrunk.cut_bytes + freed.shrunk.hollow_bytes,
        }
    }
}

/// The method by which dead frames were found.
fn mode(summary: &PruneSummary) -> &'static str {
    match (summary.by_summary, summary.by_walk) {
        (0, _) => "exact",
        (_, 0) => "summary",
        _ => "summary, and exact where a vector was missing",
    }
}

/// Freed bytes: in a fleet, dead frames count even before their pack is removed.
pub(super) fn freed_bytes(summary: &PruneSummary) -> u64 {
    let of_packs = summary.before_bytes.saturating_sub(summary.after_bytes);
    of_packs.max(summary.freed_bytes)
}

fn text(dry_run: bool, summary: &PruneSummary, freed: &FreedSpace) -> String {
    let freed_bytes = freed_bytes(summary);
    let would_be = if dry_run { " would be" } else { "" };
    let taken = freed.allocated_bytes.map_or_else(String::new, |bytes| {
        format!(", which takes {} on its file system", human::bytes(bytes))
    });
    let in_store = freed
        .store_bytes
        .map_or_else(String::new, |bytes| format!(", {} in the store{taken}", human::bytes(bytes)));
    let busy = match summary.busy_vms {
        0 => String::new(),
        vms => format!("{vms} VMs were skipped, since they are being backed up\n"),
    };
    format!(
        "{} packs{would_be} removed, {} rewritten, {} freed; {} in packs{in_store}\n{busy}",
        summary.removed_packs,
        summary.rewritten_packs,
        human::bytes(freed_bytes),
        human::bytes(summary.after_bytes),
    )
}
