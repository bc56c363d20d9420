//! `copal vm`, `copal sessions`, `copal stats --vm`, `copal repair leak`: single VMs of a repository.

use super::{
    CommandContext, close,
    fields::{MeasuredFields, peak_memory_bytes},
    forget, prune,
};
use crate::{
    arguments::{RepairLeak, SessionsFence, VmRm},
    failure::{Failure, Outcome, exit},
    human,
    repository::OpenRepository,
    repository::RemoteView,
};
use copal_backup::{HolderInfo, Vm, VmStats};
use copal_node::Access;
use serde::Serialize;
use serde_json::json;

/// A VM and its snapshots.
#[derive(Serialize)]
struct ListedVm<'a> {
    #[serde(flatten)]
    vm: &'a Vm,
    snapshots: usize,
    newest_ms: Option<u64>,
}

/// A backup in progress.
#[derive(Serialize)]
struct SessionFields<'a> {
    vm: &'a str,
    session: String,
    holder: Option<&'a HolderInfo>,
}

/// Size and counts of a VM.
#[derive(Serialize)]
struct VmStatsFields<'a> {
    vm: Option<&'a str>,
    uuid: Option<String>,
    #[serde(flatten)]
    stats: &'a VmStats,
    repair_due: bool,
}

pub(super) fn list(context: &CommandContext<'_>) -> Outcome<()> {
    let opened = context.open_for(Access::Read, RemoteView::AtStart)?;
    let repository = opened.repository();
    let listed = repository.vms().and_then(|vms| Ok((vms, repository.list(None)?)));
    let (vms, listing) = close(opened, listed.map_err(Failure::from))?;
    let count = |name: &str| {
        let snapshots = listing.snapshots.iter();
        snapshots.filter(|snapshot| snapshot.vm.name == name).count()
    };
    let newest = |name: &str| {
        let mut snapshots = listing.snapshots.iter();
        snapshots.rfind(|snapshot| snapshot.vm.name == name).map(|snapshot| snapshot.created_ms)
    };
    let listed =
        vms.iter().map(|vm| ListedVm { vm, snapshots: count(&vm.name), newest_ms: newest(&vm.name) });
    let listed: Vec<_> = listed.collect();
    context.output.answer(json!({ "command": "vm ls", "vms": listed }), || {
        let row = |listed: &ListedVm<'_>| {
            let newest = listed.newest_ms.map_or_else(|| "-".to_owned(), human::local_time);
            vec![listed.vm.name.clone(), listed.snapshots.to_string(), newest, listed.vm.uuid.to_string()]
        };
        let rows: Vec<Vec<String>> = listed.iter().map(row).collect();
        human::table(&["VM", "Snapshots", "Newest", "UUID"], &rows)
    });
    Ok(())
}

pub(super) fn sessions(context: &CommandContext<'_>) -> Outcome<()> {
    let opened = context.open_for(Access::Read, RemoteView::AtStart)?;
    let sessions = opened.repository().sessions().map_err(Failure::from);
    let sessions = close(opened, sessions)?;
    let open = sessions.iter().flat_map(|(vm, open)| open.iter().map(move |open| (vm, open)));
    let open = open.map(|(vm, open)| SessionFields {
        vm: &vm.name,
        session: open.session.to_string(),
        holder: open.info.as_ref(),
    });
    let open: Vec<_> = open.collect();
    context.output.answer(json!({ "command": "sessions ls", "sessions": open }), || match open.is_empty() {
        true => "no backup is under way\n".to_owned(),
        false => {
            let row = |open: &SessionFields<'_>| {
                let (holder, last_heartbeat) = match open.holder {
                    Some(info) => {
                        (human::visible(&info.name).into_owned(), human::age(info.beat_age_ms / 1000))
                    }
                    None => ("-".to_owned(), "-".to_owned()),
                };
                vec![open.vm.to_owned(), open.session.clone(), holder, last_heartbeat]
            };
            let rows: Vec<Vec<String>> = open.iter().map(row).collect();
            human::table(&["VM", "Session", "Held by", "Last heartbeat"], &rows)
        }
    });
    Ok(())
}

pub(super) fn fence(context: &CommandContext<'_>, words: &SessionsFence) -> Outcome<()> {
    let opened = context.open(Access::Write)?;
    let fenced = opened.repository().fence_sessions(&words.vm).map_err(Failure::from);
    let fenced = close(opened, fenced)?;
    let fields = json!({ "command": "sessions fence", "vm": words.vm, "fenced": fenced });
    context.output.summary(fields, || match fenced {
        0 => format!("no backup of {} was under way\n", words.vm),
        count => format!("ended {count} backups of {}\n", words.vm),
    });
    Ok(())
}

pub(super) fn stats(context: &CommandContext<'_>, name: &str) -> Outcome<()> {
    let opened = context.open_for(Access::Read, RemoteView::AtStart)?;
    let stats = opened.repository().vm_stats(name).map_err(Failure::from);
    let stats = close(opened, stats)?;
    let fields = VmStatsFields {
        vm: stats.vm.as_ref().map(|vm| vm.name.as_str()),
        uuid: stats.vm.as_ref().map(|vm| vm.uuid.to_string()),
        stats: &stats,
        repair_due: stats.leaks_more_than(VmStats::LEAK_SHARE_PERCENT),
    };
    context.output.answer(MeasuredFields::new("stats", fields), || text(&stats));
    Ok(())
}

fn text(stats: &VmStats) -> String {
    let snapshots = match stats.damaged_snapshots {
        0 => stats.snapshots.to_string(),
        damaged => format!("{}, {damaged} of them damaged", stats.snapshots),
    };
    let rows = [
        ("VM", stats.vm.as_ref().map(|vm| vm.name.clone()).unwrap_or_default()),
        ("Snapshots", snapshots),
        ("  forgotten", stats.forgotten.to_string()),
        ("Disks as they were", human::bytes(stats.logical_bytes)),
        ("Chunks of its own", human::bytes(stats.chunk_pack_bytes)),
        ("  of it dead", human::bytes(stats.dead_bytes)),
        ("Recipes", human::bytes(stats.recipe_pack_bytes)),
        ("Manifests, vectors", human::bytes(stats.metadata_bytes)),
        ("Leaked, by estimate", leaked(stats)),
        ("Unfinished backups", stats.unfinished_sessions.to_string()),
    ];
    rows.iter().map(|(name, value)| format!("{name:<20} {value}\n")).collect()
}

fn leaked(stats: &VmStats) -> String {
    let bytes = human::bytes(stats.leak_estimate_bytes);
    match stats.leaks_more_than(VmStats::LEAK_SHARE_PERCENT) {
        true => format!("{bytes}, a repair is due: `copal repair leak`"),
        false => bytes,
    }
}

pub(super) fn repair_leak(context: &CommandContext<'_>, words: &RepairLeak) -> Outcome<()> {
    let memory_bytes = context.memory()?.work;
    let opened = context.open(Access::Write)?;
    let meter = context.meter();
    let repaired = forget::refuse_to_free(context, &opened).and_then(|()| {
        let repository = opened.repository();
        let repaired = repository.repair_leak(&words.vm, memory_bytes, &meter, &context.cancel);
        repaired.map_err(Failure::from)
    });
    drop(meter);
    let summary = close(opened, repaired)?;
    let fields = json!({
        "command": "repair leak",
        "vm": words.vm,
        "live_frames": summary.live_frames,
        "dead_frames": summary.dead_frames,
        "removed_packs": summary.removed_packs,
        "rewritten_packs": summary.rewritten_packs,
        "swept_sessions": summary.swept_sessions,
        "freed_bytes": prune::freed_bytes(&summary),
        "unused_bytes": summary.unused_bytes,
        "read_bytes": summary.read_bytes,
        "mark_passes": summary.mark_passes,
        "peak_memory_bytes": peak_memory_bytes(),
    });
    context.output.summary(fields, || {
        format!(
            "{} of {} frames are dead: {} packs removed, {} rewritten, {} freed; {} wait in packs that are needed\n",
            summary.dead_frames,
            summary.dead_frames + summary.live_frames,
            summary.removed_packs,
            summary.rewritten_packs,
            human::bytes(prune::freed_bytes(&summary)),
            human::bytes(summary.unused_bytes),
        )
    });
    Ok(())
}

pub(super) fn remove(context: &CommandContext<'_>, words: &VmRm) -> Outcome<()> {
    let opened = context.open(Access::Write)?;
    let removed = refuse_in_use(context, &opened, &words.vm).and_then(|()| {
        let repository = opened.repository();
        let removed = repository.remove_vm(&words.vm, words.force, words.accept_clock);
        removed.map_err(Failure::from)
    });
    let vm = close(opened, removed)?;
    let fields = json!({ "command": "vm rm", "vm": vm.name, "uuid": vm.uuid.to_string() });
    context.output.summary(fields, || format!("removed VM {} and all its data\n", vm.name));
    Ok(())
}

/// Refuses to remove a VM while an export shows one of its snapshots.
fn refuse_in_use(context: &CommandContext<'_>, opened: &OpenRepository, name: &str) -> Outcome<()> {
    let repository = opened.repository();
    let vms = repository.vms()?;
    let is_named = |vm: &&Vm| vm.name == name || vm.uuid.to_string() == name;
    let Some(vm) = vms.iter().find(is_named) else {
        // The removal itself reports such errors.
        return Ok(());
    };
    let snapshots = repository.list(Some(&vm.uuid.to_string()))?.snapshots;
    let pins = forget::pins_of_all_hosts(context, opened)?;
    match pins.refusal_to_remove(vm.uuid, &snapshots) {
        Some(refusal) => Err(Failure::new(exit::DENIED, "denied", refusal)),
        None => Ok(()),
    }
}
