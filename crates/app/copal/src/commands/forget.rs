//! `copal forget`: selects snapshots by name or policy, with a reason for each, and applies the guards.

use super::{CommandContext, close, fields::MeasuredFields, resolve_all};
use crate::{
    arguments::{ForgetArgs, KeepArgs},
    failure::{Failure, Outcome, exit},
    human,
    output::CommandOutput,
    pins::ExportPins,
    place::RepositoryPlace,
    repository::OpenRepository,
    repository::RemoteView,
};
use copal_backup::{
    ForgetOptions, Snapshot, SnapshotId,
    retention::{self, Candidate, Policy},
};
use copal_node::Access;
use serde::Serialize;
use serde_json::{Value, json};

/// A snapshot with the decision to keep or forget it.
pub(super) struct JudgedSnapshot {
    snapshot: Snapshot,
    keep: bool,
    reason: String,
}

impl JudgedSnapshot {
    /// Id of the snapshot.
    pub(super) fn id(&self) -> SnapshotId {
        self.snapshot.id
    }

    /// Whether the snapshot stays.
    pub(super) fn is_kept(&self) -> bool {
        self.keep
    }
}

/// Decisions on all snapshots, and the guards that refuse them.
pub(super) struct ForgetJudgement {
    pub(super) judged: Vec<JudgedSnapshot>,
    /// Sentences of the guards; each would end the command.
    pub(super) refusals: Vec<String>,
}

impl ForgetJudgement {
    /// Fails with the first guard, unless this is a dry run.
    pub(super) fn or_refuse(self, dry_run: bool) -> Outcome<ForgetJudgement> {
        match self.refusals.first() {
            Some(refusal) if !dry_run => Err(Failure::new(exit::DENIED, "denied", refusal.clone())),
            _ => Ok(self),
        }
    }
}

/// From this number of snapshots of a VM, forgetting more than half of them needs `--force`.
const BRAKE_FROM: usize = 5;

pub(super) fn run(context: &CommandContext<'_>, forget: &ForgetArgs) -> Outcome<()> {
    let policy = policy(&forget.keep);
    match (policy.is_empty(), forget.snapshots.is_empty()) {
        (true, true) => {
            return Err(Failure::usage(
                "nothing to forget was named: name snapshots, or give a policy (--keep-last 3)",
            ));
        }
        (false, false) => return Err(Failure::usage("name snapshots or give a policy, not both")),
        _ => {}
    }
    let access = if forget.dry_run { Access::Read } else { Access::Write };
    let judge = |opened: &OpenRepository, pins: &ExportPins| judge(opened, forget, &policy, pins);
    let pins = pins_out_of_the_way(context, forget.dry_run, forget.force, judge)?;
    let opened = context.open_behind(access, RemoteView::Current, &pins)?;
    let seen = pins_now(context, &opened, pins, forget.dry_run, forget.force, judge);
    let outcome = seen.and_then(|pins| judge(&opened, &pins)).and_then(|judgement| {
        let judgement = judgement.or_refuse(forget.dry_run)?;
        if !forget.dry_run {
            forget_all(&opened, &judgement.judged, forget.accept_clock)?;
        }
        Ok(judgement)
    });
    let judgement = close(opened, outcome)?;
    report(*context.output, forget.dry_run, &judgement);
    Ok(())
}

/// The pins before the store is opened for writing. With `force`, exports of snapshots that would be
/// forgotten are closed. Without, a guard ends the command here, before it waits for a store that an export
/// reads.
pub(super) fn pins_out_of_the_way(
    context: &CommandContext<'_>,
    dry_run: bool,
    force: bool,
    judge: impl Fn(&OpenRepository, &ExportPins) -> Outcome<ForgetJudgement>,
) -> Outcome<ExportPins> {
    let place = RepositoryPlace::find(&context.arguments.common)?;
    let pins = ExportPins::look(&place);
    if place.is_shared() {
        if force {
            return Ok(ExportPins::disregarded());
        }
        let opened = context.open(Access::Read)?;
        let all = pins.with_other_hosts(opened.repository());
        return close(opened, all);
    }
    if dry_run || pins.is_empty() {
        return Ok(pins);
    }
    let asked = if force { ExportPins::disregarded() } else { pins.clone() };
    let opened = context.open(Access::Read)?;
    let judged = judge(&opened, &asked).and_then(|judgement| judgement.or_refuse(false));
    let judgement = close(opened, judged)?;
    if !force {
        return Ok(pins);
    }
    let gone = judgement.judged.iter().filter(|one| !one.keep);
    pins.close(gone.map(|one| &one.snapshot))
}

/// The pins once the store is open: exports may have begun while this command waited for it, or on other
/// hosts. With `force`, exports of snapshots that would be forgotten are closed as well.
pub(super) fn pins_now(
    context: &CommandContext<'_>,
    opened: &OpenRepository,
    before: ExportPins,
    dry_run: bool,
    force: bool,
    judge: impl Fn(&OpenRepository, &ExportPins) -> Outcome<ForgetJudgement>,
) -> Outcome<ExportPins> {
    if dry_run {
        return Ok(before);
    }
    let place = RepositoryPlace::find(&context.arguments.common)?;
    if force && place.is_shared() {
        return Ok(ExportPins::disregarded());
    }
    let pins = pins_of_all_hosts(context, opened)?;
    if !force || pins.is_empty() {
        return Ok(pins);
    }
    let judgement = judge(opened, &ExportPins::disregarded())?.or_refuse(false)?;
    let gone = judgement.judged.iter().filter(|one| !one.keep);
    pins.close(gone.map(|one| &one.snapshot))
}

/// The present pins of all hosts on this repository.
pub(super) fn pins_of_all_hosts(
    context: &CommandContext<'_>,
    opened: &OpenRepository,
) -> Outcome<ExportPins> {
    let place = RepositoryPlace::find(&context.arguments.common)?;
    let pins = ExportPins::look(&place);
    match place {
        RepositoryPlace::Cluster(_) | RepositoryPlace::Remote(_) => {
            pins.with_other_hosts(opened.repository())
        }
        RepositoryPlace::Store(_) => Ok(pins),
    }
}

/// Refuses to free space while an export shows a forgotten snapshot. Called after the snapshots are
/// forgotten: an export that set its pin earlier and still found the snapshot is seen here.
pub(super) fn refuse_to_free(context: &CommandContext<'_>, opened: &OpenRepository) -> Outcome<()> {
    let pins = pins_of_all_hosts(context, opened)?;
    match pins.refusal_to_free(opened.repository())? {
        Some(refusal) => Err(Failure::new(exit::DENIED, "denied", refusal)),
        None => Ok(()),
    }
}

fn judge(
    opened: &OpenRepository,
    forget: &ForgetArgs,
    policy: &Policy,
    pins: &ExportPins,
) -> Outcome<ForgetJudgement> {
    if policy.is_empty() {
        return by_name(opened, &forget.snapshots, forget.vm.as_deref(), forget.accept_clock, pins);
    }
    let guards = GuardOptions { force: forget.force, accept_clock: forget.accept_clock };
    by_policy(opened, forget.vm.as_deref(), policy, guards, pins)
}

/// The guards of a policy that the user lifts.
#[derive(Clone, Copy)]
pub(super) struct GuardOptions {
    pub(super) force: bool,
    pub(super) accept_clock: bool,
}

/// Selects named snapshots; held and exported ones are refused.
pub(super) fn by_name(
    opened: &OpenRepository,
    names: &[String],
    vm: Option<&str>,
    accept_clock: bool,
    pins: &ExportPins,
) -> Outcome<ForgetJudgement> {
    let named = resolve_all(opened, names, vm)?;
    let holds = named.iter().map(|snapshot| snapshot.held_until_ms);
    let clock = opened.repository().clock_for_holds(holds, accept_clock)?;
    let held = |snapshot: &Snapshot| {
        let clock = clock.as_ref()?;
        let is_held = clock.holds(snapshot.held_until_ms);
        is_held.then(|| clock.refusal(&snapshot.id.short(), snapshot.held_until_ms))
    };
    let refusal = |snapshot: &Snapshot| held(snapshot).or_else(|| pins.refusal(snapshot));
    let refusals = named.iter().filter_map(refusal).collect();
    let judged = named
        .into_iter()
        .map(|snapshot| JudgedSnapshot {
            snapshot,
            keep: false,
            reason: "named on the command line".to_owned(),
        })
        .collect();
    Ok(ForgetJudgement { judged, refusals })
}

/// Judges every VM separately, in the time zone of this machine. Exported snapshots stay.
pub(super) fn by_policy(
    opened: &OpenRepository,
    vm: Option<&str>,
    policy: &Policy,
    guards: GuardOptions,
    pins: &ExportPins,
) -> Outcome<ForgetJudgement> {
    let mut snapshots = opened.repository().snapshots(vm)?;
    snapshots.sort_by_key(|snapshot| (snapshot.vm.uuid, snapshot.sequence));
    let zone = jiff::tz::TimeZone::system();
    let mut clock = opened.repository().clock()?;
    if guards.accept_clock {
        clock = clock.accepted();
    }
    let mut judged = Vec::with_capacity(snapshots.len());
    let mut refusals = Vec::new();
    // A damaged snapshot represents no day or week, and its tags are unknown: only its id selects it.
    let (damaged, snapshots): (Vec<Snapshot>, Vec<Snapshot>) =
        snapshots.into_iter().partition(|snapshot| snapshot.damage.is_some());
    judged.extend(damaged.into_iter().map(|snapshot| JudgedSnapshot {
        reason: format!("damaged; no policy judges it, `copal forget {}` does", snapshot.id.short()),
        snapshot,
        keep: true,
    }));
    for group in snapshots.chunk_by(|a, b| a.vm.uuid == b.vm.uuid) {
        let candidates: Vec<Candidate> = group
            .iter()
            .map(|snapshot| Candidate {
                created_ms: snapshot.created_ms,
                tags: snapshot.tags.clone(),
                is_verified: snapshot.is_verified,
                is_doubtful: snapshot.is_doubtful(),
                held_until_ms: snapshot.held_until_ms,
            })
            .collect();
        let verdicts = retention::judge_by_clock(policy, &candidates, &clock, &zone);
        let doubted = verdicts.iter().filter(|verdict| verdict.is_doubt()).count();
        if doubted > 0 {
            refusals.push(format!(
                "{} of {} would go by age alone, but {}",
                human::count(doubted as u64, "snapshot"),
                group[0].vm.name,
                clock.doubt()
            ));
        }
        let gone = verdicts.iter().filter(|verdict| verdict.is_remove()).count();
        if !guards.force && group.len() >= BRAKE_FROM && gone * 2 > group.len() {
            refusals.push(format!(
                "this would forget {gone} of the {} snapshots of {}; add --force if that is meant, nothing was changed",
                group.len(),
                group[0].vm.name
            ));
        }
        judged.extend(group.iter().zip(verdicts).map(|(snapshot, verdict)| {
            let in_use = pins.of(snapshot).filter(|_| verdict.is_remove());
            JudgedSnapshot {
                snapshot: snapshot.clone(),
                keep: !verdict.is_remove() || in_use.is_some(),
                reason: match in_use {
                    Some(holder) => format!("in use by {holder}"),
                    None if snapshot.is_doubtful() => format!("{verdict}, among the doubtful"),
                    None => verdict.to_string(),
                },
            }
        }));
    }
    Ok(ForgetJudgement { judged, refusals })
}

/// Forgets the snapshots that are not kept.
pub(super) fn forget_all(
    opened: &OpenRepository,
    judged: &[JudgedSnapshot],
    accept_clock: bool,
) -> Outcome<Vec<SnapshotId>> {
    let gone: Vec<SnapshotId> = judged.iter().filter(|j| !j.keep).map(|j| j.snapshot.id).collect();
    if gone.is_empty() {
        return Ok(gone);
    }
    let options = ForgetOptions { accept_clock };
    Ok(opened.repository().forget_with(&gone, &options)?.forgotten)
}

pub(super) fn policy(keep: &KeepArgs) -> Policy {
    Policy {
        last: keep.keep_last,
        hourly: keep.keep_hourly,
        daily: keep.keep_daily,
        weekly: keep.keep_weekly,
        monthly: keep.keep_monthly,
        yearly: keep.keep_yearly,
        within: keep.keep_within,
        tags: keep.keep_tag.clone(),
    }
}

/// Fields of the decisions, which `prune` and `delete` print too.
#[derive(Serialize)]
pub(super) struct JudgementFields<'a> {
    dry_run: bool,
    forgotten: usize,
    snapshots: Vec<Value>,
    refused: &'a [String],
}

impl JudgementFields<'_> {
    pub(super) fn new(judgement: &ForgetJudgement, dry_run: bool) -> JudgementFields<'_> {
        let snapshots = judgement.judged.iter().map(|one| {
            json!({
                "id": one.snapshot.id,
                "vm": one.snapshot.vm,
                "time": human::utc_time(one.snapshot.created_ms),
                "action": if one.keep { "keep" } else { "forget" },
                "reason": one.reason,
            })
        });
        JudgementFields {
            dry_run,
            forgotten: judgement.judged.iter().filter(|one| !one.keep).count(),
            snapshots: snapshots.collect(),
            refused: &judgement.refusals,
        }
    }
}

/// Fields of the summary.
#[derive(Serialize)]
struct ForgetFields<'a> {
    #[serde(flatten)]
    judgement: JudgementFields<'a>,
    kept: usize,
}

/// The refusals of a dry run, a line each.
pub(super) fn refusals_text(refusals: &[String]) -> String {
    refusals.iter().map(|refusal| format!("would be refused: {}\n", human::visible(refusal))).collect()
}

/// The decisions as a table.
pub(super) fn judged_text(judged: &[JudgedSnapshot], dry_run: bool) -> String {
    let gone = match dry_run {
        true => "would forget",
        false => "forgot",
    };
    let rows: Vec<Vec<String>> = judged
        .iter()
        .map(|one| {
            vec![
                if one.keep { "kept" } else { gone }.to_owned(),
                one.snapshot.id.short(),
                human::local_time(one.snapshot.created_ms),
                one.snapshot.vm.name.clone(),
                one.reason.clone(),
            ]
        })
        .collect();
    human::table(&["", "ID", "Time", "VM", "Reason"], &rows)
}

fn report(output: CommandOutput, dry_run: bool, judgement: &ForgetJudgement) {
    let judged = &judgement.judged;
    let fields = JudgementFields::new(judgement, dry_run);
    let forgotten = fields.forgotten;
    let fields = ForgetFields { judgement: fields, kept: judged.len() - forgotten };
    let fields = MeasuredFields::new("forget", fields);
    let text = || {
        if judged.is_empty() {
            return "no snapshots\n".to_owned();
        }
        let mut text = judged_text(judged, dry_run) + &refusals_text(&judgement.refusals);
        if forgotten > 0 && !dry_run {
            text.push_str("Their space returns with `copal delete` or `copal prune`.\n");
        }
        text
    };
    match dry_run {
        true => output.answer(fields, text),
        false => output.summary(fields, text),
    }
}
