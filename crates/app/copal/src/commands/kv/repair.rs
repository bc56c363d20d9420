//! `copal kv repair`.

use super::{bare, close, engine, failed, verify};
use crate::{
    arguments::kv::{EnginePlace, KvRepairArgs},
    commands::CommandContext,
    failure::{Failure, Outcome, exit},
    human,
};
use copal_kv::{DamagedRange, Keyspace, Options, Store};
use copal_node::{Access, MemoryShares, NodeError};
use serde_json::json;
use std::{ops::Bound, path::Path};

/// Counts for the summary.
#[derive(Default)]
struct RepairResult {
    repaired: Vec<DamagedRange>,
    entries: u64,
    bytes: u64,
}

pub(super) fn run(
    context: &CommandContext<'_>,
    place: &EnginePlace<'_>,
    words: &KvRepairArgs,
) -> Outcome<()> {
    let access = if words.dry_run { Access::Read } else { Access::Write };
    let replica = words.from.as_ref().map(|path| open_replica(place, path)).transpose()?;
    let (_, store) = engine(place, access)?;
    let done = repair(context, &store, replica.as_ref(), words);
    if let Some(replica) = replica {
        close(&replica, Access::Read)?;
    }
    close(&store, access)?;
    let (done, left) = done?;
    let ranges: Vec<_> = done.repaired.iter().map(verify::range).collect();
    let fields = json!({
        "command": "kv repair",
        "dry_run": words.dry_run,
        "ranges": ranges,
        "entries": done.entries,
        "bytes": done.bytes,
        "left": left.iter().map(verify::range).collect::<Vec<_>>(),
    });
    let text = || {
        let mut text = verify::as_text(&done.repaired);
        text.push_str(&match (done.repaired.len(), words.dry_run) {
            (0, _) => "nothing to repair\n".to_owned(),
            (count, true) => format!("{count} ranges would be repaired; nothing was changed\n"),
            (count, false) => format!(
                "{count} ranges repaired with {} entries ({})\n",
                done.entries,
                human::bytes(done.bytes)
            ),
        });
        text
    };
    match words.dry_run {
        true => context.output.answer(fields, text),
        false => context.output.summary(fields, text),
    }
    if left.is_empty() || words.dry_run {
        return Ok(());
    }
    Err(Failure::new(
        exit::DAMAGED,
        "damaged",
        format!("{} damaged ranges are left; `copal kv verify --deep` names them", left.len()),
    ))
}

fn open_replica(place: &EnginePlace<'_>, path: &Path) -> Outcome<Store> {
    let (objects, _) = bare(path)?.open(Access::Read, &place.common.store_options(), &place.patience)?;
    let options = Options {
        memory_bytes: MemoryShares::of(place.common.memory_bytes())?.engine / 2,
        read_only: true,
        ..Options::default()
    };
    let opened =
        Store::open(objects, options).map_err(|source| NodeError::Engine { path: path.to_owned(), source });
    Ok(opened?)
}

/// Repairs the damaged ranges; returns also the ranges that are still damaged.
fn repair(
    context: &CommandContext<'_>,
    store: &Store,
    replica: Option<&Store>,
    words: &KvRepairArgs,
) -> Outcome<(RepairResult, Vec<DamagedRange>)> {
    let found = store.scrub(u64::MAX).and_then(|scrub| scrub.wait());
    found.map_err(failed)?;
    let wanted = |range: &DamagedRange| words.keyspace.as_ref().is_none_or(|name| *name == range.keyspace);
    let mut done = RepairResult::default();
    for range in store.damaged_ranges().into_iter().filter(wanted) {
        if context.cancel.is_cancelled() {
            break;
        }
        if !words.dry_run {
            let space = keyspace(store, &range.keyspace)?;
            let bounds = bounds(&range);
            let report = match replica {
                Some(replica) => {
                    let source = keyspace(replica, &range.keyspace)?;
                    space.repair(bounds, source.iter(bounds))
                }
                None => space.salvage(bounds),
            };
            let report = report.map_err(failed)?;
            done.entries += report.entries;
            done.bytes += report.bytes;
        }
        done.repaired.push(range);
    }
    Ok((done, store.damaged_ranges()))
}

fn keyspace(store: &Store, name: &str) -> Outcome<Keyspace> {
    let missing = || {
        Failure::plain(
            "no_keyspace",
            format!("the other store has no keyspace {name}: it is no copy of this one"),
        )
    };
    store.open_keyspace(name).map_err(failed)?.ok_or_else(missing)
}

fn bounds(range: &DamagedRange) -> (Bound<&[u8]>, Bound<&[u8]>) {
    let end = range.end.as_ref().map_or(Bound::Unbounded, |end| Bound::Excluded(&end[..]));
    (Bound::Included(&range.start[..]), end)
}
