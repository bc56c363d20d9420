//! `copal kv dump`.

use super::{damaged, failed, objects};
use crate::{
    arguments::kv::{DumpArgs, EnginePlace},
    commands::CommandContext,
    failure::Outcome,
    output::write_out,
};
use copal_kv::dump::{self, DumpOptions, Field, Item};
use copal_node::Access;
use serde_json::{Map, Value, json};

pub(super) fn run(context: &CommandContext<'_>, place: &EnginePlace<'_>, words: &DumpArgs) -> Outcome<()> {
    let (path, objects) = objects(place, Access::Read)?;
    let limit = words.limit.unwrap_or(u64::MAX);
    let (mut lines, mut damages) = (0u64, 0u64);
    let mut sink = |item: Item| {
        if lines >= limit || context.cancel.is_cancelled() {
            return false;
        }
        lines += 1;
        let is_damage = item.kind == "damage" || item.fields.iter().any(|(name, _)| *name == "damage");
        damages += u64::from(is_damage);
        if context.output.is_json() {
            context.output.message("item", as_json(&item, words.hex));
        } else {
            write_out(&format!("{}\n", item.line(words.hex)));
        }
        true
    };
    match words.object {
        None => dump::outline(&objects, &mut sink),
        Some(object) => {
            let options = DumpOptions { entries: words.entries, partition: words.partition };
            dump::object(&objects, object, &options, &mut sink)
        }
    }
    .map_err(failed)?;
    let fields = json!({ "command": "kv dump", "lines": lines, "damages": damages });
    context.output.answer(fields, String::new);
    if damages > 0 {
        return Err(damaged(&path, damages, "`copal kv verify --deep` lists all of it"));
    }
    Ok(())
}

fn as_json(item: &Item, hex: bool) -> Value {
    let mut fields = Map::new();
    fields.insert("kind".to_owned(), json!(item.kind));
    fields.insert("depth".to_owned(), json!(item.depth));
    for (name, field) in &item.fields {
        let value = match field {
            Field::Number(number) => json!(number),
            shown => json!(shown.shown(hex)),
        };
        fields.insert((*name).to_owned(), value);
    }
    Value::Object(fields)
}
