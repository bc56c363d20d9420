//! `copal device df`.

use super::place;
use crate::{arguments::DeviceDfArgs, commands::CommandContext, failure::Outcome, human};
use copal_node::Access;
use copal_object::{BackendKind, LogSegments, ObjectId, ObjectKind, ObjectStat, Store, StoreSpace};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Objects that are listed at a time.
const LIST_AT_ONCE: usize = 1000;
/// Share of a store in segments that its owner should not exceed: above it, the cleaner writes several pages for each
/// new one.
const FILL_PERCENT_MAX: u64 = 85;

/// Objects of one kind or label.
#[derive(Clone, Copy, Default)]
struct ObjectUse {
    objects: u64,
    allocated_bytes: u64,
}

/// Objects of a store by kind and by label.
#[derive(Default)]
struct StoreUse {
    kinds: BTreeMap<&'static str, ObjectUse>,
    labels: BTreeMap<String, ObjectUse>,
}

impl StoreUse {
    fn of(store: &Store) -> StoreUse {
        let mut found = StoreUse::default();
        let mut from = Some(0);
        while let Some(first) = from {
            let stats = store.list(ObjectId(first), LIST_AT_ONCE);
            from = stats.last().and_then(|stat| stat.id.0.checked_add(1));
            stats.iter().for_each(|stat| found.add(stat));
        }
        found
    }

    fn add(&mut self, stat: &ObjectStat) {
        // Behind a zero, a label may have a number of its own.
        let name = stat.label.split(|byte| *byte == 0).next().unwrap_or(&[]);
        let label = self.labels.entry(name.escape_ascii().to_string()).or_default();
        for of in [label, self.kinds.entry(kind_name(stat)).or_default()] {
            of.objects += 1;
            of.allocated_bytes += stat.allocated_bytes;
        }
    }
}

fn kind_name(stat: &ObjectStat) -> &'static str {
    match stat.kind {
        ObjectKind::Stream => "stream",
        _ if stat.sealed => "sealed",
        _ => "plain",
    }
}

pub(super) fn run(context: &CommandContext<'_>, words: &DeviceDfArgs) -> Outcome<()> {
    let place = place(&words.path)?;
    let options = context.arguments.common.store_options();
    let (store, _) = place.open(Access::Read, &options, &context.patience())?;
    let (space, unwritten, segments) = (store.space(), store.unwritten_bytes(), store.segments());
    let found = StoreUse::of(&store);
    let mut fields = json!({
        "command": "device df",
        "store": place.path().display().to_string(),
        "backend": store.backend().name(),
        "size_bytes": space.size_bytes,
        "live_bytes": space.live_bytes,
        "staged_bytes": space.staged_bytes,
        "quarantine_bytes": space.quarantine_bytes,
        "reserved_bytes": space.reserved_bytes,
        "free_bytes": space.free_bytes,
        "hollow_bytes": space.hollow_bytes,
        "unwritten_bytes": unwritten,
        "fill_percent": fill_percent(&space),
        "kinds": named(&found.kinds, "kind"),
        "labels": named(&found.labels, "label"),
    });
    if let Some(segments) = &segments {
        fields["segments"] = json!({
            "segment_bytes": segments.segment_bytes,
            "usable": segments.usable,
            "free": segments.free,
            "closed": segments.closed,
            "commit_head": segments.commit_head,
            "data_head": segments.data_head,
            "checkpoint_heads": segments.checkpoint_heads,
            "survivor_head": segments.survivor_head,
        });
    }
    context.output.answer(fields, || as_text(store.backend(), &space, unwritten, segments.as_ref(), &found));
    Ok(())
}

fn fill_percent(space: &StoreSpace) -> u64 {
    (space.live_bytes.saturating_mul(100)).checked_div(space.size_bytes).unwrap_or(0)
}

fn named<N: AsRef<str>>(uses: &BTreeMap<N, ObjectUse>, name: &str) -> Vec<Value> {
    let one = |(of, counted): (&N, &ObjectUse)| {
        let mut fields = json!({ "objects": counted.objects, "allocated_bytes": counted.allocated_bytes });
        fields[name] = json!(of.as_ref());
        fields
    };
    uses.iter().map(one).collect()
}

fn as_text(
    backend: BackendKind,
    space: &StoreSpace,
    unwritten: u64,
    segments: Option<&LogSegments>,
    found: &StoreUse,
) -> String {
    let row = |name: &str, bytes: u64| vec![name.to_owned(), human::bytes(bytes)];
    let mut rows = vec![
        row("Live", space.live_bytes),
        row("Staged", space.staged_bytes),
        row("Quarantine", space.quarantine_bytes),
        row("Reserved", space.reserved_bytes),
        row("Free", space.free_bytes),
    ];
    if space.hollow_bytes > 0 {
        rows.push(row("Given back to the host", space.hollow_bytes));
    }
    rows.push(row("All", space.size_bytes));
    if unwritten > 0 {
        rows.push(row("Free and never written", unwritten));
    }
    let mut text = human::table(&[&format!("Space, backend {}", backend.name()), "Bytes"], &rows);
    let of = |name: &str, counted: &ObjectUse| {
        vec![name.to_owned(), counted.objects.to_string(), human::bytes(counted.allocated_bytes)]
    };
    let kinds: Vec<Vec<String>> = found.kinds.iter().map(|(name, counted)| of(name, counted)).collect();
    text.push('\n');
    text.push_str(&human::table(&["Kind", "Objects", "Bytes"], &kinds));
    let label =
        |(name, counted): (&String, &ObjectUse)| of(if name.is_empty() { "-" } else { name }, counted);
    let labels: Vec<Vec<String>> = found.labels.iter().map(label).collect();
    text.push('\n');
    text.push_str(&human::table(&["Label", "Objects", "Bytes"], &labels));
    if let Some(segments) = segments {
        text.push_str(&format!(
            "\nsegments of {}: {} free, {} closed, {} of the commit head, {} of the data head, {} of the heads for \
             checkpoints, {} of the cleaner's head\n",
            human::bytes(segments.segment_bytes),
            segments.free,
            segments.closed,
            segments.commit_head,
            segments.data_head,
            segments.checkpoint_heads,
            segments.survivor_head
        ));
        let fill = fill_percent(space);
        text.push_str(&format!(
            "filled to {fill} %; a store in segments should stay below {FILL_PERCENT_MAX} %\n"
        ));
    }
    text
}
