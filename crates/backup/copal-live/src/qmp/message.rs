//! Parser of one line from a QMP server or guest agent.

use serde_json::Value;
use std::fmt;

/// Maximum length of a text that is kept, in bytes.
const MAX_WORDS_BYTES: usize = 1024;

/// An event of QEMU.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct QmpEvent {
    /// Name of the event, such as `JOB_STATUS_CHANGE`.
    pub name: String,
    /// Its subject and details.
    pub data: Value,
}

/// The version in QEMU's greeting; zeros if it is missing. Distributions add features to a version and remove
/// some.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct QemuVersion {
    /// The 7 of 7.2.22.
    pub major: u64,
    /// The 2 of 7.2.22.
    pub minor: u64,
    /// The 22 of 7.2.22.
    pub micro: u64,
}

impl QemuVersion {
    /// The version in a greeting.
    fn of(greeting: &Value) -> QemuVersion {
        let numbers = &greeting["version"]["qemu"];
        let number = |name: &str| numbers[name].as_u64().unwrap_or(0);
        QemuVersion { major: number("major"), minor: number("minor"), micro: number("micro") }
    }

    /// Whether this is the given version or a later one.
    #[must_use]
    pub fn is_at_least(self, major: u64, minor: u64) -> bool {
        (self.major, self.minor) >= (major, minor)
    }
}

impl fmt::Display for QemuVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.micro)
    }
}

/// One line.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum QmpMessage {
    /// The first line of a QMP server.
    Greeting(QemuVersion),
    /// The reply to a command.
    Answer {
        id: Option<u64>,
        outcome: Result<Value, CommandError>,
    },
    Event(QmpEvent),
}

/// Reason why a command was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CommandError {
    pub(crate) class: String,
    pub(crate) description: String,
}

/// Parses a line.
/// # Errors
/// The reason why the line is malformed.
pub(crate) fn parse(line: &[u8]) -> Result<QmpMessage, String> {
    // After a reset, a guest agent sends a byte that is not valid JSON first.
    let line = line.strip_prefix(b"\xff").unwrap_or(line);
    let value: Value = serde_json::from_slice(line).map_err(|error| error.to_string())?;
    let Value::Object(mut fields) = value else {
        return Err("a line is not a JSON object".into());
    };
    let id = fields.get("id").and_then(Value::as_u64);
    if let Some(value) = fields.remove("return") {
        return Ok(QmpMessage::Answer { id, outcome: Ok(value) });
    }
    if let Some(error) = fields.get("error") {
        let word = |name: &str| clip(error.get(name).and_then(Value::as_str).unwrap_or("no reason given"));
        let outcome = Err(CommandError { class: word("class"), description: word("desc") });
        return Ok(QmpMessage::Answer { id, outcome });
    }
    if let Some(name) = fields.get("event").and_then(Value::as_str) {
        return Ok(QmpMessage::Event(QmpEvent {
            name: clip(name),
            data: fields.get("data").cloned().unwrap_or(Value::Null),
        }));
    }
    match fields.get("QMP") {
        Some(greeting) => Ok(QmpMessage::Greeting(QemuVersion::of(greeting))),
        None => Err("a line is neither a reply nor an event".into()),
    }
}

/// Text of the peer for use in an error sentence: bounded, without control characters.
fn clip(words: &str) -> String {
    let mut end = words.len().min(MAX_WORDS_BYTES);
    while !words.is_char_boundary(end) {
        end -= 1;
    }
    words[..end].chars().map(|char| if char.is_control() { ' ' } else { char }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_kind_of_line_is_recognised() {
        let greeting =
            br#"{"QMP":{"version":{"qemu":{"micro":0,"minor":2,"major":7},"package":""},"capabilities":[]}}"#;
        let version = QemuVersion { major: 7, minor: 2, micro: 0 };
        assert_eq!(parse(greeting), Ok(QmpMessage::Greeting(version)));
        assert!(version.is_at_least(7, 2) && version.is_at_least(6, 9) && !version.is_at_least(7, 3));
        assert_eq!(version.to_string(), "7.2.0");
        for unsaid in [&br#"{"QMP":7}"#[..], br#"{"QMP":{"version":{"qemu":{"major":-1}}}}"#] {
            assert_eq!(parse(unsaid), Ok(QmpMessage::Greeting(QemuVersion::default())));
        }
        let (id, outcome) = (Some(7), Ok(json!({})));
        assert_eq!(parse(br#"{"return":{},"id":7}"#), Ok(QmpMessage::Answer { id, outcome }));
        let refused = parse(br#"{"id":8,"error":{"class":"GenericError","desc":"no\nway"}}"#).unwrap();
        let (id, outcome) =
            (Some(8), Err(CommandError { class: "GenericError".into(), description: "no way".into() }));
        assert_eq!(refused, QmpMessage::Answer { id, outcome });
        let event = br#"{"timestamp":{"seconds":1,"microseconds":2},"event":"STOP"}"#;
        let stop = QmpEvent { name: "STOP".into(), data: Value::Null };
        assert_eq!(parse(event), Ok(QmpMessage::Event(stop)));
        for bad in [&b""[..], b"[]", b"{}", b"no JSON", b"\xff\xff{}", br#"{"event":7}"#] {
            assert!(parse(bad).is_err());
        }
    }
}
