//! Options of block nodes that QMP does not tell, from the command line that the process was started with.
//!
//! A node that is opened anew gets every option that it is not given by default, and no answer tells `discard`. Nodes that
//! were added later are not known here. Nothing fails here.

use copal_qmp::Client;
use serde_json::Value;
use std::collections::HashMap;

/// Longest command line that is looked at, in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// Whether each node that the command line names passes trims on.
pub(crate) fn trims(client: &Client) -> HashMap<String, bool> {
    let Some(process) = client.peer() else {
        return HashMap::new();
    };
    let line = std::fs::File::open(format!("/proc/{process}/cmdline")).and_then(|file| {
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut std::io::Read::take(file, MAX_BYTES), &mut bytes)?;
        Ok(bytes)
    });
    parse(&String::from_utf8_lossy(&line.unwrap_or_default()))
}

/// Words that end with a zero byte.
pub(crate) fn parse(line: &str) -> HashMap<String, bool> {
    let words: Vec<&str> = line.split('\0').collect();
    let mut found = HashMap::new();
    for (at, word) in words.iter().enumerate() {
        let word = word
            .strip_prefix("--")
            .or_else(|| word.strip_prefix('-'))
            .unwrap_or("");
        let options = match word.split_once('=') {
            Some(("blockdev", options)) => options,
            None if matches!(word, "blockdev" | "drive") => words.get(at + 1).copied().unwrap_or(""),
            _ => continue,
        };
        let (name, discard) = match serde_json::from_str::<Value>(options) {
            Ok(node) => (
                node["node-name"].as_str().map(str::to_owned),
                node["discard"].as_str().map(str::to_owned),
            ),
            Err(_) => (option(options, "node-name"), option(options, "discard")),
        };
        if let Some(name) = name {
            found.insert(name, matches!(discard.as_deref(), Some("unmap" | "on")));
        }
    }
    found
}

/// A value of `name=value,name=value`, in which a comma is written twice.
fn option(options: &str, wanted: &str) -> Option<String> {
    let options = options.replace(",,", "\0");
    let mut values = options.split(',').filter_map(|option| option.split_once('='));
    let value = values.find_map(|(name, value)| (name == wanted).then_some(value));
    value.map(|value| value.replace('\0', ","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trims_are_found_in_each_form_of_an_option() {
        let line = "qemu\0-name\0x\0-blockdev\0driver=raw,node-name=top0,file=vm0\0--blockdev\0node-name=vm0,discard=unmap,\
                    file.discard=ignore\0--blockdev={\"node-name\":\"top1\",\"discard\":\"unmap\"}\0-drive\0if=none,node-name=a,,b,\
                    discard=on\0-blockdev";
        let found = parse(line);
        let expected = [("top0", false), ("vm0", true), ("top1", true), ("a,b", true)];
        let expected = expected.map(|(name, trims)| (name.to_owned(), trims));
        assert_eq!(found, HashMap::from(expected));
        assert!(parse("").is_empty() && parse("-blockdev\0{7").is_empty());
    }
}
