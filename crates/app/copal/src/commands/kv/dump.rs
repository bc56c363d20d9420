//! `copal kv dump`.

use super::{damaged, failed, objects};
use crate::{
    arguments::kv::{DumpArgs, EnginePlace},
    commands::{CommandContext, dump_lines::DumpLines},
    failure::Outcome,
};
use copal_kv::dump::{self, DumpOptions};
use copal_node::Access;
use copal_object::DumpItem;
use serde_json::json;

pub(super) fn run(context: &CommandContext<'_>, place: &EnginePlace<'_>, words: &DumpArgs) -> Outcome<()> {
    let (path, objects) = objects(place, Access::Read)?;
    let mut lines = DumpLines::new(context, words.hex, words.limit);
    let mut sink = |item: DumpItem| lines.put(&item);
    match words.object {
        None => dump::outline(&objects, &mut sink),
        Some(object) => {
            let options = DumpOptions { entries: words.entries, partition: words.partition };
            dump::object(&objects, object, &options, &mut sink)
        }
    }
    .map_err(failed)?;
    let fields = json!({ "command": "kv dump", "lines": lines.lines, "damages": lines.damages });
    context.output.answer(fields, String::new);
    if lines.damages > 0 {
        return Err(damaged(&path, lines.damages, "`copal kv verify --deep` lists all of it"));
    }
    Ok(())
}
