//! `copal device fsck|df|dump|scrub`: looks into a store of objects, without the layers above.
//!
//! Their exit codes are those of other checkers: 0 no damage, 1 damage, 2 the command could not run. The sentences and
//! the codes of the JSON lines are those of every command.

mod df;
mod dump;
mod fsck;
mod scrub;

use super::{CommandContext, rest};
use crate::{
    arguments::InspectCommand,
    failure::{Failure, Outcome, exit},
    place::refuse_address,
    stdout,
};
use copal_backup::{Progress, Stage};
use copal_node::StoreLocation;
use copal_object::{ScrubPace, StoreDamage, StoreError, StoreScrub};
use serde_json::{Value, json};
use std::{
    path::Path,
    time::{Duration, Instant},
};

pub(super) fn run(context: &CommandContext<'_>, command: InspectCommand<'_>) -> Outcome<()> {
    let done = match command {
        InspectCommand::Fsck(words) => fsck::run(context, words),
        InspectCommand::Df(words) => df::run(context, words),
        InspectCommand::Dump(words) => dump::run(context, words),
        InspectCommand::Scrub(words) => scrub::run(context, words),
    };
    // A result that was not delivered is no clean store.
    let done = done.and_then(|()| stdout::failure().map_or(Ok(()), Err));
    done.map_err(|failure| {
        let exit_code = match failure.exit_code {
            exit::DAMAGED => exit::CHECK_DAMAGE,
            exit::INTERRUPTED => exit::INTERRUPTED,
            _ => exit::CHECK_FAILED,
        };
        Failure { exit_code, ..failure }
    })
}

/// The store at `path`: of a repository or a data server, or any other.
pub(super) fn place(path: &Path) -> Outcome<StoreLocation> {
    refuse_address(path)?;
    match StoreLocation::find(path) {
        Ok(place) => Ok(place),
        Err(_) => super::kv::bare(path),
    }
}

/// Longest wait between two looks at an interruption.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Reads all data of a store at a pace and shows the progress, until the end or an interruption.
fn read_data(
    context: &CommandContext<'_>,
    bytes_per_second: u64,
    scrub: &mut StoreScrub,
    note: &mut dyn FnMut(&StoreDamage),
) -> Result<(), StoreError> {
    let meter = context.meter();
    let began = Instant::now();
    let mut pace = ScrubPace::new(bytes_per_second);
    let mut shown = None;
    while let Some(bytes) = scrub.step(note)? {
        let progress = scrub.progress();
        if progress.total_bytes > 0 {
            let before = *shown.get_or_insert_with(|| {
                meter.stage(Stage::ReadData, "", progress.total_bytes);
                0
            });
            meter.advance(progress.done_bytes.saturating_sub(before));
            shown = Some(progress.done_bytes);
        }
        let due = pace.read(bytes);
        while !context.is_ended() && began.elapsed() < due {
            rest(due.saturating_sub(began.elapsed()).min(LOOK_INTERVAL));
        }
        if context.is_ended() {
            break;
        }
    }
    Ok(())
}

/// Damages that a command has found and printed.
struct FoundDamages<'a> {
    context: &'a CommandContext<'a>,
    count: u64,
}

impl<'a> FoundDamages<'a> {
    fn new(context: &'a CommandContext<'a>) -> FoundDamages<'a> {
        FoundDamages { context, count: 0 }
    }

    fn note(&mut self, damage: &StoreDamage) {
        let mut fields = of_damage(damage);
        fields["code"] = json!("damaged");
        fields["message"] = json!(damage.to_string());
        self.count += 1;
        self.context.output.error(fields, &damage.to_string());
    }

    /// Damage that is no part of a check, such as a missing end.
    fn note_text(&mut self, sentence: &str) {
        self.count += 1;
        self.context.output.error(json!({ "code": "damaged", "message": sentence }), sentence);
    }

    /// The failure of the command, if there is damage.
    fn conclude(&self, path: &Path, advice: &str) -> Outcome<()> {
        match self.count {
            0 => Ok(()),
            places => Err(super::kv::damaged(path, places, advice)),
        }
    }
}

/// The place of a damage, for programs.
fn of_damage(damage: &StoreDamage) -> Value {
    match damage {
        StoreDamage::Superblock { copy } => json!({ "structure": "superblock", "copy": copy }),
        StoreDamage::Checkpoint { .. } => json!({ "structure": "checkpoint" }),
        StoreDamage::CheckpointCopy { page } => json!({ "structure": "checkpoint", "page": page }),
        StoreDamage::Journal { seq } => json!({ "structure": "record", "record": seq }),
        StoreDamage::Space { .. } => json!({ "structure": "space" }),
        StoreDamage::Object { id, range } => {
            json!({ "structure": "object", "object": id.0, "start": range.start, "end": range.end })
        }
        StoreDamage::Stream { id, frame } => {
            json!({ "structure": "stream", "object": id.0, "frame": frame.0 })
        }
        _ => json!({ "structure": "other" }),
    }
}
