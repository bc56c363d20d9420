//! What a line of the other side says.

use serde_json::Value;

/// Longest sentence of the other side that is kept, in bytes.
const MAX_WORDS_BYTES: usize = 1024;

/// Something that happened.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// What: `JOB_STATUS_CHANGE`.
    pub name: String,
    /// To whom, and how.
    pub data: Value,
}

/// One line.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Message {
    /// The first line of a QMP server.
    Greeting,
    /// The answer to a command.
    Answer {
        id: Option<u64>,
        outcome: Result<Value, Complaint>,
    },
    Event(Event),
}

/// Why a command was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Complaint {
    pub(crate) class: String,
    pub(crate) description: String,
}

/// Takes a line apart.
/// # Errors
/// What is wrong with it.
pub(crate) fn parse(line: &[u8]) -> Result<Message, String> {
    // A guest agent that was reset begins with a byte that no JSON has.
    let line = line.strip_prefix(b"\xff").unwrap_or(line);
    let value: Value = serde_json::from_slice(line).map_err(|error| error.to_string())?;
    let Value::Object(mut fields) = value else {
        return Err("a line is no JSON object".into());
    };
    let id = fields.get("id").and_then(Value::as_u64);
    if let Some(value) = fields.remove("return") {
        return Ok(Message::Answer {
            id,
            outcome: Ok(value),
        });
    }
    if let Some(error) = fields.get("error") {
        let word = |name: &str| {
            clip(
                error
                    .get(name)
                    .and_then(Value::as_str)
                    .unwrap_or("no reason given"),
            )
        };
        let outcome = Err(Complaint {
            class: word("class"),
            description: word("desc"),
        });
        return Ok(Message::Answer { id, outcome });
    }
    if let Some(name) = fields.get("event").and_then(Value::as_str) {
        return Ok(Message::Event(Event {
            name: clip(name),
            data: fields.get("data").cloned().unwrap_or(Value::Null),
        }));
    }
    match fields.contains_key("QMP") {
        true => Ok(Message::Greeting),
        false => Err("a line is neither an answer nor an event".into()),
    }
}

/// Words of the other side as they may stand in a sentence of ours: bounded, on one line.
fn clip(words: &str) -> String {
    let mut end = words.len().min(MAX_WORDS_BYTES);
    while !words.is_char_boundary(end) {
        end -= 1;
    }
    words[..end]
        .chars()
        .map(|char| if char.is_control() { ' ' } else { char })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_kind_of_line_is_told_from_the_others() {
        let greeting =
            br#"{"QMP":{"version":{"qemu":{"micro":0,"minor":2,"major":7},"package":""},"capabilities":[]}}"#;
        assert_eq!(parse(greeting), Ok(Message::Greeting));
        let (id, outcome) = (Some(7), Ok(json!({})));
        assert_eq!(
            parse(br#"{"return":{},"id":7}"#),
            Ok(Message::Answer { id, outcome })
        );
        let refused = parse(br#"{"id":8,"error":{"class":"GenericError","desc":"no\nway"}}"#).unwrap();
        let (id, outcome) = (
            Some(8),
            Err(Complaint {
                class: "GenericError".into(),
                description: "no way".into(),
            }),
        );
        assert_eq!(refused, Message::Answer { id, outcome });
        let event = br#"{"timestamp":{"seconds":1,"microseconds":2},"event":"STOP"}"#;
        let stop = Event {
            name: "STOP".into(),
            data: Value::Null,
        };
        assert_eq!(parse(event), Ok(Message::Event(stop)));
        for bad in [
            &b""[..],
            b"[]",
            b"{}",
            b"no JSON",
            b"\xff\xff{}",
            br#"{"event":7}"#,
        ] {
            assert!(parse(bad).is_err());
        }
    }
}
