//! Frame: one append to a stream, whole pages, self-describing.
//!
//! Format: docs/formats/object-frame.md v1
//! Invariants
//! - The sum covers the whole pages, header and padding included.
//! - A frame counts only where the stream expects its number under the incarnation of that space.

use copal_codec::{DecodeError, Put, Reader, crc32c};

/// Bytes before the payload.
pub(crate) const HEADER_LEN: usize = 64;
/// Most bytes of a frame, header included.
pub(crate) const FRAME_BYTES_MAX: usize = 1 << 20;
const MAGIC: u32 = 0x4d46_5043; // "CPFM"
const SUM_AT: usize = 4;

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
    head.put_zeros(20); // flags, reserved
    debug_assert_eq!(head.len(), HEADER_LEN);
    out[..HEADER_LEN].copy_from_slice(&head);
    out[HEADER_LEN..used].copy_from_slice(payload);
    out[used..].fill(0);
    let sum = crc32c(0, out);
    out[SUM_AT..SUM_AT + 4].copy_from_slice(&sum.to_le_bytes());
}

/// Header and payload length that `bytes` claims. Not verified yet; the reader fetches the rest with it.
pub(crate) fn claimed(bytes: &[u8]) -> Result<(FrameHeader, usize), FrameError> {
    let mut input = Reader::new(bytes);
    if input.u32()? != MAGIC {
        return Err(FrameError::Magic);
    }
    input.bytes(4)?;
    let header = FrameHeader {
        incarnation: input.u64()?,
        frame: input.u64()?,
        flushed_frame: input.u64()?,
        after: input.u64()?,
    };
    let payload = input.u32()? as usize;
    input.zeros(20)?;
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
    let (before, rest) = bytes.split_at(SUM_AT);
    let stored = Reader::new(rest).u32()?;
    let computed = crc32c(crc32c(crc32c(0, before), &[0; 4]), &rest[4..]);
    if stored != computed {
        return Err(FrameError::Sum);
    }
    Ok((header, payload))
}
