//! A frame: length, number of the request, method, flags, checksum, trace number, time left, permit, message.
//!
//! All numbers are big-endian, like the length, which the transport reads first.
//! Format: docs/formats/wire-frame.md

use bytes::{Buf, BufMut, Bytes, BytesMut};
use copal_codec::crc32c;

/// Bytes between the length and the optional fields.
pub const FRAME_HEADER_LEN: usize = 16;
/// Longest frame without its length: a piece of 4 MiB and the other fields of its message.
pub const MAX_FRAME_BYTES: usize = (4 << 20) + (64 << 10);

const REPLY: u16 = 1;
const FAILURE: u16 = 2;
const TRACED: u16 = 4;
const TIMED: u16 = 8;
const MORE: u16 = 16;
const PERMITTED: u16 = 32;
const KNOWN_FLAGS: u16 = REPLY | FAILURE | TRACED | TIMED | MORE | PERMITTED;
const TRACE_LEN: usize = 8;
const LEFT_LEN: usize = 4;
/// Longest permit in a frame.
pub const MAX_PERMIT_BYTES: usize = 2 << 10;
const SUM_AT: usize = 12;

/// A frame with one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WireFrame {
    /// Number of the request within its connection; a reply has the number of its request.
    pub id: u64,
    /// Number of the method.
    pub method: u16,
    /// Whether it is a reply; otherwise a request.
    pub is_reply: bool,
    /// The message is a `Failure`.
    pub is_failure: bool,
    /// More replies to the request follow.
    pub is_more: bool,
    /// Trace number of the operation that the call is part of, for logs; 0: none.
    pub trace: u64,
    /// In a request: milliseconds until the caller's deadline; `None`: not stated.
    pub left_ms: Option<u32>,
    /// Permit of the sender, a `SignedPermit`; empty: none. A permit longer than `MAX_PERMIT_BYTES` is not sent.
    pub permit: Bytes,
    /// The message, encoded.
    pub message: Bytes,
}

/// Why bytes are not a frame. Their connection cannot be used any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Fewer bytes than a header.
    #[error("a frame of {0} bytes is too short")]
    Short(usize),
    /// More bytes than a frame may have.
    #[error("a frame of {0} bytes is too long")]
    Long(usize),
    /// The bytes differ from those that were sent.
    #[error("a frame's checksum is {stored:08x}, its bytes give {computed:08x}")]
    Checksum {
        /// Checksum in the frame.
        stored: u32,
        /// Checksum of its bytes.
        computed: u32,
    },
    /// Flags of a newer release.
    #[error("a frame has flags {0:#06x} that this release does not know")]
    Flags(u16),
}

impl WireFrame {
    /// The bytes after the length.
    pub fn encode(&self) -> Bytes {
        let permit = match self.permit.len() {
            1..=MAX_PERMIT_BYTES => &self.permit[..],
            _ => &[],
        };
        let length = FRAME_HEADER_LEN + TRACE_LEN + LEFT_LEN + 2 + permit.len() + self.message.len();
        let mut out = BytesMut::with_capacity(length);
        let trace = self.trace.to_be_bytes();
        let trace = if self.trace == 0 { &[][..] } else { &trace[..] };
        let left_ms = self.left_ms.map(u32::to_be_bytes);
        let left = left_ms.as_ref().map_or(&[][..], |left| &left[..]);
        let flag = |is_set, flag| if is_set { flag } else { 0 };
        out.put_u64(self.id);
        out.put_u16(self.method);
        let optional = flag(self.trace != 0, TRACED) | flag(self.left_ms.is_some(), TIMED);
        let optional = optional | flag(self.is_more, MORE) | flag(!permit.is_empty(), PERMITTED);
        out.put_u16(flag(self.is_reply, REPLY) | flag(self.is_failure, FAILURE) | optional);
        let length = (permit.len() as u16).to_be_bytes();
        let length = if permit.is_empty() { &[][..] } else { &length[..] };
        let parts = [trace, left, length, permit];
        let sum = parts.iter().fold(crc32c(0, &out), |sum, part| crc32c(sum, part));
        out.put_u32(crc32c(sum, &self.message));
        parts.iter().for_each(|part| out.put_slice(part));
        out.put_slice(&self.message);
        out.freeze()
    }

    /// Number and method from the first bytes after the length, without a message. They are not verified until
    /// the complete frame is decoded.
    pub fn peek(mut header: &[u8]) -> WireFrame {
        let id = header.try_get_u64().unwrap_or(0);
        WireFrame {
            id,
            method: header.try_get_u16().unwrap_or(0),
            is_reply: false,
            is_failure: false,
            is_more: false,
            trace: 0,
            left_ms: None,
            permit: Bytes::new(),
            message: Bytes::new(),
        }
    }

    /// Decodes the bytes after the length.
    /// # Errors
    /// The bytes are damaged, or are not a frame of this protocol.
    pub fn decode(mut bytes: Bytes) -> Result<WireFrame, FrameError> {
        if bytes.len() < FRAME_HEADER_LEN {
            return Err(FrameError::Short(bytes.len()));
        }
        if bytes.len() > MAX_FRAME_BYTES {
            return Err(FrameError::Long(bytes.len()));
        }
        let head = crc32c(0, &bytes[..SUM_AT]);
        let id = bytes.get_u64();
        let method = bytes.get_u16();
        let flags = bytes.get_u16();
        let stored = bytes.get_u32();
        let computed = crc32c(head, &bytes);
        if stored != computed {
            return Err(FrameError::Checksum { stored, computed });
        }
        if flags & !KNOWN_FLAGS != 0 {
            return Err(FrameError::Flags(flags & !KNOWN_FLAGS));
        }
        let short = |left: usize| FrameError::Short(FRAME_HEADER_LEN + left);
        let trace = match flags & TRACED {
            0 => 0,
            _ => bytes.try_get_u64().map_err(|_| short(bytes.len()))?,
        };
        let left_ms = match flags & TIMED {
            0 => None,
            _ => Some(bytes.try_get_u32().map_err(|_| short(bytes.len()))?),
        };
        let permit = match flags & PERMITTED {
            0 => Bytes::new(),
            _ => {
                let length = bytes.try_get_u16().map_err(|_| short(bytes.len()))?;
                let length = usize::from(length);
                if length > MAX_PERMIT_BYTES {
                    return Err(FrameError::Long(length));
                }
                if length > bytes.len() {
                    return Err(short(bytes.len()));
                }
                bytes.split_to(length)
            }
        };
        Ok(WireFrame {
            id,
            method,
            is_reply: flags & REPLY != 0,
            is_failure: flags & FAILURE != 0,
            is_more: flags & MORE != 0,
            trace,
            left_ms,
            permit,
            message: bytes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame() -> WireFrame {
        WireFrame {
            id: 7,
            method: 17,
            is_reply: true,
            is_failure: false,
            is_more: false,
            trace: 0,
            left_ms: None,
            permit: Bytes::new(),
            message: Bytes::from_static(b"message"),
        }
    }

    fn traced() -> WireFrame {
        WireFrame { trace: 0x0102_0304_0506_0708, is_reply: false, ..frame() }
    }

    fn timed() -> WireFrame {
        WireFrame { left_ms: Some(30_000), ..traced() }
    }

    fn permitted() -> WireFrame {
        WireFrame { permit: Bytes::from_static(b"may"), ..traced() }
    }

    #[test]
    fn a_frame_survives_the_conversion() {
        let is_more = true;
        for frame in [frame(), traced(), timed(), permitted(), WireFrame { is_more, ..frame() }] {
            assert_eq!(WireFrame::decode(frame.encode()), Ok(frame));
        }
    }

    /// The example of docs/formats/wire-frame.md.
    #[test]
    fn the_bytes_of_the_format_page() {
        let hex = |frame: WireFrame| -> String {
            let bytes = frame.encode();
            bytes.iter().map(|byte| format!("{byte:02x}")).collect()
        };
        assert_eq!(hex(frame()), "0000000000000007001100010f85edee6d657373616765");
        assert_eq!(hex(traced()), "000000000000000700110004d1275eb001020304050607086d657373616765");
        assert_eq!(hex(timed()), "00000000000000070011000c881d94b90102030405060708000075306d657373616765");
        assert_eq!(
            hex(permitted()),
            "000000000000000700110024c5b7ee78010203040506070800036d61796d657373616765"
        );
    }

    #[test]
    fn any_flipped_bit_is_noticed() {
        let sent = WireFrame { left_ms: Some(30_000), ..permitted() };
        let sent = sent.encode();
        for bit in 0..sent.len() * 8 {
            let mut bytes = sent.to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(WireFrame::decode(bytes.into()).is_err(), "bit {bit}");
        }
        for len in 0..sent.len() {
            assert!(WireFrame::decode(sent.slice(..len)).is_err(), "{len} bytes");
        }
    }

    #[test]
    fn a_permit_longer_than_its_frame_or_than_any_is_refused() {
        for length in [4_u16, 2049, u16::MAX] {
            let mut bytes = WireFrame { trace: 0, ..permitted() }.encode().to_vec();
            bytes.truncate(FRAME_HEADER_LEN + 2 + 3);
            bytes[FRAME_HEADER_LEN..FRAME_HEADER_LEN + 2].copy_from_slice(&length.to_be_bytes());
            let sum = crc32c(crc32c(0, &bytes[..SUM_AT]), &bytes[FRAME_HEADER_LEN..]);
            bytes[SUM_AT..FRAME_HEADER_LEN].copy_from_slice(&sum.to_be_bytes());
            let read = WireFrame::decode(bytes.into());
            assert!(matches!(read, Err(FrameError::Short(_) | FrameError::Long(_))), "{length}: {read:?}");
        }
    }

    #[test]
    fn flags_of_a_newer_release_are_refused() {
        let mut bytes = frame().encode().to_vec();
        bytes[11] |= 64;
        let sum = crc32c(crc32c(0, &bytes[..SUM_AT]), &bytes[FRAME_HEADER_LEN..]);
        bytes[SUM_AT..FRAME_HEADER_LEN].copy_from_slice(&sum.to_be_bytes());
        assert_eq!(WireFrame::decode(bytes.into()), Err(FrameError::Flags(64)));
    }
}
