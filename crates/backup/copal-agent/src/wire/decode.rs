//! Bytes to messages.

use super::{
    ANSWERS, ASK, Answers, Ask, BATCH_IDS, CONTROL, CONTROL_REPLY, HELLO, Hello, JSON_BYTES, MARKER, Marker,
    Message, NAME_BYTES, PARTITION_BITS, REASON_BYTES, REFUSED, Refused, VERSION,
};
use copal_codec::{DecodeError, Reader};

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The peer speaks another version.
    #[error("the peer speaks version {found} of the agents' protocol, this build speaks {VERSION}")]
    Version {
        /// What it speaks.
        found: u16,
    },
    /// The bytes are none that any agent writes.
    #[error("the message is not valid: {0}")]
    Decode(#[from] DecodeError),
}

impl Message {
    /// Takes a message apart.
    /// # Errors
    /// `Version` for a greeting of another version, which a person should see; `Decode` for anything else.
    pub fn decode(bytes: &[u8]) -> Result<Message, WireError> {
        let mut input = Reader::new(bytes);
        let at = input.position();
        let message = match input.u8()? {
            HELLO => Message::Hello(hello(&mut input)?),
            ASK => Message::Ask(ask(&mut input)?),
            MARKER => Message::Marker(Marker {
                job: input.array()?,
                round: input.u32()?,
                participants: input.u32()?,
                patience_ms: input.u32()?,
            }),
            ANSWERS => Message::Answers(answers(&mut input)?),
            REFUSED => Message::Refused(Refused {
                batch: input.u64()?,
                reason: text(&mut input, REASON_BYTES, "reason")?,
            }),
            CONTROL => Message::Control(input.prefixed(JSON_BYTES)?.to_vec()),
            CONTROL_REPLY => Message::ControlReply(input.prefixed(JSON_BYTES)?.to_vec()),
            kind => {
                let kind = u64::from(kind);
                let newest = u64::from(CONTROL_REPLY);
                return Err(DecodeError::UnknownKind { at, kind, newest }.into());
            }
        };
        input.finish()?;
        Ok(message)
    }
}

fn hello(input: &mut Reader<'_>) -> Result<Hello, WireError> {
    let found = input.u16()?;
    if found != VERSION {
        return Err(WireError::Version { found });
    }
    Ok(Hello { instance: input.array()?, name: text(input, NAME_BYTES, "name")? })
}

fn ask(input: &mut Reader<'_>) -> Result<Ask, DecodeError> {
    let job = input.array()?;
    let round = input.u32()?;
    let vm = input.u32()?;
    let batch = input.u64()?;
    let at = input.position();
    let partition_bits = input.u8()?;
    let partition = input.u32()?;
    if partition_bits > PARTITION_BITS || partition >> partition_bits != 0 {
        let what = "partition";
        return Err(DecodeError::Invalid { at, what });
    }
    let count = input.bounded(BATCH_IDS)?;
    let (ids, _) = input.bytes(count * 16)?.as_chunks();
    Ok(Ask { job, round, vm, batch, partition_bits, partition, ids: ids.to_vec() })
}

fn answers(input: &mut Reader<'_>) -> Result<Answers, DecodeError> {
    let job = input.array()?;
    let round = input.u32()?;
    let batch = input.u64()?;
    let partition = input.u32()?;
    let generation = input.u64()?;
    let count = input.bounded(BATCH_IDS)?;
    let (codes, _) = input.bytes(count * 4)?.as_chunks();
    Ok(Answers {
        job,
        round,
        batch,
        partition,
        generation,
        codes: codes.iter().copied().map(u32::from_le_bytes).collect(),
    })
}

fn text(input: &mut Reader<'_>, max: usize, what: &'static str) -> Result<String, DecodeError> {
    let at = input.position();
    let bytes = input.prefixed(max)?;
    let text = std::str::from_utf8(bytes).map_err(|_| DecodeError::Invalid { at, what })?;
    Ok(text.to_owned())
}
