//! Place of an interrupted scrub, kept in an object of its own.
//!
//! Format: docs/formats/object-scrub-place.md v1
//! Invariants
//! - It is a hint: a store whose place is lost or damaged is read from its beginning.

use copal_codec::{DecodeError, ENVELOPE_LEN, Envelope, EnvelopeError, Format, Put, Reader};

const BODY_LEN: usize = 32;
const FORMAT: Format =
    Format { magic: *b"COPALSCB", name: "place of a scrub", oldest: 1, version: 1, known_flags: 0 };

/// Content of the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ScrubPlace {
    /// Everything before this page was read.
    pub(crate) page: u64,
    /// Damages found before it.
    pub(crate) damages: u64,
}

/// Reason for refusing a place.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ScrubPlaceError {
    #[error(transparent)]
    Envelope(#[from] EnvelopeError),
    #[error(transparent)]
    Decode(#[from] DecodeError),
}

impl ScrubPlace {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; ENVELOPE_LEN];
        out.put_u64(self.page);
        out.put_u64(self.damages);
        out.put_zeros(BODY_LEN - 16);
        Envelope::seal(&FORMAT, 0, 0, &mut out);
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<ScrubPlace, ScrubPlaceError> {
        let (_, body) = Envelope::open(&FORMAT, bytes)?;
        let mut input = Reader::new(body);
        let place = ScrubPlace { page: input.u64()?, damages: input.u64()? };
        input.zeros(BODY_LEN - 16)?;
        input.finish()?;
        Ok(place)
    }
}
