//! Messages to sealed frames and back. Each direction counts its frames: one that is missing, twice or moved
//! does not open.

use super::{FRAME_BYTES, MESSAGE_BYTES};
use snow::StatelessTransportState;
use std::sync::Arc;

/// Bytes in front of each frame: its length.
pub(super) const LENGTH_BYTES: usize = 2;
/// Bytes of a frame that are its tag.
pub(super) const TAG_BYTES: usize = 16;
/// Bytes that begin a message: its length.
const MESSAGE_LENGTH_BYTES: usize = 4;
const PLAIN_BYTES: usize = FRAME_BYTES - TAG_BYTES;

/// Seals what one side says.
pub(super) struct Sealer {
    keys: Arc<StatelessTransportState>,
    next: u64,
}

impl Sealer {
    pub(super) fn new(keys: Arc<StatelessTransportState>) -> Sealer {
        Sealer { keys, next: 0 }
    }

    /// Appends the frames of `message` to `out`.
    ///
    /// # Panics
    /// When the message is longer than [`MESSAGE_BYTES`]: our own bug.
    pub(super) fn seal(&mut self, message: &[u8], out: &mut Vec<u8>) {
        assert!(message.len() <= MESSAGE_BYTES, "a message of {} bytes", message.len());
        let first = message.len().min(PLAIN_BYTES - MESSAGE_LENGTH_BYTES);
        let mut plain = Vec::with_capacity(MESSAGE_LENGTH_BYTES + first);
        plain.extend_from_slice(&(message.len() as u32).to_le_bytes());
        plain.extend_from_slice(&message[..first]);
        self.frame(&plain, out);
        for rest in message[first..].chunks(PLAIN_BYTES) {
            self.frame(rest, out);
        }
    }

    pub(super) fn frame(&mut self, plain: &[u8], out: &mut Vec<u8>) {
        let len = plain.len() + TAG_BYTES;
        out.extend_from_slice(&(len as u16).to_le_bytes());
        let start = out.len();
        out.resize(start + len, 0);
        let sealed = self.keys.write_message(self.next, plain, &mut out[start..]);
        assert_eq!(sealed.ok(), Some(len), "a frame has room for its tag");
        self.next += 1;
    }
}

/// Opens what the other side says.
pub(super) struct Opener {
    keys: Arc<StatelessTransportState>,
    next: u64,
}

/// Why a frame is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Not sealed by the peer, or not the next one.
    Seal,
    /// Without a length, or with more bytes than its message has.
    Shape,
    /// A message of so many bytes.
    TooLong(u32),
}

/// A message of which some frames have come.
#[derive(Default)]
pub(super) struct Partial {
    len: Option<usize>,
    pub(super) bytes: Vec<u8>,
}

impl Partial {
    /// Whether all of it is there.
    pub(super) fn is_whole(&self) -> bool {
        self.len == Some(self.bytes.len())
    }
}

impl Opener {
    pub(super) fn new(keys: Arc<StatelessTransportState>) -> Opener {
        Opener { keys, next: 0 }
    }

    /// Opens `frame` and appends what it says to `message`. `plain` is scratch.
    pub(super) fn open(
        &mut self,
        frame: &[u8],
        plain: &mut [u8],
        message: &mut Partial,
    ) -> Result<(), Refusal> {
        let opened = self.keys.read_message(self.next, frame, plain);
        let mut plain = opened.ok().and_then(|len| plain.get(..len)).ok_or(Refusal::Seal)?;
        self.next += 1;
        let wanted = match message.len {
            Some(wanted) => wanted,
            None => {
                let (head, rest) = plain.split_first_chunk().ok_or(Refusal::Shape)?;
                let announced = u32::from_le_bytes(*head);
                plain = rest;
                let fits = usize::try_from(announced).ok().filter(|&len| len <= MESSAGE_BYTES);
                *message.len.insert(fits.ok_or(Refusal::TooLong(announced))?)
            }
        };
        // An empty frame would keep a message open for nothing.
        let left = wanted - message.bytes.len();
        if plain.len() > left || plain.is_empty() && left > 0 {
            return Err(Refusal::Shape);
        }
        message.bytes.extend_from_slice(plain);
        Ok(())
    }
}
