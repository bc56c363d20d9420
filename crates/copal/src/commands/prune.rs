//! `copal prune` and `copal delete`: space returns.

use super::{
    Context, as_json, close,
    forget::{self, Judged},
    resolve_all,
};
use crate::{
    arguments::{Delete, Prune},
    failure::{Failure, Outcome},
    human,
    repository::{Access, Opened},
};
use copal_backup::{PruneOptions, PruneSummary};
use serde_json::{Value, json};

pub(super) fn delete(context: &Context<'_>, delete: &Delete) -> Outcome<()> {
    let opened = context.open(Access::Write)?;
    let outcome = free(context, &opened, delete);
    let (forgotten, summary, store_bytes) = close(opened, outcome)?;
    let fields = fields("delete", false, json!([]), forgotten, &summary, store_bytes);
    context.output.summary(fields, || text(&summary, store_bytes));
    Ok(())
}

fn free(context: &Context<'_>, opened: &Opened, delete: &Delete) -> Outcome<(u64, PruneSummary, u64)> {
    let snapshots = resolve_all(opened, &delete.snapshots, None)?;
    let ids: Vec<_> = snapshots.iter().map(|snapshot| snapshot.id).collect();
    if !ids.is_empty() {
        opened.repository().forget(&ids)?;
    }
    let meter = context.meter();
    let summary = opened.repository().delete(&meter, &context.cancel)?;
    drop(meter);
    Ok((ids.len() as u64, summary, opened.space().live_bytes))
}

pub(super) fn prune(context: &Context<'_>, prune: &Prune) -> Outcome<()> {
    let policy = forget::policy(&prune.keep);
    if policy.is_empty() && (prune.vm.is_some() || prune.force) {
        return Err(Failure::usage(
            "--vm and --force belong to a policy; say what to keep (--keep-last 3)",
        ));
    }
    let memory_bytes = context.memory()?.pipeline;
    let opened = context.open(if prune.dry_run {
        Access::Read
    } else {
        Access::Write
    })?;
    let work = || -> Outcome<(Vec<Judged>, PruneSummary, u64)> {
        let judged = match policy.is_empty() {
            true => Vec::new(),
            false => forget::by_policy(&opened, prune.vm.as_deref(), &policy, prune.force)?,
        };
        if !prune.dry_run {
            forget::forget_all(&opened, &judged)?;
        }
        let options = PruneOptions {
            max_unused_percent: prune.max_unused,
            dry_run: prune.dry_run,
            memory_bytes,
        };
        let meter = context.meter();
        let summary = opened.repository().prune(&options, &meter, &context.cancel)?;
        drop(meter);
        Ok((judged, summary, opened.space().live_bytes))
    };
    let outcome = work();
    let (judged, summary, store_bytes) = close(opened, outcome)?;
    let forgotten = judged.iter().filter(|one| !one.is_kept()).count() as u64;
    let fields = fields(
        "prune",
        prune.dry_run,
        forget::judged_json(&judged),
        forgotten,
        &summary,
        store_bytes,
    );
    context.output.summary(fields, || {
        let mut words = String::new();
        if !judged.is_empty() {
            words.push_str(&forget::judged_text(&judged, prune.dry_run));
        }
        if prune.dry_run && forgotten > 0 {
            words.push_str(
                "Without what these snapshots hold alone, which is counted once they are forgotten:\n",
            );
        }
        words + &text(&summary, store_bytes)
    });
    Ok(())
}

fn fields(
    command: &str,
    dry_run: bool,
    snapshots: Value,
    forgotten: u64,
    summary: &PruneSummary,
    store_bytes: u64,
) -> Value {
    json!({
        "command": command,
        "dry_run": dry_run,
        "forgotten": forgotten,
        "snapshots": snapshots,
        "swept_sessions": summary.swept_sessions,
        "live_frames": summary.live_frames,
        "dead_frames": summary.dead_frames,
        "removed_packs": summary.removed_packs,
        "rewritten_packs": summary.rewritten_packs,
        "before_bytes": summary.before_bytes,
        "after_bytes": summary.after_bytes,
        "freed_bytes": summary.before_bytes.saturating_sub(summary.after_bytes),
        "mark_passes": summary.mark_passes,
        "store_live_bytes": store_bytes,
        "peak_memory_bytes": as_json::peak_memory_bytes(),
    })
}

fn text(summary: &PruneSummary, store_bytes: u64) -> String {
    let freed = summary.before_bytes.saturating_sub(summary.after_bytes);
    format!(
        "{} packs removed, {} rewritten, {} freed; {} in packs, {} in the store\n",
        summary.removed_packs,
        summary.rewritten_packs,
        human::bytes(freed),
        human::bytes(summary.after_bytes),
        human::bytes(store_bytes),
    )
}
