//! Superblocks, headers of segments and checkpoints of another version or shape, under valid sums: each is refused by
//! an error that names the reason, or everything reads as it was.
//!
//! Not here: hostile records with valid sums (`fuzz` of the crate).

use crate::images::{BACKENDS, Left, PAGE, PIECE_BYTES, RestingStore, STORE_BYTES};
use copal_device::MemoryDevice;
use copal_object::*;
use std::collections::BTreeSet;

/// Places of the superblock's copies, and of fields in its body (docs/formats/object-superblock.md).
const COPIES: [u64; 4] = [0, 1 << 20, 32 << 20, 48 << 20];
const ENVELOPE: usize = 32;
const SUPERBLOCK_BODY: usize = 152;

/// Changes bytes behind the sums of an envelope.
fn reseal(page: &mut [u8], body_bytes: usize, change: impl Fn(&mut [u8])) {
    change(page);
    page[24..28].fill(0);
    let sum = copal_codec::crc32c(0, &page[..ENVELOPE + body_bytes]);
    page[24..28].copy_from_slice(&sum.to_le_bytes());
}

/// The store with other fields in every copy of its superblock, under valid sums.
fn with_superblock(resting: &RestingStore, change: impl Fn(&mut [u8])) -> RestingStore {
    let mut other = resting.clone();
    for at in COPIES {
        let mut page = vec![0; PAGE as usize];
        resting.read(at, &mut page);
        if page[..8] != *b"COPALSUP" {
            continue;
        }
        reseal(&mut page, SUPERBLOCK_BODY, |page| {
            change(page);
            let body = &mut page[ENVELOPE..ENVELOPE + SUPERBLOCK_BODY];
            let hash = xxhash_rust::xxh3::xxh3_128(&body[..136]);
            body[136..].copy_from_slice(&hash.to_le_bytes());
        });
        other.write(at, &page);
    }
    other
}

/// Fields of a superblock: name, place in the body, bytes.
const FIELDS: [(&str, usize, usize); 15] = [
    ("backend", 24, 1),
    ("copy", 25, 1),
    ("logical block", 28, 4),
    ("page size", 32, 4),
    ("segment size", 36, 4),
    ("store size", 40, 8),
    ("journal's page", 48, 8),
    ("journal's pages", 56, 8),
    ("checkpoint's page", 64, 8),
    ("checkpoint's bytes", 72, 8),
    ("checkpoint's commit", 80, 8),
    ("checkpoint's hash", 88, 8),
    ("checkpoint's second page", 120, 8),
    ("profile's bytes", 128, 4),
    ("profile's sum", 132, 4),
];

const VALUES: [u64; 20] = [
    0,
    1,
    2,
    3,
    4,
    16,
    511,
    4095,
    4096,
    8192,
    16_384,
    1 << 16,
    1 << 17,
    1 << 20,
    1 << 31,
    1 << 32,
    1 << 44,
    1 << 52,
    1 << 60,
    u64::MAX,
];

#[test]
fn hostile_superblocks_under_valid_sums_are_refused() {
    for backend in BACKENDS {
        let (resting, acknowledged) = RestingStore::make(backend, Left::Closed);
        for (name, at, len) in FIELDS {
            // Files take longer than memory.
            for value in VALUES.iter().step_by(if backend == BackendKind::Hostfs { 5 } else { 1 }) {
                let value = &value.to_le_bytes()[..len];
                let other =
                    with_superblock(&resting, |page| page[ENVELOPE + at..][..len].copy_from_slice(value));
                other.judge(&acknowledged, &format!("{backend:?}, {name} is {value:?}"));
            }
        }
    }
}

/// The page, block and segment sizes of another store, and `log` without segments.
#[test]
fn superblocks_of_another_shape_are_refused() {
    let set = |at: usize, value: u32| {
        move |page: &mut [u8]| page[ENVELOPE + at..][..4].copy_from_slice(&value.to_le_bytes())
    };
    for backend in BACKENDS {
        let (resting, acknowledged) = RestingStore::make(backend, Left::Closed);
        let refused = |change: &dyn Fn(&mut [u8]), case: &str| {
            let case = format!("{backend:?}, {case}");
            let verdict = with_superblock(&resting, change).judge(&acknowledged, &case);
            verdict.refused.unwrap_or_else(|| panic!("{case}: it opens"))
        };
        for page_bytes in [0, 512, 8192, 16_384, 1 << 31] {
            refused(&set(32, page_bytes), &format!("pages of {page_bytes}"));
        }
        for segment_bytes in [0, 1, 4096, 1 << 15, 1 << 31, u32::MAX] {
            if backend == BackendKind::Log || segment_bytes > 0 {
                let error = refused(&set(36, segment_bytes), &format!("segments of {segment_bytes}"));
                assert!(matches!(error, StoreOpenError::Damaged { .. }), "{error}");
            }
        }
        for other in 0..=4 {
            let own = [BackendKind::Cow, BackendKind::Log, BackendKind::Hostfs]
                .iter()
                .position(|kind| *kind == backend);
            if own != Some(usize::from(other).wrapping_sub(1)) {
                refused(&move |page: &mut [u8]| page[ENVELOPE + 24] = other, &format!("backend {other}"));
            }
        }
        let newer = |page: &mut [u8]| page[8..10].copy_from_slice(&4u16.to_le_bytes());
        let feature = |page: &mut [u8]| page[16..20].copy_from_slice(&1u32.to_le_bytes());
        for change in [&newer as &dyn Fn(&mut [u8]), &feature] {
            let error = refused(change, "a later release");
            assert!(matches!(error, StoreOpenError::Version { .. }), "{error}");
            assert!(error.to_string().contains("release"), "{error}");
        }
    }
}

/// Headers of segments and pages of the checkpoint as a later release writes them.
///
/// Symptom: they counted as damaged.
/// Cause: each error of their envelope did.
/// Fix: an intact page of another version is named with both versions.
#[test]
fn headers_and_checkpoints_of_a_later_release_are_named() {
    let newer = |page: &mut [u8]| page[8..10].copy_from_slice(&9u16.to_le_bytes());
    for left in [Left::Closed, Left::Marked] {
        let (mut resting, acknowledged) = RestingStore::make(BackendKind::Log, left);
        let mut changed = 0;
        for at in (0..STORE_BYTES).step_by(PIECE_BYTES as usize) {
            let mut page = vec![0; PAGE as usize];
            resting.read(at, &mut page);
            if page[..8] == *b"COPALSEG" {
                reseal(&mut page, 48, newer);
                resting.write(at, &page);
                changed += 1;
            }
        }
        assert!(changed > 3);
        let error = resting.judge(&acknowledged, &format!("{left:?}, newer headers"));
        assert!(matches!(error.refused, Some(StoreOpenError::Version { .. })), "{left:?}: {error:?}");
    }
    for backend in BACKENDS {
        let (resting, acknowledged) = RestingStore::make(backend, Left::Closed);
        let copy = |at: &u64| {
            let mut superblock = vec![0; PAGE as usize];
            resting.read(*at, &mut superblock);
            superblock
        };
        let number_of =
            |page: &[u8], at: usize| u64::from_le_bytes(page[ENVELOPE + at..][..8].try_into().unwrap());
        let newest = COPIES.iter().map(copy).max_by_key(|page| number_of(page, 16)).unwrap();
        let number = |at| number_of(&newest, at);
        let (first, len, second) = (number(64) * PAGE, number(72) as usize, number(120) * PAGE);
        if backend == BackendKind::Hostfs && first >= 1 << 36 {
            continue;
        }
        let mut page = vec![0; len];
        resting.read(first, &mut page);
        let body = u32::from_le_bytes(page[20..24].try_into().unwrap()) as usize;
        reseal(&mut page, body, newer);
        let hash = xxhash_rust::xxh3::xxh3_128(&page).to_le_bytes();
        let mut other = with_superblock(&resting, |page| page[ENVELOPE + 88..][..16].copy_from_slice(&hash));
        other.write(first, &page);
        if second < STORE_BYTES {
            other.write(second, &page);
        }
        let error = other.judge(&acknowledged, "a newer checkpoint");
        assert!(matches!(error.refused, Some(StoreOpenError::Version { .. })), "{backend:?}: {error:?}");
    }
}

/// Distance of the flipped bytes in `make test`; `COPAL_FLIP_STRIDE=1` flips every byte.
const STRIDE: usize = 3001;

/// A flipped byte of a store in segments is repaired or reported, or the store is refused. A closed store is never
/// refused, and the content of another one can be saved.
///
/// Symptom: without the header of the last segment of records, a closed store was refused, and nothing could be saved.
/// Cause: an opening needed the places of the next records, and salvage too, although it writes none.
/// Fix: the checkpoint names them, and salvage does without.
#[test]
fn flipped_bytes_of_segments_are_reported() {
    let stride = std::env::var("COPAL_FLIP_STRIDE").ok().and_then(|text| text.parse().ok()).unwrap_or(STRIDE);
    for left in [Left::Closed, Left::Marked] {
        let (resting, acknowledged) = RestingStore::make(BackendKind::Log, left);
        let mut pieces = resting.used_pieces();
        pieces.retain(|piece| !acknowledged.mark_pieces.contains(piece));
        let (mut refused, mut reported) = (BTreeSet::new(), 0);
        for at in
            pieces.iter().flat_map(|piece| (piece * PIECE_BYTES..(piece + 1) * PIECE_BYTES).step_by(stride))
        {
            let mut byte = [0];
            resting.read(at, &mut byte);
            let mut flipped = resting.clone();
            flipped.write(at, &[byte[0] ^ (1 << (at % 8))]);
            let verdict = flipped.judge(&acknowledged, &format!("{left:?}, byte {at}"));
            reported += verdict.reported;
            if verdict.is_refused() {
                refused.insert(at / PAGE);
                let RestingStore::Device(image) = &flipped else { unreachable!() };
                let device = MemoryDevice::from_image(image.clone(), u64::MAX);
                let options = OpenOptions { read_only: true, salvage: true, ..OpenOptions::default() };
                let saved = Store::open(device, &options);
                assert!(saved.is_ok(), "byte {at}: {saved:?}");
            }
        }
        assert!(reported > 100, "{left:?}: {reported}");
        match left {
            Left::Closed => assert!(refused.is_empty(), "{refused:?}"),
            _ => assert!(refused.len() > 10, "{refused:?}"),
        }
    }
}
