//! Lists of changed extents, parsed from JSON files.
//!
//! Two forms. Copal's own form is
//! `{"v":1,"size":N,"base":"<snapshot>","extents":[{"offset":O,"length":L,"type":"dirty"|"zero"}]}`,
//! The other is the array that `nbdinfo --json --map=qemu:dirty-bitmap:NAME URI` prints,
//! `[{"offset":O,"length":L,"type":1,"description":"dirty"}, ..]`, where bit 0 of `type` means dirty.
//!
//! Invariants
//! - A list that may omit a change is refused: the map of another context, a gap, another version, an extent
//!   past the end.
//! - Memory is 24 bytes per run of changed bytes, at most [`MAX_EXTENTS`] of them.
//!
//! Not here: comparing size and base with the disk (`copal-backup`).

use super::{ChangeKind, ChangedExtent, ChangedExtents, SourceError};
use serde::{
    Deserialize, Deserializer,
    de::{Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use std::{
    fmt,
    fs::File,
    io::{BufReader, ErrorKind, Read},
    path::Path,
};

/// Maximum number of runs in one list; beyond it a rescan is cheaper.
pub const MAX_EXTENTS: usize = 2_000_000;

/// Reads a list of changed extents and merges adjacent ones.
///
/// # Errors
/// The file cannot be read, is not such a list, or contradicts itself.
pub fn read_changed_extents(path: &Path) -> Result<ChangedExtents, SourceError> {
    let file = File::open(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => SourceError::Unusable {
            reason: format!(
                "there is no list of changed extents at {}; check the path, make the list with `nbdinfo --json \
                 --map=qemu:dirty-bitmap:NAME URI`, or leave --changed-extents out to read the whole disk",
                path.display()
            ),
        },
        _ => SourceError::Io {
            action: "open",
            what: path.display().to_string(),
            error,
        },
    })?;
    parse_changed_extents(BufReader::new(file)).map_err(|error| SourceError::Unusable {
        reason: format!(
            "{} is not a list of changed extents: {error}; `copal backup --help` shows the two forms",
            path.display()
        ),
    })
}

/// Reads a list of changed extents from any reader.
///
/// # Errors
/// As [`read_changed_extents`]; the error does not name the file.
pub fn parse_changed_extents(reader: impl Read) -> Result<ChangedExtents, serde_json::Error> {
    let mut deserializer = serde_json::Deserializer::from_reader(reader);
    let list = deserializer.deserialize_any(ListVisitor)?;
    deserializer.end()?;
    Ok(list)
}

/// One extent in either form.
#[derive(Deserialize)]
struct ExtentEntry {
    offset: u64,
    length: u64,
    #[serde(rename = "type")]
    kind: EntryKind,
    description: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum EntryKind {
    Word(String),
    Flags(u32),
}

/// Extents in the order of the list; adjacent ones are merged.
#[derive(Default)]
struct ExtentRuns {
    runs: Vec<ChangedExtent>,
}

impl ExtentRuns {
    fn push<E: serde::de::Error>(&mut self, offset: u64, length: u64, kind: ChangeKind) -> Result<(), E> {
        if length == 0 {
            return Ok(());
        }
        if let Some(last) = self.runs.last_mut()
            && last.kind == kind
            && last.offset + last.length == offset
        {
            last.length += length;
            return Ok(());
        }
        if self.runs.len() >= MAX_EXTENTS {
            return Err(E::custom(format!(
                "more than {MAX_EXTENTS} runs; leave it out, a rescan is cheaper"
            )));
        }
        self.runs.push(ChangedExtent { offset, length, kind });
        Ok(())
    }
}

fn end_of<E: serde::de::Error>(entry: &ExtentEntry) -> Result<u64, E> {
    let end = entry.offset.checked_add(entry.length).filter(|end| i64::try_from(*end).is_ok());
    end.ok_or_else(|| E::custom(format!("the extent at {} reaches past any disk", entry.offset)))
}

struct ListVisitor;

impl<'de> Visitor<'de> for ListVisitor {
    type Value = ChangedExtents;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object {\"v\":1,\"size\":..,\"base\":..,\"extents\":[..]} or the array of `nbdinfo --json --map`")
    }

    /// The array of `nbdinfo` maps the whole disk, so its end is the size of the disk.
    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<ChangedExtents, A::Error> {
        let mut runs = ExtentRuns::default();
        let mut size_bytes = 0;
        while let Some(entry) = entries.next_element::<ExtentEntry>()? {
            let EntryKind::Flags(flags) = entry.kind else {
                return Err(A::Error::custom("a map needs numbers as types; the object form takes words"));
            };
            let words = entry.description.as_deref().unwrap_or("");
            if !matches!(words, "" | "clean" | "dirty") || flags > 1 {
                return Err(A::Error::custom(format!(
                    "this map speaks of {words:?}, not of clean and dirty; print it with \
                     `nbdinfo --json --map=qemu:dirty-bitmap:NAME URI`"
                )));
            }
            if (flags == 1) != (words == "dirty") && !words.is_empty() {
                return Err(A::Error::custom(format!("type {flags} is described as {words:?}")));
            }
            if entry.offset != size_bytes {
                return Err(A::Error::custom(format!("the map has a gap at byte {size_bytes}")));
            }
            size_bytes = end_of(&entry)?;
            if flags == 1 {
                runs.push(entry.offset, entry.length, ChangeKind::Dirty)?;
            }
        }
        Ok(ChangedExtents { size_bytes, extents: runs.runs, ..ChangedExtents::default() })
    }

    /// Copal's own form.
    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<ChangedExtents, A::Error> {
        let (mut version, mut size, mut base, mut extents) = (None::<u64>, None::<u64>, None::<String>, None);
        while let Some(name) = fields.next_key::<String>()? {
            match name.as_str() {
                "v" => version = Some(fields.next_value()?),
                "size" => size = Some(fields.next_value()?),
                "base" => base = fields.next_value()?,
                "extents" => extents = Some(fields.next_value::<ExtentList>()?.0),
                _ => {
                    fields.next_value::<IgnoredAny>()?;
                }
            }
        }
        match version {
            Some(1) => {}
            Some(other) => {
                return Err(A::Error::custom(format!("version {other}, this program reads version 1")));
            }
            None => return Err(A::Error::missing_field("v")),
        }
        let size_bytes = size.ok_or_else(|| A::Error::missing_field("size"))?;
        let extents = extents.ok_or_else(|| A::Error::missing_field("extents"))?;
        if let Some(stray) = extents.iter().find(|extent| extent.offset + extent.length > size_bytes) {
            return Err(A::Error::custom(format!(
                "the extent at {} ends after the disk of {size_bytes} bytes",
                stray.offset
            )));
        }
        Ok(ChangedExtents { size_bytes, base, bitmap: None, extents })
    }
}

/// The extents of Copal's own form.
struct ExtentList(Vec<ChangedExtent>);

impl<'de> Deserialize<'de> for ExtentList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ExtentList, D::Error> {
        struct ExtentVisitor;
        impl<'de> Visitor<'de> for ExtentVisitor {
            type Value = ExtentList;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array of extents")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<ExtentList, A::Error> {
                let mut runs = ExtentRuns::default();
                while let Some(entry) = entries.next_element::<ExtentEntry>()? {
                    end_of::<A::Error>(&entry)?;
                    let kind = match &entry.kind {
                        EntryKind::Word(word) if word == "dirty" => ChangeKind::Dirty,
                        EntryKind::Word(word) if word == "zero" => ChangeKind::Zero,
                        _ => return Err(A::Error::custom("a type is \"dirty\" or \"zero\"")),
                    };
                    runs.push(entry.offset, entry.length, kind)?;
                }
                Ok(ExtentList(runs.runs))
            }
        }
        deserializer.deserialize_seq(ExtentVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<ChangedExtents, String> {
        parse_changed_extents(text.as_bytes()).map_err(|error| error.to_string())
    }

    fn run(offset: u64, length: u64, kind: ChangeKind) -> ChangedExtent {
        ChangedExtent { offset, length, kind }
    }

    #[test]
    fn copals_own_form_is_read_and_merged() {
        let list = parse(
            r#"{"v":1,"size":4096,"base":"ab12","unknown":[{"x":1}],"extents":[
                {"offset":0,"length":512,"type":"dirty"},{"offset":512,"length":512,"type":"dirty"},
                {"offset":1024,"length":0,"type":"zero"},{"offset":2048,"length":2048,"type":"zero"}]}"#,
        );
        let extents = vec![run(0, 1024, ChangeKind::Dirty), run(2048, 2048, ChangeKind::Zero)];
        assert_eq!(
            list,
            Ok(ChangedExtents { size_bytes: 4096, base: Some("ab12".into()), bitmap: None, extents })
        );
    }

    #[test]
    fn the_map_of_nbdinfo_is_read() {
        let list = parse(
            r#"[{ "offset": 0, "length": 1048576, "type": 0, "description": "clean"},
                { "offset": 1048576, "length": 3145728, "type": 1, "description": "dirty"},
                { "offset": 4194304, "length": 100, "type": 0, "description": "clean"}]"#,
        );
        let extents = vec![run(1 << 20, 3 << 20, ChangeKind::Dirty)];
        assert_eq!(list, Ok(ChangedExtents { size_bytes: 4_194_404, extents, ..ChangedExtents::default() }));
        assert_eq!(parse("[]").unwrap().size_bytes, 0);
    }

    #[test]
    fn lists_that_could_leave_out_a_change_are_refused() {
        for (text, reason) in [
            (r#"[{"offset":0,"length":1,"type":3,"description":"hole,zero"}]"#, "nbdinfo --json --map=qemu"),
            (r#"[{"offset":0,"length":1,"type":0,"description":"data"}]"#, "nbdinfo --json --map=qemu"),
            (r#"[{"offset":0,"length":1,"type":2}]"#, "nbdinfo --json --map=qemu"),
            (r#"[{"offset":0,"length":1,"type":0,"description":"dirty"}]"#, "described as"),
            (r#"[{"offset":1,"length":1,"type":1}]"#, "gap at byte 0"),
            (r#"[{"offset":0,"length":1,"type":1},{"offset":2,"length":1,"type":1}]"#, "gap at byte 1"),
            (r#"[{"offset":0,"length":18446744073709551615,"type":1}]"#, "past any disk"),
            (r#"[{"offset":0,"length":1,"type":"dirty"}]"#, "numbers"),
            (r#"{"v":2,"size":1,"extents":[]}"#, "version 2"),
            (r#"{"size":1,"extents":[]}"#, "missing field `v`"),
            (r#"{"v":1,"extents":[]}"#, "missing field `size`"),
            (r#"{"v":1,"size":1}"#, "missing field `extents`"),
            (r#"{"v":1,"size":1,"extents":[{"offset":0,"length":2,"type":"dirty"}]}"#, "ends after"),
            (
                r#"{"v":1,"size":1,"extents":[{"offset":0,"length":1,"type":"data"}]}"#,
                "\"dirty\" or \"zero\"",
            ),
            (r#"{"v":1,"size":1,"extents":[{"offset":-1,"length":1,"type":"dirty"}]}"#, "invalid value"),
            (r#"{"v":1,"size":1,"extents":[]} x"#, "trailing"),
            ("7", "an object"),
            ("", "EOF"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
