//! `copal pds prune`: popular chunks that no snapshot needs go.

use super::super::{Context, close, forget};
use crate::{
    arguments::PdsPrune,
    failure::{Failure, Outcome},
    human,
};
use copal_backup::UnneededPacks;
use copal_node::Access;
use serde_json::json;

pub(crate) fn run(context: &Context<'_>, words: &PdsPrune) -> Outcome<()> {
    let access = match words.dry_run {
        true => Access::Read,
        false => Access::Write,
    };
    let opened = context.open(access)?;
    let meter = context.meter();
    let refused = match words.dry_run {
        true => Ok(()),
        false => forget::refuse_to_free(context, &opened),
    };
    let found = refused.and_then(|()| {
        let repository = opened.repository();
        let found = repository.remove_unneeded(words.dry_run, &meter, &context.cancel);
        found.map_err(Failure::from)
    });
    drop(meter);
    let found = close(opened, found)?;
    let waiting_for: Vec<&str> = found.waiting_for.iter().map(|vm| vm.name.as_str()).collect();
    let fields = json!({
        "command": "pds prune",
        "dry_run": words.dry_run,
        "waiting_for": waiting_for,
        "unneeded_packs": found.unneeded_packs,
        "condemned_packs": found.condemned_packs,
        "spared_packs": found.spared_packs,
        "gone_packs": found.gone_packs,
        "removed_packs": found.removed_packs,
        "removed_bytes": found.removed_bytes,
    });
    let text = || text(words.dry_run, &found, &waiting_for);
    match words.dry_run {
        true => context.output.answer(fields, text),
        false => context.output.summary(fields, text),
    }
    Ok(())
}

fn text(dry_run: bool, found: &UnneededPacks, waiting_for: &[&str]) -> String {
    if dry_run {
        return format!("no snapshot needs a chunk of {} popular packs\n", found.unneeded_packs);
    }
    let mut text =
        format!("{} popular packs removed, {}\n", found.removed_packs, human::bytes(found.removed_bytes));
    if let Some(first) = waiting_for.first() {
        text += &format!(
            "{} VMs are being backed up, such as {first}: run it again when they are not\n",
            waiting_for.len()
        );
    }
    text
}
