//! `copal copy`: snapshots of one repository in another one.
//!
//! - [`place`]: the repository to copy to. [`report`]: lines and summary.

mod place;
mod report;

use super::{CommandContext, close};
use crate::{
    arguments::{CommonArgs, CopyArgs},
    asker,
    failure::{Failure, Outcome, exit},
    human,
    repository::{self, OpenRepository, RemoteView},
};
use copal_backup::{
    Holder, Snapshot,
    copy::{
        CopyChoice, CopyFailure, CopyOptions, CopyOutcome, CopyPlan, CopySide, FailureScope, SnapshotCopier,
    },
};
use copal_node::{Access, MemoryShares};
use report::CopyReport;
use std::collections::HashSet;
use uuid::Uuid;

pub(super) fn run(context: &CommandContext<'_>, copy: &CopyArgs) -> Outcome<()> {
    let choice = choice(copy)?;
    let common = &context.arguments.common;
    let memory = MemoryShares::of_two(common.memory_bytes())?;
    // The limit is that of the store that is written.
    let from = CommonArgs { memory: Some(memory.store), store_limit: None, ..common.clone() };
    let to = CommonArgs { memory: Some(memory.store), ..place::target(common, copy)? };
    place::refuse_same(&from, &to)?;
    let opened = repository::open(&from, Access::Read, RemoteView::AtStart, &context.patience());
    let source = opened.map_err(|failure| of_side(CopySide::Source, failure))?;
    let target = match place::open(context, &to) {
        Ok(target) => target,
        Err(failure) => return close(source, Err(of_side(CopySide::Target, failure))),
    };
    let outcome = copy_between(context, copy, choice, (&source, &target), memory.work);
    let outcome = close(target, outcome);
    let lost = source.repository().lost_frames();
    let outcome = close(source, outcome);
    context.note_lost(&lost);
    outcome
}

/// The snapshots of the command line.
fn choice(copy: &CopyArgs) -> Outcome<CopyChoice<'_>> {
    match (&copy.snapshot, &copy.vm, copy.all) {
        (Some(snapshot), vm, _) => Ok(CopyChoice::Snapshot(snapshot, vm.as_deref())),
        (None, Some(vm), _) => Ok(CopyChoice::Vm(vm)),
        (None, None, true) => Ok(CopyChoice::All),
        (None, None, false) => Err(Failure::usage(
            "which snapshots? give the id of one, --vm NAME for those of a VM, or --all; --since 30d leaves older ones out",
        )),
    }
}

fn copy_between(
    context: &CommandContext<'_>,
    copy: &CopyArgs,
    choice: CopyChoice<'_>,
    (source, target): (&OpenRepository, &OpenRepository),
    memory_bytes: u64,
) -> Outcome<()> {
    let (source, target) = (source.shared(), target.repository());
    let holder = Holder { name: asker::own_name(), address: String::new() };
    let options = CopyOptions { memory_bytes, holder };
    let copier = SnapshotCopier::new(source, target, options);
    let mut copier = copier.map_err(|error| Failure::usage(error.to_string()))?;
    let since_ms = copy
        .since
        .map_or(0, |since| human::now_ms().saturating_sub(u64::try_from(since.as_millis()).unwrap_or(0)));
    let plan = CopyPlan::new(source, target, choice, since_ms).map_err(of_copy)?;
    refuse_older(copy, &plan)?;
    let mut report = CopyReport::new(context, copy, &plan);
    if copy.dry_run {
        report.list(&plan);
        return report.end();
    }
    let stopped = copy_each(context, &plan, &mut copier, &mut report);
    report.conclude();
    match stopped {
        Some(failure) => Err(failure),
        None => report.end(),
    }
}

/// Refuses to copy nothing if one snapshot was named.
fn refuse_older(copy: &CopyArgs, plan: &CopyPlan) -> Outcome<()> {
    match (&copy.snapshot, plan.older()) {
        (Some(_), [snapshot]) => Err(Failure::new(
            exit::DENIED,
            "older",
            format!(
                "snapshot {} is older than the newest snapshot of {} in the repository to copy to, where `latest` would name it; \
                 nothing was copied, copy it to a repository without a newer one",
                snapshot.id.short(),
                snapshot.vm.name
            ),
        )),
        _ => Ok(()),
    }
}

/// Copies all snapshots of the plan; returns the failure that ends the command early.
fn copy_each(
    context: &CommandContext<'_>,
    plan: &CopyPlan,
    copier: &mut SnapshotCopier<'_>,
    report: &mut CopyReport<'_>,
) -> Option<Failure> {
    match copier.hold_present(plan) {
        Ok(held) => report.held = held,
        Err(failure) => return Some(of_copy(failure)),
    }
    // VMs of which a snapshot could not be made at the moment: a later one may not overtake it.
    let mut waiting: HashSet<Uuid> = HashSet::new();
    for snapshot in plan.snapshots() {
        if waiting.contains(&snapshot.vm.uuid) {
            report.waits(snapshot);
            continue;
        }
        let meter = context.meter();
        let outcome = copier.copy(plan, snapshot, &meter, &context.cancel);
        drop(meter);
        match outcome {
            Ok(CopyOutcome::Copied(copy)) => report.copied(&copy),
            Ok(CopyOutcome::Present) => report.present(),
            Err(failure) => {
                let scope = failure.scope();
                let failure = of_snapshot(snapshot, failure);
                if scope == FailureScope::All {
                    return Some(failure);
                }
                report.failed(snapshot, &failure);
                if scope == FailureScope::Vm {
                    waiting.insert(snapshot.vm.uuid);
                }
            }
        }
    }
    None
}

/// The failure of one snapshot.
fn of_snapshot(snapshot: &Snapshot, failure: CopyFailure) -> Failure {
    let failure = of_copy(failure);
    if failure.exit_code == exit::INTERRUPTED {
        return failure;
    }
    let sentence = format!(
        "snapshot {} of {} was not copied: {}",
        snapshot.id.short(),
        snapshot.vm.name,
        failure.sentence
    );
    Failure { sentence, ..failure }
}

fn of_copy(failure: CopyFailure) -> Failure {
    of_side(failure.side, failure.error.into())
}

/// Says in the sentence which repository failed.
fn of_side(side: CopySide, failure: Failure) -> Failure {
    if failure.exit_code == exit::INTERRUPTED {
        return failure;
    }
    let named = match side {
        CopySide::Source => "the repository to copy from",
        CopySide::Target => "the repository to copy to",
    };
    let sentence = format!("{named}: {}", failure.sentence);
    Failure { sentence, ..failure }
}
