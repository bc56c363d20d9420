//! Lines of a dump: one per item, as text or JSON.

use super::CommandContext;
use crate::{human::visible, output::write_out};
use copal_object::{DumpField, DumpItem};
use serde_json::{Map, Value, json};

/// Prints items as they come.
pub(super) struct DumpLines<'a> {
    context: &'a CommandContext<'a>,
    hex: bool,
    /// Most lines.
    limit: u64,
    pub(super) lines: u64,
    pub(super) damages: u64,
}

impl<'a> DumpLines<'a> {
    pub(super) fn new(context: &'a CommandContext<'a>, hex: bool, limit: Option<u64>) -> DumpLines<'a> {
        DumpLines { context, hex, limit: limit.unwrap_or(u64::MAX), lines: 0, damages: 0 }
    }

    /// Prints an item; `false`: no more are wanted.
    pub(super) fn put(&mut self, item: &DumpItem) -> bool {
        if self.lines >= self.limit || self.context.is_ended() {
            return false;
        }
        self.lines += 1;
        self.damages += u64::from(item.is_damage());
        if self.context.output.is_json() {
            self.context.output.message("item", as_json(item, self.hex));
        } else {
            write_out(&format!("{}\n", visible(&item.line(self.hex))));
        }
        true
    }
}

fn as_json(item: &DumpItem, hex: bool) -> Value {
    let mut fields = Map::new();
    fields.insert("kind".to_owned(), json!(item.kind));
    fields.insert("depth".to_owned(), json!(item.depth));
    for (name, field) in &item.fields {
        let value = match field {
            DumpField::Number(number) => json!(number),
            shown => json!(shown.shown(hex)),
        };
        fields.insert((*name).to_owned(), value);
    }
    Value::Object(fields)
}
