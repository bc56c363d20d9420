//! Frame: one append to a stream, whole pages, self-describing.
//!
//! Format: docs/formats/object-frame.md v1
//! Invariants
//! - The sum covers the whole pages, header and padding included. It is over hashes: a CRC32C of the bytes alone is the
//!   same for payloads that end with their own CRC32C, so that old pages behind the first one could pass for new ones.
//! - A frame counts only where the stream expects its number under the incarnation of that space.

use super::{hash64, sum_rule::SumRule};
use copal_codec::{DecodeError, Put, Reader, crc32c};

/// Bytes before the payload.
pub(crate) const HEADER_LEN: usize = 64;
/// Most bytes of a frame, header included.
pub(crate) const FRAME_BYTES_MAX: usize = 1 << 20;
const MAGIC: u32 = 0x4d46_5043; // "CPFM"
const SUM_AT: usize = 4;
/// Rule of the sum: CRC32C over the XXH3-64 of the header and that of all behind it. 0: CRC32C of the bytes.
const SUM_OF_HASHES: u32 = 1;

/// Header of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    /// Random number of this use of the space.
    pub(crate) incarnation: u64,
    pub(crate) frame: u64,
    /// Frames below this number were durable when this frame was written.
    pub(crate) flushed_frame: u64,
    /// The frame counts only if the commit with this position survives; 0: always.
    pub(crate) after: u64,
    pub(crate) rule: SumRule,
}

/// Reason why bytes are not a frame.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameError {
    #[error("no frame")]
    Magic,
    #[error("its length is impossible")]
    Length,
    #[error("its checksum differs")]
    Sum,
    #[error(transparent)]
    Decode(#[from] DecodeError),
}

/// Most bytes from the last durable frame of a new stream to the page behind the longest next one.
const LOOK_BYTES: usize = 64 << 10;

/// Pages of the longest frame.
pub(crate) fn pages_max(page_bytes: usize) -> u32 {
    (FRAME_BYTES_MAX / page_bytes) as u32
}

/// Most pages of a frame of a new stream, until a record promises longer ones. Recovery then reads the end of
/// the stream with one command of 64 KiB: the last durable frame, the next one, and a page behind it. No
/// record names this number, so it is a part of the format.
pub(crate) fn pages_max_of_new(page_bytes: usize) -> u32 {
    ((LOOK_BYTES / page_bytes).saturating_sub(1) / 2).max(1) as u32
}

/// Pages of a frame with `payload_len` bytes.
pub(crate) fn pages_for(payload_len: usize, page_bytes: usize) -> usize {
    (HEADER_LEN + payload_len).div_ceil(page_bytes)
}

/// Encodes a frame into `out`, whose length is the whole pages it takes.
///
/// # Panics
/// When `payload` does not fit: the caller sized `out` with [`pages_for`].
pub(crate) fn encode(header: &FrameHeader, payload: &[u8], out: &mut [u8]) {
    let used = HEADER_LEN + payload.len();
    assert!(used <= out.len(), "the buffer was sized for the frame");
    let mut head = Vec::with_capacity(HEADER_LEN);
    head.put_u32(MAGIC);
    head.put_u32(0);
    head.put_u64(header.incarnation);
    head.put_u64(header.frame);
    head.put_u64(header.flushed_frame);
    head.put_u64(header.after);
    head.put_u32(payload.len() as u32);
    head.put_u32(if header.rule == SumRule::Crc32c { 0 } else { SUM_OF_HASHES });
    head.put_zeros(16);
    debug_assert_eq!(head.len(), HEADER_LEN);
    out[..HEADER_LEN].copy_from_slice(&head);
    out[HEADER_LEN..used].copy_from_slice(payload);
    out[used..].fill(0);
    let sum = sum_of(header.rule, out);
    out[SUM_AT..SUM_AT + 4].copy_from_slice(&sum.to_le_bytes());
}

/// Header and payload length that `bytes` claims. Not verified yet; the reader fetches the rest with it.
pub(crate) fn claimed(bytes: &[u8]) -> Result<(FrameHeader, usize), FrameError> {
    let mut input = Reader::new(bytes);
    if input.u32()? != MAGIC {
        return Err(FrameError::Magic);
    }
    input.bytes(4)?;
    let (incarnation, frame) = (input.u64()?, input.u64()?);
    let (flushed_frame, after) = (input.u64()?, input.u64()?);
    let payload = input.u32()? as usize;
    let at = input.position();
    let rule = match input.u32()? {
        0 => SumRule::Crc32c,
        SUM_OF_HASHES => SumRule::Hashes,
        kind => {
            return Err(
                DecodeError::UnknownKind { at, kind: kind.into(), newest: SUM_OF_HASHES.into() }.into()
            );
        }
    };
    input.zeros(16)?;
    let header = FrameHeader { incarnation, frame, flushed_frame, after, rule };
    if payload > FRAME_BYTES_MAX - HEADER_LEN {
        return Err(FrameError::Length);
    }
    Ok((header, payload))
}

/// Checks the frame that fills the whole pages `bytes`; returns its header and payload length.
pub(crate) fn decode(bytes: &[u8]) -> Result<(FrameHeader, usize), FrameError> {
    let (header, payload) = claimed(bytes)?;
    if HEADER_LEN + payload > bytes.len() {
        return Err(FrameError::Length);
    }
    let stored = Reader::new(&bytes[SUM_AT..]).u32()?;
    if stored != sum_of(header.rule, bytes) {
        return Err(FrameError::Sum);
    }
    Ok((header, payload))
}

/// Sum of the whole pages of a frame, with zeros in its place.
fn sum_of(rule: SumRule, bytes: &[u8]) -> u32 {
    let (before, rest) = bytes.split_at(HEADER_LEN);
    let mut head = [0; HEADER_LEN];
    head.copy_from_slice(before);
    head[SUM_AT..SUM_AT + 4].fill(0);
    let parts = [&head, rest];
    parts.iter().fold(0, |sum, part| match rule {
        SumRule::Crc32c => crc32c(sum, part),
        SumRule::Hashes => crc32c(sum, &hash64(part).to_le_bytes()),
    })
}
