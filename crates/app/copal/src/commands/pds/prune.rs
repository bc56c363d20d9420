//! `copal pds prune`: removes popular chunks that no snapshot needs.

use super::super::{CommandContext, close, fields::CommandFields, forget};
use crate::{
    arguments::PdsPrune,
    failure::{Failure, Outcome},
    human,
};
use copal_backup::UnneededPacks;
use copal_node::Access;
use serde::Serialize;

/// Fields of the summary.
#[derive(Serialize)]
struct UnneededFields<'a> {
    dry_run: bool,
    #[serde(flatten)]
    found: &'a UnneededPacks,
}

pub(crate) fn run(context: &CommandContext<'_>, words: &PdsPrune) -> Outcome<()> {
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
    let fields = CommandFields::new("pds prune", UnneededFields { dry_run: words.dry_run, found: &found });
    let text = || text(words.dry_run, &found);
    match words.dry_run {
        true => context.output.answer(fields, text),
        false => context.output.summary(fields, text),
    }
    Ok(())
}

fn text(dry_run: bool, found: &UnneededPacks) -> String {
    if dry_run {
        return format!("no snapshot needs a chunk of {} popular packs\n", found.unneeded_packs);
    }
    let mut text =
        format!("{} popular packs removed, {}\n", found.removed_packs, human::bytes(found.removed_bytes));
    if let Some(first) = found.waiting_for.first() {
        text += &format!(
            "{} VMs are being backed up, such as {}: run it again when they are not\n",
            found.waiting_for.len(),
            first.name
        );
    }
    text
}
