//! Superblock: the four copies of the data that every opening reads first.
//!
//! Format: docs/formats/object-superblock.md v3
//! Invariants
//! - Even generations go to copies 0 and 2, odd ones to 1 and 3: a torn update damages only the older one.

use super::hash128;
use copal_codec::{
    DecodeError, ENVELOPE_LEN, Envelope, EnvelopeError, Format, NotZeroPadding, Put, Reader, crc32c,
};
use copal_device::probe::PROFILE_BYTES_MAX;
use std::ops::RangeInclusive;

/// Bytes of one copy.
pub(crate) const SUPERBLOCK_LEN: usize = 4096;
/// First bytes of each copy.
pub(crate) const SUPERBLOCK_MAGIC: [u8; 8] = *b"COPALSUP";
/// Byte offsets of the copies. Fixed: growth moves nothing.
pub(crate) const COPIES: [u64; 4] = [0, 1 << 20, 32 << 20, 48 << 20];
/// Least length of a store, so that all copies have a place.
pub(crate) const STORE_BYTES_MIN: u64 = 64 << 20;
/// Largest length: addresses, page counts and their sums stay far from the end of 64 bits.
pub(crate) const STORE_BYTES_MAX: u64 = 1 << 60;
/// The `cow` backend.
pub(crate) const BACKEND_COW: u8 = 1;
/// The `log` backend.
pub(crate) const BACKEND_LOG: u8 = 2;
/// The `hostfs` backend.
pub(crate) const BACKEND_HOSTFS: u8 = 3;

const BODY_LEN: usize = 152;
const FORMAT: Format =
    Format { magic: SUPERBLOCK_MAGIC, name: "superblock", oldest: 1, version: 3, known_flags: 0 };
/// Without segments and a profile the version stays, so that earlier releases read the store.
const PLAIN: Format = Format { version: 2, ..FORMAT };
/// Least and largest size of a segment in bytes.
pub(crate) const SEGMENT_BYTES: RangeInclusive<u32> = 64 << 10..=1 << 30;

/// Content of a superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub(crate) uuid: u128,
    pub(crate) generation: u64,
    pub(crate) backend: u8,
    pub(crate) logical_block: u32,
    pub(crate) page_bytes: u32,
    /// Bytes of a segment of the `log` backend; 0 for others.
    pub(crate) segment_bytes: u32,
    pub(crate) size_bytes: u64,
    /// First page and pages of the journal; 0 for the `log` backend.
    pub(crate) journal_at: u64,
    pub(crate) journal_pages: u64,
    /// First page, bytes, position and hash of the checkpoint's first chain page.
    pub(crate) checkpoint_at: u64,
    pub(crate) checkpoint_bytes: u64,
    pub(crate) checkpoint_lsn: u64,
    pub(crate) checkpoint_hash: u128,
    /// First page of its second copy; 0: there is none.
    pub(crate) checkpoint_copy_at: u64,
    /// Replaces the previous record's hash in the first record after the checkpoint.
    pub(crate) chain_seed: u64,
    /// The mount under which that record is written.
    pub(crate) mount: u64,
    /// Text of the device's profile; empty without one.
    pub(crate) profile: String,
}

/// Byte of a copy at which the profile lies, behind the first 512 bytes.
const PROFILE_AT: usize = 512;

/// Reason for refusing a copy.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SuperblockError {
    #[error(transparent)]
    Envelope(#[from] EnvelopeError),
    #[error(transparent)]
    Padding(#[from] NotZeroPadding),
    #[error(transparent)]
    Decode(#[from] DecodeError),
    #[error("its hash differs")]
    Hash,
    #[error("its field {0} has an impossible value")]
    Field(&'static str),
}

/// The text of a profile in the bytes behind [`PROFILE_AT`].
fn profile(rest: &[u8], len: u32, sum: u32) -> Result<String, SuperblockError> {
    let wrong = || SuperblockError::Field("profile");
    let (text, padding) = rest.split_at_checked(len as usize).ok_or_else(wrong)?;
    let is_right = if text.is_empty() { sum == 0 } else { sum == crc32c(0, text) };
    if !is_right || text.len() > PROFILE_BYTES_MAX || padding.iter().any(|byte| *byte != 0) {
        return Err(wrong());
    }
    String::from_utf8(text.to_vec()).map_err(|_| wrong())
}

/// Allowed page sizes in bytes.
pub(crate) const PAGE_SIZES: [u32; 3] = [4096, 8192, 16_384];

impl Superblock {
    /// The two copies that this generation is written to.
    pub(crate) fn places(generation: u64) -> [usize; 2] {
        if generation.is_multiple_of(2) { [0, 2] } else { [1, 3] }
    }

    /// Bytes of copy `copy`.
    pub(crate) fn encode(&self, copy: u8) -> [u8; SUPERBLOCK_LEN] {
        let mut body = Vec::with_capacity(BODY_LEN);
        body.put_u128(self.uuid);
        body.put_u64(self.generation);
        body.put_u8(self.backend);
        body.put_u8(copy);
        body.put_zeros(2);
        body.put_u32(self.logical_block);
        body.put_u32(self.page_bytes);
        body.put_u32(self.segment_bytes);
        body.put_u64(self.size_bytes);
        body.put_u64(self.journal_at);
        body.put_u64(self.journal_pages);
        body.put_u64(self.checkpoint_at);
        body.put_u64(self.checkpoint_bytes);
        body.put_u64(self.checkpoint_lsn);
        body.put_u128(self.checkpoint_hash);
        body.put_u64(self.chain_seed);
        body.put_u64(self.mount);
        body.put_u64(self.checkpoint_copy_at);
        let profile = &self.profile.as_bytes()[..self.profile.len().min(PROFILE_BYTES_MAX)];
        body.put_u32(profile.len() as u32);
        body.put_u32(if profile.is_empty() { 0 } else { crc32c(0, profile) });
        let hash = hash128(&body);
        body.put_u128(hash);
        debug_assert_eq!(body.len(), BODY_LEN);
        let mut out = [0; SUPERBLOCK_LEN];
        let used = ENVELOPE_LEN + BODY_LEN;
        out[ENVELOPE_LEN..used].copy_from_slice(&body);
        out[PROFILE_AT..PROFILE_AT + profile.len()].copy_from_slice(profile);
        let is_plain = self.segment_bytes == 0 && profile.is_empty();
        let format = if is_plain { &PLAIN } else { &FORMAT };
        Envelope::seal(format, 0, 0, &mut out[..used]);
        out
    }

    /// Checks and reads one copy. Fields are checked against one another, not against the device.
    pub(crate) fn decode(bytes: &[u8], copy: u8) -> Result<Superblock, SuperblockError> {
        let (envelope, body) = Envelope::open(&FORMAT, bytes)?;
        let (first, rest) = bytes.split_at(PROFILE_AT.min(bytes.len()));
        envelope.check_padding(&FORMAT, first)?;
        let mut input = Reader::new(body);
        let uuid = input.u128()?;
        let generation = input.u64()?;
        let backend = input.u8()?;
        let found_copy = input.u8()?;
        input.zeros(2)?;
        let logical_block = input.u32()?;
        let page_bytes = input.u32()?;
        // Zeros before version 3.
        let segment_bytes = input.u32()?;
        let size_bytes = input.u64()?;
        let journal_at = input.u64()?;
        let journal_pages = input.u64()?;
        let checkpoint_at = input.u64()?;
        let checkpoint_bytes = input.u64()?;
        let checkpoint_lsn = input.u64()?;
        let checkpoint_hash = input.u128()?;
        let chain_seed = input.u64()?;
        let mount = input.u64()?;
        // Zeros in version 1, which had one copy.
        let checkpoint_copy_at = input.u64()?;
        // Zeros before version 3.
        let (profile_len, profile_sum) = (input.u32()?, input.u32()?);
        let hashed = input.position();
        let hash = input.u128()?;
        input.finish()?;
        if hash != hash128(&body[..hashed]) {
            return Err(SuperblockError::Hash);
        }
        let superblock = Superblock {
            uuid,
            generation,
            backend,
            logical_block,
            page_bytes,
            segment_bytes,
            size_bytes,
            journal_at,
            journal_pages,
            checkpoint_at,
            checkpoint_bytes,
            checkpoint_lsn,
            checkpoint_hash,
            checkpoint_copy_at,
            chain_seed,
            mount,
            profile: profile(rest, profile_len, profile_sum)?,
        };
        superblock.validate(found_copy == copy)?;
        Ok(superblock)
    }

    fn validate(&self, copy_is_right: bool) -> Result<(), SuperblockError> {
        let page = u64::from(self.page_bytes);
        let pages = self.size_bytes.checked_div(page).unwrap_or(0);
        let inside = |at: u64, len: u64| len > 0 && at.checked_add(len).is_some_and(|end| end <= pages);
        let field = |ok: bool, name: &'static str| {
            if ok { Ok(()) } else { Err(SuperblockError::Field(name)) }
        };
        field(copy_is_right, "copy")?;
        field([BACKEND_COW, BACKEND_LOG, BACKEND_HOSTFS].contains(&self.backend), "backend")?;
        field(PAGE_SIZES.contains(&self.page_bytes), "page size")?;
        field((STORE_BYTES_MIN..=STORE_BYTES_MAX).contains(&self.size_bytes), "size")?;
        if self.backend == BACKEND_LOG {
            let fits = SEGMENT_BYTES.contains(&self.segment_bytes)
                && self.segment_bytes.is_multiple_of(self.page_bytes);
            field(fits, "segment size")?;
            field(self.journal_at == 0 && self.journal_pages == 0, "journal")?;
        } else {
            field(self.segment_bytes == 0, "segment size")?;
            // A run counts its pages in 32 bits.
            let fits = inside(self.journal_at, self.journal_pages) && self.journal_pages <= u32::MAX.into();
            field(fits, "journal")?;
        }
        field(self.checkpoint_bytes.is_multiple_of(page) && self.checkpoint_bytes <= 65_536, "checkpoint")?;
        let chain_pages = self.checkpoint_bytes / page;
        let copy = self.checkpoint_copy_at;
        field(
            inside(self.checkpoint_at, chain_pages) && (copy == 0 || inside(copy, chain_pages)),
            "checkpoint",
        )
    }
}
