//! Options that QMP does not report, parsed from the command line of QEMU.
//!
//! A reopened node gets the default of every option that is not passed, and no reply reports `discard`. No
//! reply reports the iothread of an export either. Nodes and exports that were added later are unknown here.
//! Parsing never fails.

use serde_json::Value;
use std::collections::HashMap;

/// An export defined on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LaunchExport {
    pub(crate) id: String,
    pub(crate) iothread: Option<String>,
}

/// Options from the command line of a process.
#[derive(Debug, Default)]
pub(crate) struct LaunchOptions {
    /// Whether each named node passes trims on.
    pub(crate) trims: HashMap<String, bool>,
    /// Exports in the order of the command line.
    pub(crate) exports: Vec<LaunchExport>,
}

impl LaunchOptions {
    /// Parses arguments that end with a zero byte each.
    pub(crate) fn parse(line: &str) -> LaunchOptions {
        let words: Vec<&str> = line.split('\0').collect();
        let mut found = LaunchOptions::default();
        for (at, word) in words.iter().enumerate() {
            let word = word.strip_prefix("--").or_else(|| word.strip_prefix('-')).unwrap_or("");
            let (word, values) = match word.split_once('=') {
                Some((word, values)) => (word, values),
                None => (word, words.get(at + 1).copied().unwrap_or("")),
            };
            match word {
                "blockdev" | "drive" => {
                    if let Some(name) = option(values, "node-name") {
                        let discard = option(values, "discard");
                        found.trims.insert(name, matches!(discard.as_deref(), Some("unmap" | "on")));
                    }
                }
                "export" => found.exports.extend(
                    option(values, "id").map(|id| LaunchExport { id, iothread: option(values, "iothread") }),
                ),
                _ => {}
            }
        }
        found
    }

    /// The export of the command line with this id. `listed` are the ids of all exports, the newest first, as
    /// QEMU lists them.
    ///
    /// An export that was removed and added again is newer than those that follow it on the command line, and
    /// is not found. If it is the last one of the command line, the case is undetectable, and it is found.
    pub(crate) fn export(&self, id: &str, listed: &[&str]) -> Option<&LaunchExport> {
        let mut launched = self.exports.iter();
        // An id that the rest of the command line lacks was added later, and so were all newer ones.
        let mut oldest = listed.iter().rev();
        oldest
            .by_ref()
            .map_while(|listed| launched.find(|export| export.id == **listed))
            .find(|export| export.id == id)
    }
}

/// A value of a JSON object, or of `name=value,name=value` with commas in values doubled.
fn option(options: &str, wanted: &str) -> Option<String> {
    if let Ok(object) = serde_json::from_str::<Value>(options) {
        return object[wanted].as_str().map(str::to_owned);
    }
    let options = options.replace(",,", "\0");
    let mut values = options.split(',').filter_map(|option| option.split_once('='));
    let value = values.find_map(|(name, value)| (name == wanted).then_some(value));
    value.map(|value| value.replace('\0', ","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_found_in_each_form() {
        let line = "qemu\0-name\0x\0-blockdev\0driver=raw,node-name=top0,file=vm0\0--blockdev\0node-name=vm0,discard=unmap,\
                    file.discard=ignore\0--blockdev={\"node-name\":\"top1\",\"discard\":\"unmap\"}\0-drive\0if=none,node-name=a,,b,\
                    discard=on\0--export\0nbd,id=one,node-name=top0,iothread=io0\0--export=type=nbd,id=two,node-name=top1\0--export\0\
                    {\"type\":\"nbd\",\"id\":\"three\",\"iothread\":\"io1\"}\0--export\0nbd\0-blockdev";
        let found = LaunchOptions::parse(line);
        let expected = [("top0", false), ("vm0", true), ("top1", true), ("a,b", true)];
        let expected = expected.map(|(name, trims)| (name.to_owned(), trims));
        assert_eq!(found.trims, HashMap::from(expected));
        let exports = found.exports.iter();
        let exports: Vec<_> =
            exports.map(|export| (export.id.as_str(), export.iothread.as_deref())).collect();
        assert_eq!(exports, [("one", Some("io0")), ("two", None), ("three", Some("io1"))]);
        for line in ["", "-blockdev\0{7", "--export\0", "--export"] {
            let found = LaunchOptions::parse(line);
            assert!(found.trims.is_empty() && found.exports.is_empty(), "{line}");
        }
    }

    #[test]
    fn an_export_that_was_added_later_is_not_one_of_the_command_line() {
        let line = "--export\0id=a\0--export\0id=b\0--export\0id=c";
        let found = LaunchOptions::parse(line);
        for (listed, known) in [
            (&["c", "b", "a"][..], "abc"),
            (&["x", "c", "b", "a"], "abc"),
            (&["c", "a"], "ac"),
            // Added again: `a` after all others, `b` after `c`.
            (&["a", "c", "b"], "bc"),
            (&["b", "c", "a"], "ac"),
            // A later export cannot be between older ones.
            (&["c", "x", "a"], "a"),
            (&[], ""),
        ] {
            let names = ["a", "b", "c", "x"].iter();
            let of_line: String = names.filter(|id| found.export(id, listed).is_some()).copied().collect();
            assert_eq!(of_line, known, "{listed:?}");
        }
    }
}
