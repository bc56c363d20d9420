//! Filter page: all units of one partition, after a header of 256 bytes.
//!
//! Format: `docs/formats/kv-filter-page.md` v1
//! Invariants
//! - A page is parsed only after its header's checksum matched; a unit is used only after its own did.
//! - Units may be loaded from a prefix of the page that holds the header and the wanted units.

use crate::{
    bloom::{self, BloomUnits},
    error::{DoesNotFit, PageError},
    hash::{KeyHash, seed_id},
    ribbon::{self, UnitColumns},
    unit::{Kind, Units},
};
use copal_codec::crc32c;

/// Bytes before the first unit.
pub const HEADER_BYTES: usize = 256;
/// Most units of any kind; the header has room for their checksums.
pub const MAX_UNITS: u8 = 15;

const MAGIC: u32 = u32::from_le_bytes(*b"CFLT");
const VERSION: u16 = 1;
/// The largest Ribbon system bounds the keys of a partition; units of any kind stay far below 64 KiB.
const MAX_KEYS: u32 = ribbon::MAX_SLOTS;
const MAX_UNIT_BYTES: u32 = 1 << 16;

// Offsets in the header.
const AT_VERSION: usize = 4;
const AT_KIND: usize = 6;
const AT_UNITS: usize = 7;
const AT_UID: usize = 8;
const AT_KEYS: usize = 16;
const AT_SLOTS: usize = 20;
const AT_UNIT_BYTES: usize = 24;
const AT_SEED_ID: usize = 28;
const AT_UNIT_CRCS: usize = 32;
const AT_HEADER_CRC: usize = HEADER_BYTES - 4;

/// A checked or freshly built page, without padding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterPage {
    bytes: Vec<u8>,
}

struct PageHeader {
    kind: Kind,
    units: u8,
    uid: u64,
    slots: u32,
    unit_bytes: u32,
    seed_id: u32,
}

impl FilterPage {
    /// Writes the page. All units have the same number of words; `slots` is the number of used bits of a
    /// unit.
    pub(crate) fn from_units(
        kind: Kind,
        keys: u32,
        slots: u32,
        units: &[Vec<u64>],
        uid: u64,
        store_seed: u64,
    ) -> FilterPage {
        let unit_bytes = units.first().map_or(0, |u| u.len() * 8);
        let mut bytes = vec![0u8; HEADER_BYTES + unit_bytes * units.len()];
        let (header, body) = bytes.split_at_mut(HEADER_BYTES);
        put(header, 0, &MAGIC.to_le_bytes());
        put(header, AT_VERSION, &VERSION.to_le_bytes());
        put(header, AT_KIND, &[kind as u8, units.len() as u8]);
        put(header, AT_UID, &uid.to_le_bytes());
        put(header, AT_KEYS, &keys.to_le_bytes());
        put(header, AT_SLOTS, &slots.to_le_bytes());
        put(header, AT_UNIT_BYTES, &(unit_bytes as u32).to_le_bytes());
        put(header, AT_SEED_ID, &seed_id(store_seed).to_le_bytes());
        for (i, (unit, out)) in units.iter().zip(body.chunks_exact_mut(unit_bytes)).enumerate() {
            for (word, out) in unit.iter().zip(out.chunks_exact_mut(8)) {
                out.copy_from_slice(&word.to_le_bytes());
            }
            put(header, AT_UNIT_CRCS + 4 * i, &crc32c(0, out).to_le_bytes());
        }
        let crc = crc32c(0, &header[..AT_HEADER_CRC]);
        put(header, AT_HEADER_CRC, &crc.to_le_bytes());
        FilterPage { bytes }
    }

    /// All units of `kind` over the keys of one partition.
    /// # Errors
    /// [`DoesNotFit`]: only for Ribbon; [`crate::PartitionFilterBuilder`] ends partitions before it happens.
    pub fn build(
        kind: Kind,
        hashes: &[KeyHash],
        uid: u64,
        store_seed: u64,
    ) -> Result<FilterPage, DoesNotFit> {
        let (slots, units) = match kind {
            Kind::Ribbon => ribbon::solve(hashes, uid)?,
            Kind::Bloom => bloom::build(hashes),
        };
        let keys = hashes.len() as u32;
        Ok(FilterPage::from_units(kind, keys, slots, &units, uid, store_seed))
    }

    /// Kind of its units.
    pub fn kind(&self) -> Kind {
        Kind::from_byte(self.bytes[AT_KIND]).expect("a page that exists was checked or built")
    }

    /// Bytes of one unit.
    pub fn unit_bytes(&self) -> u32 {
        u32_at(&self.bytes, AT_UNIT_BYTES)
    }

    /// The page as stored.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Loads the first `count` units (fewer if the page has fewer) from the stored bytes of a page, which may
    /// be truncated after them.
    ///
    /// # Errors
    /// The page is damaged, foreign or newer; the caller works without a filter.
    pub fn load(stored: &[u8], count: u8, uid: u64, store_seed: u64) -> Result<Units, PageError> {
        let header = PageHeader::parse(stored)?;
        header.check_owner(uid, store_seed)?;
        let count = count.min(header.units);
        let mut units = Vec::with_capacity(usize::from(count));
        for unit in 0..count {
            units.push(header.unit(stored, unit)?);
        }
        let unit_words = header.unit_bytes / 8;
        Ok(match header.kind {
            Kind::Ribbon => Units::Ribbon(UnitColumns::interleave(header.slots, &units)),
            Kind::Bloom => Units::Bloom(BloomUnits::new(units.concat(), unit_words, count)),
        })
    }

    /// Checks the header and every unit of a stored page.
    ///
    /// # Errors
    /// The first problem found.
    pub fn verify(stored: &[u8], uid: u64, store_seed: u64) -> Result<(), PageError> {
        let header = PageHeader::parse(stored)?;
        header.check_owner(uid, store_seed)?;
        (0..header.units).try_for_each(|unit| header.unit(stored, unit).map(drop))
    }
}

impl PageHeader {
    fn parse(stored: &[u8]) -> Result<PageHeader, PageError> {
        let Some(h) = stored.get(..HEADER_BYTES) else {
            return Err(PageError::Short { needed: HEADER_BYTES as u64, actual: stored.len() as u64 });
        };
        if u32_at(h, 0) != MAGIC {
            return Err(PageError::Magic(u32_at(h, 0)));
        }
        if u32_at(h, AT_HEADER_CRC) != crc32c(0, &h[..AT_HEADER_CRC]) {
            return Err(PageError::HeaderChecksum);
        }
        let version = u16::from_le_bytes([h[AT_VERSION], h[AT_VERSION + 1]]);
        if version != VERSION {
            return Err(PageError::Version { found: version, known: VERSION });
        }
        let field = |field, value: u32| PageError::Field { field, value: u64::from(value) };
        let kind = Kind::from_byte(h[AT_KIND]).ok_or_else(|| field("kind", u32::from(h[AT_KIND])))?;
        let (units, keys) = (h[AT_UNITS], u32_at(h, AT_KEYS));
        let (slots, unit_bytes) = (u32_at(h, AT_SLOTS), u32_at(h, AT_UNIT_BYTES));
        if units != kind.units() {
            return Err(field("units", u32::from(units)));
        }
        if keys == 0 || keys > MAX_KEYS {
            return Err(field("keys", keys));
        }
        if unit_bytes == 0 || unit_bytes > MAX_UNIT_BYTES || !unit_bytes.is_multiple_of(8) {
            return Err(field("unit bytes", unit_bytes));
        }
        let known_slots = kind != Kind::Ribbon || ribbon::SLOT_CHOICES.contains(&slots);
        if !known_slots || u64::from(slots) != u64::from(unit_bytes) * 8 {
            return Err(field("slots", slots));
        }
        if h[AT_UNIT_CRCS + 4 * usize::from(MAX_UNITS)..AT_HEADER_CRC].iter().any(|&b| b != 0) {
            return Err(field("reserved", 1));
        }
        let uid = u64::from(u32_at(h, AT_UID)) | u64::from(u32_at(h, AT_UID + 4)) << 32;
        Ok(PageHeader { kind, units, uid, slots, unit_bytes, seed_id: u32_at(h, AT_SEED_ID) })
    }

    fn check_owner(&self, uid: u64, store_seed: u64) -> Result<(), PageError> {
        if self.uid != uid {
            return Err(PageError::Partition { found: self.uid, expected: uid });
        }
        if self.seed_id != seed_id(store_seed) {
            return Err(PageError::Seed);
        }
        Ok(())
    }

    /// The words of one unit, after its checksum was compared.
    fn unit(&self, stored: &[u8], unit: u8) -> Result<Vec<u64>, PageError> {
        let len = self.unit_bytes as usize;
        let at = HEADER_BYTES + len * usize::from(unit);
        let Some(bytes) = stored.get(at..at + len) else {
            return Err(PageError::Short { needed: (at + len) as u64, actual: stored.len() as u64 });
        };
        if crc32c(0, bytes) != u32_at(stored, AT_UNIT_CRCS + 4 * usize::from(unit)) {
            return Err(PageError::UnitChecksum { unit });
        }
        let (words, _) = bytes.as_chunks::<8>();
        Ok(words.iter().map(|w| u64::from_le_bytes(*w)).collect())
    }
}

/// Sets all identities and checksums of some bytes to valid values, as an attacker would, so that tests reach
/// the code behind these checks. Kind, counts and sizes stay as they are.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) fn crafted(bytes: &[u8], uid: u64, store_seed: u64) -> Vec<u8> {
    let mut page = bytes.to_vec();
    if page.len() < HEADER_BYTES {
        return page;
    }
    put(&mut page, 0, &MAGIC.to_le_bytes());
    put(&mut page, AT_VERSION, &VERSION.to_le_bytes());
    put(&mut page, AT_UID, &uid.to_le_bytes());
    put(&mut page, AT_SEED_ID, &seed_id(store_seed).to_le_bytes());
    let unit_bytes = u32_at(&page, AT_UNIT_BYTES) as usize;
    for unit in 0..usize::from(MAX_UNITS) {
        let at = unit.checked_mul(unit_bytes).and_then(|at| at.checked_add(HEADER_BYTES));
        let end = at.and_then(|at| at.checked_add(unit_bytes));
        let sum = at.zip(end).and_then(|(at, end)| page.get(at..end)).map(|unit| crc32c(0, unit));
        put(&mut page, AT_UNIT_CRCS + 4 * unit, &sum.unwrap_or(0).to_le_bytes());
    }
    let sum = crc32c(0, &page[..AT_HEADER_CRC]);
    put(&mut page, AT_HEADER_CRC, &sum.to_le_bytes());
    page
}

fn put(to: &mut [u8], at: usize, bytes: &[u8]) {
    to[at..at + bytes.len()].copy_from_slice(bytes);
}

/// Callers must have checked that the header is complete.
fn u32_at(from: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([from[at], from[at + 1], from[at + 2], from[at + 3]])
}
