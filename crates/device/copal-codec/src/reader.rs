//! Checked reading of little-endian bytes.
//!
//! Invariants
//! - Never panics, never allocates, never moves past the end.
//! - After an error the position is where the failed item starts.

use crate::varint::{self, DecodedVarint};

/// Reason of a decoding error. Positions count from the start of the reader's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The bytes end inside an item.
    #[error("the bytes end at {at}: {wanted} more are needed, {left} are left")]
    Truncated {
        /// Position of the item.
        at: usize,
        /// Bytes the item needs.
        wanted: usize,
        /// Bytes that are left.
        left: usize,
    },
    /// A varint longer than 64 bits or not in its shortest form.
    #[error("the number at {at} is not a valid varint")]
    Varint {
        /// Position of the number.
        at: usize,
    },
    /// A length or count above the limit of its field.
    #[error("the length at {at} is {len}, at most {max} is allowed")]
    TooLong {
        /// Position of the length.
        at: usize,
        /// The length found.
        len: u64,
        /// The bound of its field.
        max: u64,
    },
    /// A reserved byte that must be zero is not.
    #[error("the reserved bytes at {at} are not zero")]
    NotZero {
        /// Position of the reserved field.
        at: usize,
    },
    /// The kind of a record or a mode is unknown.
    #[error(
        "the kind at {at} is {kind}, and {newest} is the newest that is known: a later build may have written it"
    )]
    UnknownKind {
        /// Position of the kind.
        at: usize,
        /// The kind found.
        kind: u64,
        /// The newest kind this build knows.
        newest: u64,
    },
    /// A value that no writer writes.
    #[error("the {what} at {at} is not valid")]
    Invalid {
        /// Position of the item.
        at: usize,
        /// Name of the expected item.
        what: &'static str,
    },
    /// Bytes are left where the item must end.
    #[error("{left} bytes too many from {at} on")]
    Trailing {
        /// First byte too many.
        at: usize,
        /// Their number.
        left: usize,
    },
}

/// Reads items one after another from borrowed bytes.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// Starts at the first byte of `bytes`.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes, at: 0 }
    }

    /// Bytes read so far.
    #[must_use]
    pub fn position(&self) -> usize {
        self.at
    }

    /// Bytes not read yet.
    #[must_use]
    pub fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// Whether everything has been read.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.remaining() == 0
    }

    /// The next `len` bytes.
    /// # Errors
    /// `Truncated` when fewer are left.
    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        let rest = &self.bytes[self.at..];
        let Some(item) = rest.get(..len) else {
            return Err(DecodeError::Truncated { at: self.at, wanted: len, left: rest.len() });
        };
        self.at += len;
        Ok(item)
    }

    /// All bytes that are left.
    pub fn rest(&mut self) -> &'a [u8] {
        let rest = &self.bytes[self.at..];
        self.at = self.bytes.len();
        rest
    }

    /// The next `N` bytes by value.
    /// # Errors
    /// `Truncated` when fewer are left.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let mut out = [0; N];
        out.copy_from_slice(self.bytes(N)?);
        Ok(out)
    }

    /// One byte.
    /// # Errors
    /// `Truncated` at the end.
    pub fn u8(&mut self) -> Result<u8, DecodeError> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    /// Two bytes, little-endian.
    /// # Errors
    /// `Truncated` when fewer are left.
    pub fn u16(&mut self) -> Result<u16, DecodeError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    /// Four bytes, little-endian.
    /// # Errors
    /// `Truncated` when fewer are left.
    pub fn u32(&mut self) -> Result<u32, DecodeError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// Eight bytes, little-endian.
    /// # Errors
    /// `Truncated` when fewer are left.
    pub fn u64(&mut self) -> Result<u64, DecodeError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// Sixteen bytes, little-endian.
    /// # Errors
    /// `Truncated` when fewer are left.
    pub fn u128(&mut self) -> Result<u128, DecodeError> {
        Ok(u128::from_le_bytes(self.array()?))
    }

    /// One LEB128 number, see [`varint`].
    /// # Errors
    /// `Truncated` inside it; `Varint` when it is too long or padded.
    pub fn varint(&mut self) -> Result<u64, DecodeError> {
        let left = self.remaining();
        match varint::decode(&self.bytes[self.at..]) {
            DecodedVarint::Value(value, used) => {
                self.at += used;
                Ok(value)
            }
            DecodedVarint::Truncated => Err(DecodeError::Truncated { at: self.at, wanted: left + 1, left }),
            DecodedVarint::Invalid => Err(DecodeError::Varint { at: self.at }),
        }
    }

    /// A LEB128 length or count of at most `max`: the only number from disk that may determine a size.
    /// # Errors
    /// As [`Reader::varint`]; `TooLong` above `max`.
    pub fn bounded(&mut self, max: usize) -> Result<usize, DecodeError> {
        let at = self.at;
        let len = self.varint()?;
        match usize::try_from(len) {
            Ok(fits) if fits <= max => Ok(fits),
            _ => {
                self.at = at;
                Err(DecodeError::TooLong { at, len, max: max as u64 })
            }
        }
    }

    /// A LEB128 length of at most `max`, then that many bytes.
    /// # Errors
    /// As [`Reader::bounded`] and [`Reader::bytes`].
    pub fn prefixed(&mut self, max: usize) -> Result<&'a [u8], DecodeError> {
        let at = self.at;
        let len = self.bounded(max)?;
        self.bytes(len).inspect_err(|_| self.at = at)
    }

    /// `len` reserved bytes, all zero.
    /// # Errors
    /// `Truncated`, or `NotZero` when one is set.
    pub fn zeros(&mut self, len: usize) -> Result<(), DecodeError> {
        let at = self.at;
        if self.bytes(len)?.iter().any(|&byte| byte != 0) {
            self.at = at;
            return Err(DecodeError::NotZero { at });
        }
        Ok(())
    }

    /// Asserts that nothing is left.
    /// # Errors
    /// `Trailing` when bytes are left.
    pub fn finish(self) -> Result<(), DecodeError> {
        match self.remaining() {
            0 => Ok(()),
            left => Err(DecodeError::Trailing { at: self.at, left }),
        }
    }
}
