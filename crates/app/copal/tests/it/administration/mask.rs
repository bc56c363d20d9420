//! Masks values in JSON lines that differ between runs: each is replaced by the name of its type.

use serde_json::{Map, Value};
use std::path::Path;

/// Fields whose integer depends on the machine, the time or random ids.
const INTEGERS: &[&str] = &[
    "after_bytes",
    "arriving_bytes",
    "at_ms",
    "before_bytes",
    "bytes",
    "bytes_left",
    "capacity_bytes",
    "copies_take_bytes",
    "epoch",
    "files_take_bytes",
    "made_ms",
    "map_version",
    "may_lack_since_ms",
    "number",
    "pid",
    "silent_ms",
    "used_bytes",
];
/// Such fields that are null at times.
const INTEGERS_OR_NULL: &[&str] =
    &["announced_until_ms", "bytes_per_s", "clock_off_ms", "ends_in_s", "since_ms", "until_ms"];
const FLOATS: &[&str] = &["done", "hours", "used_percent"];
/// Random strings.
const TEXTS: &[&str] = &["certificate", "token", "trace", "uuid", "version"];
/// Lists of groups: the numbers are masked, and equal elements then appear once.
const LISTS_OF_GROUPS: &[&str] = &["groups", "moves", "tasks"];
/// Units of a measured time.
const UNITS: &[&str] = &["h", "min", "ms", "s"];
/// Alternative sentences; the order of events decides which one appears.
const CAUSES: &[&str] = &["was silent too long", "refuses connections"];

/// Masks of one run.
pub(super) struct Mask {
    scratch: String,
}

impl Mask {
    pub(super) fn new(scratch: &Path) -> Mask {
        Mask { scratch: scratch.to_str().unwrap().to_owned() }
    }

    /// A masked JSON line. Its fields are in the order of every line: version, type, the others by name.
    pub(super) fn line(&self, line: &str) -> Value {
        let parsed: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        let head = format!("{{\"v\":1,\"message_type\":{}", parsed["message_type"]);
        let rest = line.strip_prefix(&head).unwrap_or_else(|| panic!("another head: {line}"));
        let rest = format!("{{{}", rest.trim_start_matches(','));
        let ordered: Value = serde_json::from_str(&rest).unwrap();
        assert_eq!(rest, ordered.to_string(), "fields in another order");
        self.value("", "", parsed)
    }

    fn value(&self, list: &str, key: &str, value: Value) -> Value {
        match value {
            Value::Object(fields) => Value::Object(self.object(list, fields)),
            Value::Array(elements) => {
                let elements = elements.into_iter().map(|element| self.value(key, key, element));
                match LISTS_OF_GROUPS.contains(&key) {
                    true => Value::Array(distinct(elements.collect())),
                    false => Value::Array(elements.collect()),
                }
            }
            Value::Null if INTEGERS_OR_NULL.contains(&key) => "<integer or null>".into(),
            Value::Number(number) => {
                let is_of_list = matches!(key, "group" | "gid") && LISTS_OF_GROUPS.contains(&list);
                match number.is_f64() {
                    true if FLOATS.contains(&key) => "<float>".into(),
                    false if INTEGERS_OR_NULL.contains(&key) => "<integer or null>".into(),
                    false if INTEGERS.contains(&key) || is_of_list => "<integer>".into(),
                    _ => Value::Number(number),
                }
            }
            Value::String(_) if TEXTS.contains(&key) => "<text>".into(),
            Value::String(text) => self.text(&text).into(),
            other => other,
        }
    }

    fn object(&self, list: &str, fields: Map<String, Value>) -> Map<String, Value> {
        let masked = fields.into_iter().map(|(key, value)| {
            let value = self.value(list, &key, value);
            (key, value)
        });
        masked.collect()
    }

    /// A sentence with masked places, addresses, ids, times, and texts that depend on the time.
    pub(super) fn text(&self, text: &str) -> String {
        if text.contains("to continue from there nevertheless") {
            return "<what may be lost>".to_owned();
        }
        let mut text = text.replace(&self.scratch, "<dir>");
        for cause in CAUSES {
            text = text.replace(cause, "<cause>");
        }
        let bare = |word: &str| word.trim_end_matches([',', ';', ':', '.', ')']).len();
        let mut words: Vec<String> = Vec::new();
        for word in text.split(' ') {
            let (word, end) = word.split_at(bare(word));
            let is_hex = word.bytes().all(|byte| byte.is_ascii_hexdigit());
            let is_number = |word: &String| word.bytes().all(|byte| byte.is_ascii_digit());
            let masked = match word {
                _ if UNITS.contains(&word) && words.last().is_some_and(is_number) => {
                    words.pop();
                    "<time>"
                }
                _ if word.starts_with("127.0.0.1:") => "<address>",
                _ if is_hex && matches!(word.len(), 16 | 32) => "<id>",
                _ if word.starts_with("20") && word.contains('T') && word.ends_with('Z') => "<time>",
                word => word,
            };
            words.push(format!("{masked}{end}"));
        }
        words.join(" ")
    }
}

/// Each element once, in the order of their text: the placement of groups is random.
fn distinct(mut elements: Vec<Value>) -> Vec<Value> {
    elements.sort_by_key(Value::to_string);
    elements.dedup();
    elements
}
