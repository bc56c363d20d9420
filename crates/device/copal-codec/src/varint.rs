//! LEB128: seven bits per byte, lowest first; the top bit marks that another byte follows.
//!
//! Invariants
//! - A value has exactly one encoding: padding with a final zero byte is refused, so equal values hash alike.
//! - At most [`MAX_LEN`] bytes; bits beyond the 64th are refused, not dropped.

/// Longest encoding of a `u64`.
pub const MAX_LEN: usize = 10;

/// Encoded length of `value`, 1 to [`MAX_LEN`].
#[must_use]
pub fn len(value: u64) -> usize {
    let bits = 64 - (value | 1).leading_zeros() as usize;
    bits.div_ceil(7)
}

/// Encodes `value`; the first `.1` bytes of the array are the encoding.
#[must_use]
pub fn encode(mut value: u64) -> ([u8; MAX_LEN], usize) {
    let mut out = [0; MAX_LEN];
    let mut used = 0;
    for slot in &mut out {
        used += 1;
        let low = (value & 0x7f) as u8;
        value >>= 7;
        if value == 0 {
            *slot = low;
            break;
        }
        *slot = low | 0x80;
    }
    (out, used)
}

/// Result of decoding a number at the front of `bytes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodedVarint {
    /// The value and its encoded length.
    Value(u64, usize),
    /// The bytes end inside the number.
    Truncated,
    /// Longer than a `u64`, or padded: no encoder of Copal writes this.
    Invalid,
}

/// Decodes one number from the front of `bytes`.
#[must_use]
pub fn decode(bytes: &[u8]) -> DecodedVarint {
    let mut value = 0u64;
    for (index, &byte) in bytes.iter().take(MAX_LEN).enumerate() {
        let last = byte & 0x80 == 0;
        let padded = last && byte == 0 && index > 0;
        let past_64_bits = index == MAX_LEN - 1 && byte > 1;
        if padded || past_64_bits {
            return DecodedVarint::Invalid;
        }
        value |= u64::from(byte & 0x7f) << (7 * index);
        if last {
            return DecodedVarint::Value(value, index + 1);
        }
    }
    DecodedVarint::Truncated
}
