//! `copal repair store`: copies the readable data of a damaged repository into a new one.
//!
//! Rows are copied below the layer of volumes and files, so a damaged list of volumes causes no further loss.
//! Then the copy is checked like any repository: its index is built, every chunk is compared with its id, and
//! incomplete snapshots are removed from it.
//!
//! Not here: the copying (`copal_data::rescue`), opening a damaged store (`copal_node`).

use super::{
    CommandContext,
    fields::{self, peak_memory_bytes},
    new_store,
};
use crate::{
    arguments::RepairStore,
    failure::{Failure, Outcome, exit},
    human, password,
    place::RepositoryPlace,
};
use copal_backup::{
    CheckReport, FreeMethod, IndexHome, Listing, Progress, PruneOptions, ReadData, Repository, Snapshot,
    SnapshotId, Stage,
};
use copal_data::{LocalStore, RescueReport};
use copal_node::{Access, MemoryShares, NewStore, NodeError, StoreLocation, UnfinishedStore, refuse_taken};
use copal_object::RecoveryReport;
use copal_volume::VolumeStore;
use serde_json::json;
use std::{collections::BTreeSet, path::Path, sync::Arc};

/// Fate of the snapshots of the damaged repository.
struct SnapshotVerdicts {
    saved: Vec<Snapshot>,
    lost: Vec<Snapshot>,
    /// Snapshots or names of which only a possible existence is known, with reasons.
    unknown: Vec<String>,
}

pub(super) fn run(context: &CommandContext<'_>, words: &RepairStore) -> Outcome<()> {
    let common = &context.arguments.common;
    if RepositoryPlace::shared(&words.to)?.is_some() {
        return Err(Failure::usage(format!(
            "{} is not on this machine; a repaired store needs a new directory, name one with --to",
            words.to.display()
        )));
    }
    refuse_taken(&words.to)?;
    let place = StoreLocation::find(common.repository()?)?;
    let (options, patience) = (common.store_options(), context.patience());
    let (objects, recovery) = place.open_to_save(&options, &patience)?;
    let used = objects.space().live_bytes;
    let choice = words.backend.choice(objects.backend());
    let new = new_store::plan(context, &words.to, choice, NewStore::default())?;
    let from = engine(place.path(), objects, common.memory_bytes(), Access::Read)?;
    let unfinished = UnfinishedStore::start(&words.to, &options, &new)?;
    let (objects, _) = unfinished.open(&options, &patience)?;
    let to = engine(unfinished.path(), objects.clone(), common.memory_bytes(), Access::Write)?;

    let rescued = copy(context, &from, &to, used);
    let lost_of_logs = from.lost_of_logs().to_vec();
    let closed = from.close();
    let rescued = rescued?;
    closed.map_err(of_engine(place.path()))?;

    let volumes: Arc<dyn VolumeStore> = Arc::new(LocalStore::open(to.clone())?);
    let judged = judge(context, &volumes, &to);
    drop(volumes);
    let judged = judged?;
    to.close().map_err(of_engine(unfinished.path()))?;
    objects.close().map_err(|error| Failure::plain("close", format!("closing the new store: {error}")))?;
    unfinished.finish()?;
    conclude(context, &words.to, &judged, &rescued, &recovery, &lost_of_logs)
}

fn engine(
    path: &Path,
    objects: copal_object::Store,
    memory: u64,
    access: Access,
) -> Outcome<copal_kv::Store> {
    let options = copal_kv::Options {
        memory_bytes: MemoryShares::of(memory)?.engine / 2,
        read_only: access == Access::Read,
        salvage: access == Access::Read,
        ..copal_kv::Options::default()
    };
    Ok(copal_kv::Store::open(objects, options).map_err(of_engine(path))?)
}

fn of_engine(path: &Path) -> impl FnOnce(copal_kv::Error) -> NodeError {
    move |source| NodeError::Engine { path: path.to_owned(), source }
}

fn copy(
    context: &CommandContext<'_>,
    from: &copal_kv::Store,
    to: &copal_kv::Store,
    used: u64,
) -> Outcome<RescueReport> {
    let meter = context.meter();
    meter.stage(Stage::ReadData, "copy", used);
    let mut before = 0;
    let rescued = copal_data::rescue(from, to, &mut |bytes| {
        meter.advance(bytes - before);
        before = bytes;
        !context.cancel.is_cancelled()
    });
    drop(meter);
    let rescued = rescued.map_err(copal_backup::Error::from)?;
    for lost in &rescued.lost {
        context.output.notice(lost);
    }
    Ok(rescued)
}

/// Finds the complete snapshots of the copy, and removes the others from it.
fn judge(
    context: &CommandContext<'_>,
    volumes: &Arc<dyn VolumeStore>,
    kv: &copal_kv::Store,
) -> Outcome<SnapshotVerdicts> {
    let mut found = Repository::find(Arc::clone(volumes))?.ok_or(copal_backup::Error::NoRepository)?;
    let unlock = password::for_open(&context.arguments.common, found.needs_password()?)?;
    let repository = found.open(IndexHome::Kv(kv.clone()), &unlock)?;
    let repository = context.arguments.common.with_threads(repository);
    let mut unknown = repository.salvage_catalog()?;
    let meter = context.meter();
    repository.repair_index(&meter, &context.cancel)?;
    let report = repository.check(ReadData::All, &meter, &context.cancel)?;
    drop(meter);
    let Listing { snapshots, damaged } = repository.list(None)?;
    let hurt = hurt(&report);
    let (lost, saved): (Vec<Snapshot>, Vec<Snapshot>) = snapshots
        .into_iter()
        .partition(|snapshot| snapshot.damage.is_some() || hurt.contains(&snapshot.id.0));
    let ids: Vec<SnapshotId> = lost.iter().map(|snapshot| snapshot.id).collect();
    let held: Vec<SnapshotId> =
        lost.iter().filter(|snapshot| snapshot.held_until_ms > 0).map(|snapshot| snapshot.id).collect();
    if !held.is_empty() {
        repository.hold(&held, 0)?;
    }
    if !ids.is_empty() {
        repository.forget(&ids)?;
    }
    if !report.is_clean() && damaged.is_empty() {
        // Damaged data belongs to lost snapshots, or to none.
        let meter = context.meter();
        let exact = PruneOptions {
            // The lost part of a log may have recorded which data is dead.
            method: FreeMethod::Exact,
            ..PruneOptions::default()
        };
        repository.prune(&exact, &meter, &context.cancel)?;
    }
    let vms = damaged.into_iter();
    unknown.extend(vms.map(|(vm, why)| format!("snapshots of {}: {why}", human::visible(&vm.name))));
    Ok(SnapshotVerdicts { saved, lost, unknown })
}

fn hurt(report: &CheckReport) -> BTreeSet<[u8; 16]> {
    let named = report.damages.iter().flat_map(|damage| &damage.snapshots);
    named.chain(&report.more_snapshots).map(|id| id.0).collect()
}

/// Last writes of the old store that could not be copied, as sentences.
fn missing(recovery: &RecoveryReport, lost_of_logs: &[String]) -> Vec<String> {
    let older = recovery.older_state.as_ref().map(|older| {
        let (generation, newest) = (older.generation, older.newest);
        let commits = match older.missing_commits {
            0 => "the last writes may be missing".to_owned(),
            commits => format!("at least {commits} commits are missing"),
        };
        format!("the newest tables cannot be read: state {generation} was saved, the newest is {newest}; {commits}")
    });
    let tail =
        recovery.tail_lost.as_ref().map(|reason| format!("the last acknowledged writes are lost: {reason}"));
    let logs = lost_of_logs
        .iter()
        .map(|what| format!("acknowledged writes are lost, deletions perhaps among them: {what}"));
    older.into_iter().chain(tail).chain(logs).collect()
}

fn conclude(
    context: &CommandContext<'_>,
    to: &Path,
    judged: &SnapshotVerdicts,
    rescued: &RescueReport,
    recovery: &RecoveryReport,
    lost_of_logs: &[String],
) -> Outcome<()> {
    let missing = missing(recovery, lost_of_logs);
    let older = recovery.older_state.as_ref().map(|older| {
        json!({
            "generation": older.generation,
            "newest": older.newest,
            "missing_commits": older.missing_commits,
        })
    });
    let fields = json!({
        "command": "repair store",
        "repository": to.display().to_string(),
        "saved": fields::snapshots(&judged.saved),
        "lost": fields::snapshots(&judged.lost),
        "unknown": judged.unknown,
        "rows": rescued.rows,
        "bytes": rescued.bytes,
        "damaged_rows": rescued.damaged_rows,
        "lost_ranges": rescued.lost,
        "older_state": older,
        "tail_lost": recovery.tail_lost,
        "lost_of_logs": lost_of_logs,
        "peak_memory_bytes": peak_memory_bytes(),
    });
    let is_complete = judged.lost.is_empty() && judged.unknown.is_empty() && missing.is_empty();
    context.output.summary(fields, || as_text(to, judged, &missing));
    if is_complete {
        return Ok(());
    }
    Err(Failure::new(
        exit::DAMAGED,
        "damaged",
        format!(
            "not everything could be saved; {} holds all undamaged snapshots, the old store was not changed",
            to.display()
        ),
    ))
}

fn as_text(to: &Path, judged: &SnapshotVerdicts, missing: &[String]) -> String {
    let mut text = String::new();
    for (word, snapshots) in [("saved", &judged.saved), ("lost", &judged.lost)] {
        for snapshot in snapshots {
            text.push_str(&format!(
                "{word}  {}  {}  {}\n",
                snapshot.id.short(),
                human::local_time(snapshot.created_ms),
                human::visible(&snapshot.vm.name)
            ));
        }
    }
    for vm in &judged.unknown {
        text.push_str(&format!("lost  perhaps {vm}\n"));
    }
    for what in missing {
        text.push_str(&format!("lost  {what}\n"));
    }
    text.push_str(&format!(
        "{} snapshots saved in {}, {} lost\n",
        judged.saved.len(),
        to.display(),
        judged.lost.len()
    ));
    text
}
