//! Checkpoint: all tables as of one record, as a chain of pages of up to 64 KiB.
//!
//! Format: docs/formats/object-checkpoint.md v5
//! Invariants
//! - Each page holds both places, length and hash of the next; the superblock holds those of the first. A
//!   lost or misdirected write has a valid sum of its own and is caught only by its parent.
//! - A page is checked against its hash before a byte of it is used.

use super::hash128;
use copal_codec::{DecodeError, ENVELOPE_LEN, Envelope, EnvelopeError, Format, NotZeroPadding, Put, Reader};

/// Most bytes of one chain page.
pub(crate) const CHAIN_PAGE_MAX: usize = 64 << 10;
const LINKS_LEN: usize = 48;
/// Bytes of a chain page before the body.
pub(crate) const HEAD_LEN: usize = ENVELOPE_LEN + LINKS_LEN;
const FORMAT: Format =
    Format { magic: *b"COPALCKP", name: "checkpoint page", oldest: 1, version: VERSION, known_flags: 0 };
/// Version that is written.
pub(crate) const VERSION: u16 = 5;
/// First version with places and longest frames of streams.
pub(crate) const NAMES_FRAMES: u16 = 4;
/// First version whose objects may have sums over the hashes of pages.
pub(crate) const HASHES_PAGES: u16 = 5;
/// First version behind which records may have inline data.
pub(crate) const INLINE_DATA: u16 = 5;

/// Places, length and hash of a chain page, kept in its parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct ChainLink {
    /// First device page; if `bytes` is 0, there is no next page.
    pub(crate) at: u64,
    /// First device page of the second copy; 0: there is none.
    pub(crate) copy_at: u64,
    pub(crate) bytes: u32,
    pub(crate) hash: u128,
}

/// Content of a chain page.
#[derive(Debug)]
pub(crate) struct ChainPage<'a> {
    /// The next page of the chain.
    pub(crate) next: ChainLink,
    /// Its part of the body.
    pub(crate) part: &'a [u8],
    /// Version of the body's format.
    pub(crate) version: u16,
}

/// Reason for refusing a chain page.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChainError {
    #[error("its hash differs from the one in its parent")]
    Hash,
    #[error(transparent)]
    Envelope(#[from] EnvelopeError),
    #[error(transparent)]
    Padding(#[from] NotZeroPadding),
    #[error(transparent)]
    Decode(#[from] DecodeError),
    #[error("its links do not fit the chain")]
    Links,
}

/// Encodes one chain page into `out` (whole device pages); returns the hash its parent keeps.
///
/// # Panics
/// When `part` does not fit into `out`: the caller cut it to size.
pub(crate) fn encode_page(lsn: u64, index: u32, next: &ChainLink, part: &[u8], out: &mut [u8]) -> u128 {
    let mut links = Vec::with_capacity(LINKS_LEN);
    links.put_u64(lsn);
    links.put_u32(index);
    links.put_u32(next.bytes);
    links.put_u64(next.at);
    links.put_u128(next.hash);
    links.put_u64(next.copy_at);
    debug_assert_eq!(links.len(), LINKS_LEN);
    let used = HEAD_LEN + part.len();
    assert!(used <= out.len(), "the part was cut to the page");
    out[ENVELOPE_LEN..HEAD_LEN].copy_from_slice(&links);
    out[HEAD_LEN..used].copy_from_slice(part);
    out[used..].fill(0);
    Envelope::seal(&FORMAT, 0, 0, &mut out[..used]);
    hash128(out)
}

/// Checks one chain page against its parent's link.
pub(crate) fn decode_page(
    bytes: &[u8],
    hash: u128,
    lsn: u64,
    index: u32,
) -> Result<ChainPage<'_>, ChainError> {
    if hash128(bytes) != hash {
        return Err(ChainError::Hash);
    }
    let (envelope, body) = Envelope::open(&FORMAT, bytes)?;
    envelope.check_padding(&FORMAT, bytes)?;
    let mut input = Reader::new(body);
    let found_lsn = input.u64()?;
    let found_index = input.u32()?;
    let next_bytes = input.u32()?;
    let next = ChainLink {
        at: input.u64()?,
        bytes: next_bytes,
        hash: input.u128()?,
        // Zeros in version 1, which had one copy.
        copy_at: input.u64()?,
    };
    if found_lsn != lsn || found_index != index || next.bytes as usize > CHAIN_PAGE_MAX {
        return Err(ChainError::Links);
    }
    Ok(ChainPage { next, part: input.rest(), version: envelope.version })
}
