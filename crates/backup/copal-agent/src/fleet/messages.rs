//! Messages between agents after validation: bounded, with ids and jobs of the right length.
//!
//! Specified in `proto/copal/agent.proto`, carried by the frames of a cluster (docs/formats/wire-frame.md).
//! Invariant: a message of a peer becomes one of these only within the bounds below.
//!
//! Not here: matching answers to questions (`asker`).

use bytes::Bytes;
use copal_backup::peers::ShortId;
use copal_proto::messages;

/// Version of these messages. Versions 1 and 2 had a transport of their own.
pub const VERSION: u32 = 3;
/// Most ids of one [`AskMessage`], and most codes of one [`AnswerMessage`].
pub const BATCH_IDS: usize = 4096;
/// Most bits of an id that choose its partition.
pub const PARTITION_BITS: u8 = 24;
/// Longest name of a member.
pub const NAME_BYTES: usize = 64;
/// Longest JSON of a command or of its reply.
pub const JSON_BYTES: usize = 1 << 20;

const ID_BYTES: usize = size_of::<ShortId>();

/// A run of an asker: random, which distinguishes its answers from those of earlier runs.
pub type Instance = [u8; 16];

/// A message that no agent of this version sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} of a message between agents is not valid")]
pub struct MessageError(&'static str);

/// Ids of one partition that its owner looks up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AskMessage {
    /// The job.
    pub job: [u8; 16],
    /// Round of the job.
    pub round: u32,
    /// Number of the VM in the job.
    pub vm: u32,
    /// The asker's number of this batch, which its answers carry. A repeated batch has the same number.
    pub batch: u64,
    /// Bits of an id that choose its partition.
    pub partition_bits: u8,
    /// The partition that all the ids are in.
    pub partition: u32,
    /// The ids, at most [`BATCH_IDS`].
    pub ids: Vec<ShortId>,
}

impl AskMessage {
    /// The message of an asker.
    #[must_use]
    pub fn to_message(&self, instance: &Instance) -> messages::AgentAsk {
        messages::AgentAsk {
            instance: Bytes::copy_from_slice(instance),
            job: Bytes::copy_from_slice(&self.job),
            round: self.round,
            vm: self.vm,
            batch: self.batch,
            partition_bits: self.partition_bits.into(),
            partition: self.partition,
            ids: self.ids.concat().into(),
        }
    }

    /// Checks the message of a peer; returns the asker and the question.
    /// # Errors
    /// A field is out of its bounds.
    pub fn of_message(message: &messages::AgentAsk) -> Result<(Instance, AskMessage), MessageError> {
        let bits = u8::try_from(message.partition_bits).ok().filter(|bits| *bits <= PARTITION_BITS);
        let partition_bits = bits.ok_or(MessageError("the number of partitions"))?;
        if message.partition >> partition_bits != 0 {
            return Err(MessageError("the partition"));
        }
        let (ids, rest) = message.ids.as_chunks::<ID_BYTES>();
        if !rest.is_empty() || ids.len() > BATCH_IDS {
            return Err(MessageError("the list of ids"));
        }
        let ask = AskMessage {
            job: job(&message.job)?,
            round: message.round,
            vm: message.vm,
            batch: message.batch,
            partition_bits,
            partition: message.partition,
            ids: ids.to_vec(),
        };
        Ok((instance(&message.instance)?, ask))
    }
}

/// The sender has sent all its questions of this round. May come twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MarkerMessage {
    /// The job.
    pub job: [u8; 16],
    /// The round that has ended for the sender.
    pub round: u32,
    /// Number of hosts that send this marker.
    pub participants: u32,
    /// Time that the sender waits for other hosts from now on, in milliseconds.
    pub patience_ms: u32,
}

impl MarkerMessage {
    /// The message of an asker.
    #[must_use]
    pub fn to_message(&self, instance: &Instance) -> messages::AgentMarker {
        messages::AgentMarker {
            instance: Bytes::copy_from_slice(instance),
            job: Bytes::copy_from_slice(&self.job),
            round: self.round,
            participants: self.participants,
            patience_ms: self.patience_ms,
        }
    }

    /// Checks the message of a peer; returns the asker and the marker.
    /// # Errors
    /// A field is out of its bounds.
    pub fn of_message(message: &messages::AgentMarker) -> Result<(Instance, MarkerMessage), MessageError> {
        let marker = MarkerMessage {
            job: job(&message.job)?,
            round: message.round,
            participants: message.participants,
            patience_ms: message.patience_ms,
        };
        Ok((instance(&message.instance)?, marker))
    }
}

/// The answers to one batch, in the order of its ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnswerMessage {
    /// The job.
    pub job: [u8; 16],
    /// Round of the question.
    pub round: u32,
    /// Number of the batch.
    pub batch: u64,
    /// Partition of the batch.
    pub partition: u32,
    /// Generation of the popular index that answered.
    pub generation: u64,
    /// One code for each id: [`copal_backup::peers::Answer::from_code`].
    pub codes: Vec<u32>,
}

impl AnswerMessage {
    /// Bytes of memory until they are sent.
    #[must_use]
    pub fn bytes(&self) -> usize {
        size_of::<AnswerMessage>() + size_of_val(&self.codes[..])
    }

    /// The message of a server.
    #[must_use]
    pub fn into_message(self) -> messages::AgentAnswer {
        messages::AgentAnswer {
            job: Bytes::copy_from_slice(&self.job),
            round: self.round,
            batch: self.batch,
            partition: self.partition,
            generation: self.generation,
            codes: self.codes,
        }
    }

    /// Checks the message of a peer.
    /// # Errors
    /// A field is out of its bounds.
    pub fn of_message(message: messages::AgentAnswer) -> Result<AnswerMessage, MessageError> {
        if message.codes.len() > BATCH_IDS {
            return Err(MessageError("the number of answers"));
        }
        Ok(AnswerMessage {
            job: job(&message.job)?,
            round: message.round,
            batch: message.batch,
            partition: message.partition,
            generation: message.generation,
            codes: message.codes,
        })
    }
}

/// Checks the instance of an asker.
/// # Errors
/// Its length is not 16 bytes.
pub(crate) fn instance(bytes: &[u8]) -> Result<Instance, MessageError> {
    bytes.try_into().map_err(|_| MessageError("the instance"))
}

fn job(bytes: &[u8]) -> Result<[u8; 16], MessageError> {
    bytes.try_into().map_err(|_| MessageError("the job"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;

    fn ask() -> AskMessage {
        AskMessage {
            job: *b"job number seven",
            round: 2,
            vm: 3,
            batch: 6,
            partition_bits: 4,
            partition: 11,
            ids: vec![*b"\xb0irst of the ids", *b"\xbfecond of the id"],
        }
    }

    #[test]
    fn messages_come_back_as_they_were_sent() {
        let instance = *b"instance of h1..";
        let sent = ask().to_message(&instance).encode_to_vec();
        let read = messages::AgentAsk::decode(&sent[..]).unwrap();
        assert_eq!(AskMessage::of_message(&read), Ok((instance, ask())));
        let marker = MarkerMessage { job: ask().job, round: 2, participants: 3, patience_ms: 4000 };
        assert_eq!(MarkerMessage::of_message(&marker.to_message(&instance)), Ok((instance, marker)));
        let answers = AnswerMessage {
            job: ask().job,
            round: 2,
            batch: 6,
            partition: 11,
            generation: 9,
            codes: vec![1, 0],
        };
        assert_eq!(AnswerMessage::of_message(answers.clone().into_message()), Ok(answers));
    }

    #[test]
    fn fields_out_of_their_bounds_are_refused() {
        let refused = |change: &dyn Fn(&mut messages::AgentAsk)| {
            let mut message = ask().to_message(&[1; 16]);
            change(&mut message);
            AskMessage::of_message(&message).unwrap_err().to_string()
        };
        assert!(refused(&|ask| ask.partition = 16).contains("partition"));
        assert!(refused(&|ask| ask.partition_bits = 25).contains("partitions"));
        assert!(refused(&|ask| ask.partition_bits = 1 << 20).contains("partitions"));
        assert!(refused(&|ask| ask.ids = vec![0; 17].into()).contains("ids"));
        assert!(refused(&|ask| ask.ids = vec![0; 16 * (BATCH_IDS + 1)].into()).contains("ids"));
        assert!(refused(&|ask| ask.job = vec![0; 15].into()).contains("job"));
        assert!(refused(&|ask| ask.instance = Bytes::new()).contains("instance"));
        let mut answer = messages::AgentAnswer { job: vec![0; 16].into(), ..Default::default() };
        answer.codes = vec![0; BATCH_IDS + 1];
        assert!(AnswerMessage::of_message(answer).is_err());
    }
}
