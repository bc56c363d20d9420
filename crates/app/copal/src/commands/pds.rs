//! `copal pds`: popular chunks, which many VMs share.

pub(super) mod cleanup;
pub(super) mod prune;

use super::{
    CommandContext,
    agent::local::{self, AgentAnswer, AgentQuestion},
    close,
    fields::CommandFields,
};
use crate::{
    failure::{Failure, Outcome},
    human,
};
use copal_backup::popular::PopularStatus;
use copal_node::Access;

pub(super) fn status(context: &CommandContext<'_>) -> Outcome<()> {
    let status = match local::ask(context, &AgentQuestion::Popular)? {
        Some(AgentAnswer::Popular(
            [fraction, packs, unchecked_packs, condemned_packs, spoiled_packs, frames, bytes],
        )) => PopularStatus {
            fraction_millionths: fraction as u32,
            packs,
            unchecked_packs,
            condemned_packs,
            spoiled_packs,
            frames,
            bytes,
        },
        _ => {
            let opened = context.open(Access::Read)?;
            let status = opened.repository().popular_status().map_err(Failure::from);
            close(opened, status)?
        }
    };
    let fraction = f64::from(status.fraction_millionths) / 1e6;
    context.output.answer(CommandFields::new("pds status", status), || {
        let rows = [
            ("Popular chunks", status.frames.to_string()),
            ("Packs", status.packs.to_string()),
            ("  not checked yet", status.unchecked_packs.to_string()),
            ("  condemned", status.condemned_packs.to_string()),
            ("  spoiled", status.spoiled_packs.to_string()),
            ("Bytes", human::bytes(status.bytes)),
            ("At most", format!("{} % of all chunks", fraction * 100.0)),
        ];
        rows.iter().map(|(name, value)| format!("{name:<20} {value}\n")).collect()
    });
    Ok(())
}
