//! Segment header: the first page of a segment that holds records of the `log` backend.
//!
//! Format: docs/formats/object-segment.md v1
//! Invariants
//! - A segment belongs to the chain of records only if its header is valid and names its own place (OBJ-32).

use copal_codec::{DecodeError, ENVELOPE_LEN, Envelope, EnvelopeError, Format, NotZeroPadding, Put, Reader};

const BODY_LEN: usize = 48;
/// More segments than any store ever passes through.
const NUMBER_MAX: u64 = 1 << 60;
const FORMAT: Format =
    Format { magic: *b"COPALSEG", name: "segment header", oldest: 1, version: 1, known_flags: 0 };

/// Content of a segment header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    /// Low half of the store's uuid.
    pub(crate) store: u64,
    /// Number of the segment on the device.
    pub(crate) segment: u64,
    /// Counts the segments of the chain, from 1.
    pub(crate) number: u64,
    /// The segment after it.
    pub(crate) next: u64,
}

/// Place of a segment in the chain of records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ChainSegment {
    /// 0: records lie in no segments.
    pub(crate) number: u64,
    /// The segment after it.
    pub(crate) next: u64,
}

/// Reason for refusing a segment header.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SegmentError {
    #[error(transparent)]
    Envelope(#[from] EnvelopeError),
    #[error(transparent)]
    Padding(#[from] NotZeroPadding),
    #[error(transparent)]
    Decode(#[from] DecodeError),
    #[error("its number in the chain is impossible")]
    Number,
}

impl SegmentHeader {
    /// Encodes the header into `out`, a whole page.
    pub(crate) fn encode(&self, out: &mut [u8]) {
        let mut body = Vec::with_capacity(BODY_LEN);
        for word in [self.store, self.segment, self.number, self.next] {
            body.put_u64(word);
        }
        body.put_zeros(16);
        let used = ENVELOPE_LEN + BODY_LEN;
        out.fill(0);
        out[ENVELOPE_LEN..used].copy_from_slice(&body);
        Envelope::seal(&FORMAT, 0, 0, &mut out[..used]);
    }

    /// Checks and reads the header in the page `bytes`. Not checked here: whether it belongs to the chain.
    pub(crate) fn decode(bytes: &[u8]) -> Result<SegmentHeader, SegmentError> {
        let (envelope, body) = Envelope::open(&FORMAT, bytes)?;
        envelope.check_padding(&FORMAT, bytes)?;
        let mut input = Reader::new(body);
        let header = SegmentHeader {
            store: input.u64()?,
            segment: input.u64()?,
            number: input.u64()?,
            next: input.u64()?,
        };
        input.zeros(16)?;
        input.finish()?;
        if header.number > NUMBER_MAX {
            return Err(SegmentError::Number);
        }
        Ok(header)
    }
}
