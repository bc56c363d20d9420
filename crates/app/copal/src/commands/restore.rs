//! `copal restore`.

mod target;

use super::{CommandContext, close, fields::MeasuredFields};
use crate::{
    arguments::RestoreArgs,
    failure::{Failure, Outcome, exit},
    human,
    place::RepositoryPlace,
    repository::OpenRepository,
    repository::RemoteView,
    stdout,
};
use copal_backup::{RestoreRequest, RestoreSummary, Snapshot, Vm};
use copal_node::Access;
use serde::Serialize;
use std::{borrow::Cow, ffi::OsStr, io::IsTerminal, path::Path};

/// Fields of the summary.
#[derive(Serialize)]
struct RestoreFields<'a> {
    #[serde(flatten)]
    summary: &'a RestoreSummary,
    vm: &'a Vm,
    target: Cow<'a, str>,
}

pub(super) fn run(context: &CommandContext<'_>, restore: &RestoreArgs) -> Outcome<()> {
    let memory = context.memory()?;
    let to_stdout = restore.target == "-";
    if to_stdout && context.output.is_json() {
        return Err(Failure::usage(
            "standard output cannot carry both the disk and JSON; give --target a file",
        ));
    }
    if to_stdout && stdout::is_closed() {
        return Err(Failure::plain(
            "target",
            "standard output is closed; send it into a pipe or a file, nothing was restored",
        ));
    }
    if to_stdout && std::io::stdout().is_terminal() {
        return Err(Failure::usage("standard output is a terminal; send it into a pipe or a file"));
    }
    let opened = context.open_for(Access::Read, RemoteView::AtStart)?;
    let outcome = copy(context, restore, &opened, memory.work);
    let lost = opened.repository().lost_frames();
    let outcome = close(opened, outcome);
    context.note_lost(&lost);
    let (snapshot, summary) = outcome?;
    let fields =
        RestoreFields { summary: &summary, vm: &snapshot.vm, target: restore.target.to_string_lossy() };
    let text = || {
        format!(
            "restored {} of snapshot {} ({}) to {}: {}, {} of them holes, {}\n",
            human::visible(&summary.disk),
            summary.snapshot.short(),
            human::visible(&snapshot.vm.name),
            restore.target.to_string_lossy(),
            human::bytes(summary.size_bytes),
            human::bytes(summary.hole_bytes),
            human::seconds(summary.duration.as_secs_f64()),
        )
    };
    if to_stdout {
        context.output.notice(text().trim_end());
    } else {
        context.output.summary(MeasuredFields::new("restore", fields), text);
    }
    Ok(())
}

fn copy(
    context: &CommandContext<'_>,
    restore: &RestoreArgs,
    opened: &OpenRepository,
    memory_bytes: u64,
) -> Outcome<(Snapshot, RestoreSummary)> {
    let repository = opened.repository();
    let snapshot = repository.resolve(&restore.which.snapshot, restore.which.vm.as_deref())?;
    refuse_unknown_disk(&snapshot, restore.disk.as_deref())?;
    let mut request = RestoreRequest::new(snapshot.id);
    request.disk.clone_from(&restore.disk);
    request.fetches = usize::from(restore.fetches);
    request.memory_bytes = memory_bytes;
    let place = RepositoryPlace::find(&context.arguments.common)?;
    let target = target::open(&place, &restore.target, restore.force)?;
    let meter = context.meter();
    let summary = repository.restore(&request, &*target, &meter, &context.cancel);
    drop(meter);
    match summary {
        // The interruption takes precedence: a pipe whose reader was interrupted too reports a failed write.
        Err(_) if context.cancel.is_cancelled() => Err(interrupted(&restore.target)),
        summary => Ok((snapshot, summary?)),
    }
}

/// The failure after Ctrl-C, with the state of the target: a file appears completely or not at all; any other
/// target holds the part written so far.
fn interrupted(target: &OsStr) -> Failure {
    let path = Path::new(target);
    let lossy = target.to_string_lossy();
    let target = &*lossy;
    let kept = match path.metadata() {
        _ if target == "-" => "a part of the disk went to standard output".to_owned(),
        _ if target::is_nbd(target) => format!("{target} holds a part of the disk"),
        Err(_) => format!("nothing was kept, there is no {target}"),
        Ok(meta) if meta.is_file() => format!("{target} is unchanged"),
        Ok(_) => format!("{target} holds a part of the disk"),
    };
    let sentence = format!("interrupted; {kept}, the store is as it was, run the command again");
    Failure::new(exit::INTERRUPTED, "cancelled", sentence)
}

/// Checked before the target is opened: a mistyped name must not destroy an existing file.
fn refuse_unknown_disk(snapshot: &Snapshot, disk: Option<&str>) -> Outcome<()> {
    let names: Vec<&str> = snapshot.disks.iter().map(|disk| disk.name.as_str()).collect();
    match disk {
        Some(name) if !names.contains(&name) => Err(Failure::plain(
            "not_found",
            format!("snapshot {} has no disk {name}; it has {}", snapshot.id.short(), names.join(", ")),
        )),
        None if names.len() != 1 => Err(Failure::usage(format!(
            "snapshot {} has {} disks; choose one with --disk: {}",
            snapshot.id.short(),
            names.len(),
            names.join(", ")
        ))),
        _ => Ok(()),
    }
}
