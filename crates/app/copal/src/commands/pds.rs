//! `copal pds`: the chunks that many VMs have.

pub(super) mod cleanup;
pub(super) mod prune;

use super::{Context, close};
use crate::{
    failure::{Failure, Outcome},
    human,
};
use copal_node::Access;
use serde_json::json;

pub(super) fn status(context: &Context<'_>) -> Outcome<()> {
    let opened = context.open(Access::Read)?;
    let status = opened.repository().popular_status().map_err(Failure::from);
    let status = close(opened, status)?;
    let fraction = f64::from(status.fraction_millionths) / 1e6;
    let fields = json!({
        "command": "pds status",
        "pds_fraction": fraction,
        "chunks": status.frames,
        "packs": status.packs,
        "unchecked_packs": status.unchecked_packs,
        "condemned_packs": status.condemned_packs,
        "bytes": status.bytes,
    });
    context.output.answer(fields, || {
        let rows = [
            ("Popular chunks", status.frames.to_string()),
            ("Packs", status.packs.to_string()),
            ("  not checked yet", status.unchecked_packs.to_string()),
            ("  condemned", status.condemned_packs.to_string()),
            ("Bytes", human::bytes(status.bytes)),
            ("At most", format!("{} % of all chunks", fraction * 100.0)),
        ];
        rows.iter()
            .map(|(name, value)| format!("{name:<20} {value}\n"))
            .collect()
    });
    Ok(())
}
