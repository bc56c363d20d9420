//! `copal device scrub`.

use super::{FoundDamages, place, read_data};
use crate::{
    arguments::DeviceScrubArgs,
    commands::CommandContext,
    failure::{Failure, Outcome, exit},
    human,
};
use copal_node::Access;
use copal_object::{Store, StoreScrubProgress};
use serde_json::json;
use std::path::Path;

const ADVICE: &str = "put back a good copy, or save the readable part with `copal repair store`";

pub(super) fn run(context: &CommandContext<'_>, words: &DeviceScrubArgs) -> Outcome<()> {
    let place = place(&words.path)?;
    let options = context.arguments.common.store_options();
    // The place of an interrupted scrub is kept in the store.
    let (store, _) = place.open(Access::Write, &options, &context.patience())?;
    let mut scrub = store.scrub();
    let mut found = FoundDamages::new(context);
    let read = read_data(context, words.bytes_per_second, &mut scrub, &mut |damage| found.note(damage));
    if read.is_err() || !scrub.progress().finished {
        scrub.keep_place();
    }
    let progress = scrub.progress();
    close(&store, place.path())?;
    read.map_err(|error| Failure::plain("read", format!("{}: {error}", place.path().display())))?;
    let fields = json!({
        "command": "device scrub",
        "store": place.path().display().to_string(),
        "finished": progress.finished,
        "resumed": progress.resumed,
        "clean": progress.finished && progress.damages == 0,
        "damages": progress.damages,
        "read_bytes": progress.read_bytes,
        "done_bytes": progress.done_bytes,
        "total_bytes": progress.total_bytes,
    });
    if !progress.finished {
        let (done, total) = (human::bytes(progress.done_bytes), human::bytes(progress.total_bytes));
        let sentence = match progress.total_bytes {
            // The tables come first, and tell how much data there is.
            0 => "interrupted before data was read; run the command again".to_owned(),
            _ => {
                format!("interrupted at {done} of {total}; the next `copal device scrub` goes on from there")
            }
        };
        return Err(Failure::new(exit::INTERRUPTED, "cancelled", sentence));
    }
    context.output.summary(fields, || as_text(place.path(), &progress));
    found.count = progress.damages;
    found.conclude(place.path(), ADVICE)
}

fn close(store: &Store, path: &Path) -> Outcome<()> {
    store.close().map_err(|error| Failure::plain("close", format!("closing {}: {error}", path.display())))
}

fn as_text(path: &Path, progress: &StoreScrubProgress) -> String {
    let resumed = if progress.resumed { ", the rest by an earlier scrub" } else { "" };
    let sound = if progress.damages == 0 { "; no damage found" } else { "" };
    format!("{}: {} read{resumed}{sound}\n", path.display(), human::bytes(progress.read_bytes))
}
