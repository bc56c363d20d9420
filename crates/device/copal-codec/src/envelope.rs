//! The 32-byte header at the start of every on-disk format of Copal.
//!
//! Format: docs/formats/envelope.md v1
//! Invariants
//! - Order of the checks: magic, checksum, version, flags. Damaged bytes are never reported as "written by a
//!   newer release".
//! - The body length is bounded by the existing bytes before it is used.
//! - The layout below is frozen: a format changes its version, never its envelope.

use crate::{Put, Reader, SliceWriter, crc32c};

/// Bytes of the envelope; the body follows.
pub const ENVELOPE_LEN: usize = 32;
const CHECKSUM_AT: usize = 24;

/// Versions and flags that one format reads and writes. One constant per format, beside its code.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// First eight bytes.
    pub magic: [u8; 8],
    /// Name of the format in messages: "superblock", "table".
    pub name: &'static str,
    /// Oldest version this build reads.
    pub oldest: u16,
    /// Version this build writes, and the newest it reads. Version 0 belongs to development builds.
    pub version: u16,
    /// *Must understand* flags this build knows.
    pub known_flags: u32,
}

/// Header of one sealed body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// Version the body is written in.
    pub version: u16,
    /// Flags a reader may ignore.
    pub may_ignore: u32,
    /// Flags a reader must know to read the body rightly.
    pub must_understand: u32,
    /// Bytes of the body.
    pub body_len: u32,
}

/// Reason of a refused envelope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EnvelopeError {
    /// Shorter than an envelope, or with a truncated body.
    #[error("the {name} is truncated: it needs {wanted} bytes and has {found}")]
    Truncated {
        /// Name of the format.
        name: &'static str,
        /// Bytes the envelope and body take.
        wanted: u64,
        /// Number of existing bytes.
        found: u64,
    },
    /// A file of another format.
    #[error("this is not a Copal {name}: it starts with {found:02x?}")]
    Magic {
        /// Name of the format that was expected.
        name: &'static str,
        /// The first eight bytes.
        found: [u8; 8],
    },
    /// The bytes are damaged.
    #[error("the {name} is damaged: its checksum is {stored:08x}, its bytes give {computed:08x}")]
    Checksum {
        /// Name of the format.
        name: &'static str,
        /// Checksum in the envelope.
        stored: u32,
        /// Checksum of the bytes.
        computed: u32,
    },
    /// Intact, but of a version this build does not read.
    #[error(
        "the {name} has format version {found}, this build reads {oldest} to {newest}; use the release that wrote it"
    )]
    Version {
        /// Name of the format.
        name: &'static str,
        /// Version in the envelope.
        found: u16,
        /// Oldest version this build reads.
        oldest: u16,
        /// Newest version this build reads.
        newest: u16,
    },
    /// Intact, but uses a feature this build does not know.
    #[error("the {name} uses features {unknown:#010x} that this build does not know; use a newer release")]
    Flags {
        /// Name of the format.
        name: &'static str,
        /// The *must understand* flags that are not known.
        unknown: u32,
    },
    /// Intact, but a reserved field is set.
    #[error("the {name} has reserved bytes that are not zero; use a newer release")]
    Reserved {
        /// Name of the format.
        name: &'static str,
    },
}

impl EnvelopeError {
    /// Whether the bytes differ from those written, so that another copy should be tried. `false`: another
    /// release can read them.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        matches!(
            self,
            EnvelopeError::Truncated { .. } | EnvelopeError::Magic { .. } | EnvelopeError::Checksum { .. }
        )
    }
}

/// Bytes after the body, up to the end of a page, are not all zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the padding after the {name} is not zero at byte {at}")]
pub struct NotZeroPadding {
    /// Name of the format.
    pub name: &'static str,
    /// First byte that is set.
    pub at: usize,
}

impl Envelope {
    /// Writes the envelope in front of a body that fills `bytes[32..]`.
    ///
    /// # Panics
    /// When `bytes` is shorter than an envelope or the body is 4 GiB or more: our own bug.
    pub fn seal(format: &Format, may_ignore: u32, must_understand: u32, bytes: &mut [u8]) -> Envelope {
        assert!(bytes.len() >= ENVELOPE_LEN, "no room for the envelope of a {}", format.name);
        let (head, body) = bytes.split_at_mut(ENVELOPE_LEN);
        assert!(u32::try_from(body.len()).is_ok(), "the body of a {} is too long", format.name);
        let envelope =
            Envelope { version: format.version, may_ignore, must_understand, body_len: body.len() as u32 };
        envelope.write(format, 0, head);
        let sum = crc32c(crc32c(0, head), body);
        envelope.write(format, sum, head);
        envelope
    }

    fn write(&self, format: &Format, sum: u32, head: &mut [u8]) {
        let mut out = SliceWriter::new(head);
        out.put_bytes(&format.magic);
        out.put_u16(self.version);
        out.put_zeros(2);
        out.put_u32(self.may_ignore);
        out.put_u32(self.must_understand);
        out.put_u32(self.body_len);
        out.put_u32(sum);
        out.put_zeros(4);
        debug_assert_eq!(out.position(), ENVELOPE_LEN);
    }

    /// Checks the envelope at the front of `bytes`; returns it and the body. Bytes after the body are not
    /// checked.
    /// # Errors
    /// See [`EnvelopeError`]; in its order: too short, other magic, damaged, reserved, version, flags.
    pub fn open<'a>(format: &Format, bytes: &'a [u8]) -> Result<(Envelope, &'a [u8]), EnvelopeError> {
        let name = format.name;
        let found = bytes.len() as u64;
        let cut = |wanted: u64| EnvelopeError::Truncated { name, wanted, found };
        let Some((head, rest)) = bytes.split_at_checked(ENVELOPE_LEN) else {
            return Err(cut(ENVELOPE_LEN as u64));
        };
        let parsed = EnvelopeHead::parse(head).map_err(|_| cut(ENVELOPE_LEN as u64))?;
        if parsed.magic != format.magic {
            return Err(EnvelopeError::Magic { name, found: parsed.magic });
        }
        let body = usize::try_from(parsed.envelope.body_len)
            .ok()
            .and_then(|len| rest.get(..len))
            .ok_or_else(|| cut(ENVELOPE_LEN as u64 + u64::from(parsed.envelope.body_len)))?;
        let computed = checksum(head, body);
        if computed != parsed.sum {
            return Err(EnvelopeError::Checksum { name, stored: parsed.sum, computed });
        }
        parsed.accepted_by(format)?;
        Ok((parsed.envelope, body))
    }

    /// Checks that everything after the body in `bytes` (envelope, body, padding of a page) is zero.
    /// # Errors
    /// `NotZeroPadding` names the first byte that is set.
    pub fn check_padding(&self, format: &Format, bytes: &[u8]) -> Result<(), NotZeroPadding> {
        let end = ENVELOPE_LEN.saturating_add(self.body_len as usize).min(bytes.len());
        match bytes[end..].iter().position(|&byte| byte != 0) {
            None => Ok(()),
            Some(offset) => Err(NotZeroPadding { name: format.name, at: end + offset }),
        }
    }
}

struct EnvelopeHead {
    magic: [u8; 8],
    envelope: Envelope,
    sum: u32,
    reserved: u64,
}

impl EnvelopeHead {
    fn parse(head: &[u8]) -> Result<EnvelopeHead, crate::DecodeError> {
        let mut input = Reader::new(head);
        let magic = input.array()?;
        let version = input.u16()?;
        let zero_a = input.u16()?;
        let may_ignore = input.u32()?;
        let must_understand = input.u32()?;
        let body_len = input.u32()?;
        let sum = input.u32()?;
        let zero_b = input.u32()?;
        let envelope = Envelope { version, may_ignore, must_understand, body_len };
        Ok(EnvelopeHead { magic, envelope, sum, reserved: u64::from(zero_a) | u64::from(zero_b) })
    }

    fn accepted_by(&self, format: &Format) -> Result<(), EnvelopeError> {
        let name = format.name;
        if self.reserved != 0 {
            return Err(EnvelopeError::Reserved { name });
        }
        let found = self.envelope.version;
        if found < format.oldest || found > format.version {
            return Err(EnvelopeError::Version {
                name,
                found,
                oldest: format.oldest,
                newest: format.version,
            });
        }
        let unknown = self.envelope.must_understand & !format.known_flags;
        if unknown != 0 {
            return Err(EnvelopeError::Flags { name, unknown });
        }
        Ok(())
    }
}

/// CRC32C of header and body, with the checksum field counted as zero.
fn checksum(head: &[u8], body: &[u8]) -> u32 {
    let before = crc32c(0, &head[..CHECKSUM_AT]);
    let field = crc32c(before, &[0; 4]);
    let header = crc32c(field, &head[CHECKSUM_AT + 4..]);
    crc32c(header, body)
}

/// An envelope with right magic, body length and checksum; its other fields and its body are any bytes.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) fn crafted(format: &Format, bytes: &[u8]) -> Vec<u8> {
    let mut out = bytes.to_vec();
    out.resize(out.len().max(ENVELOPE_LEN), 0);
    let (head, body) = out.split_at_mut(ENVELOPE_LEN);
    head[..8].copy_from_slice(&format.magic);
    head[CHECKSUM_AT - 4..CHECKSUM_AT].copy_from_slice(&(body.len() as u32).to_le_bytes());
    let sum = checksum(head, body);
    head[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&sum.to_le_bytes());
    out
}
