//! Decoders of the store's structures, by name: for the fuzz targets, and a short run of each here.
//!
//! Where a checksum guards a structure, the decoder behind it is listed too, since random bytes do not pass a
//! checksum. Recovery of decoded operations is listed as well: it applies them and derives the free pages
//! from them. Built for tests and fuzzing only.

use crate::{
    Ack, CheckOptions, MkfsOptions, ObjectId, ObjectKind, OpenOptions, ReadCheck, Store, StoreDump, Txn,
    backend::cow::CowPlacement,
    format::{
        checkpoint::{self, ChainLink},
        frame, group, hash128,
        ops::{ObjectTraits, RecordOp},
        record::{self, RecordHeader},
        run::{PageRun, pages_of},
        scrub_place::ScrubPlace,
        segment::SegmentHeader,
        sum_rule::SumRule,
        superblock::{BACKEND_COW, Superblock},
    },
    interface::CreateOptions,
    recovery::derive_space,
    space::{allocator::PageAllocator, journal_place::JournalRing},
    tables::{
        ObjectTables, OpEffect, OpMisfit,
        snapshot::{self, CheckpointPosition},
    },
};
use bytes::Bytes;
use copal_codec::Reader;
use copal_device::{AlignedBuf, Device, Image, MemoryDevice};
use std::sync::{Arc, OnceLock};

/// Takes any bytes, returns nothing and must not panic.
pub type Decoder = fn(&[u8]);

const PAGE_BYTES: usize = 4096;

/// Names and decoders.
pub const DECODERS: &[(&str, Decoder)] = &[
    ("superblock", |bytes| {
        let _ = Superblock::decode(bytes, 0);
    }),
    ("superblock behind its sums", |bytes| {
        let mut input = Reader::new(bytes);
        let mut number = || input.u64().unwrap_or_default();
        let superblock = Superblock {
            uuid: 1,
            generation: number(),
            backend: number() as u8,
            logical_block: number() as u32,
            page_bytes: 1 << (number() % 20),
            segment_bytes: 1u32.checked_shl(number() as u32 % 40).unwrap_or(number() as u32),
            size_bytes: number(),
            journal_at: number(),
            journal_pages: number(),
            checkpoint_at: number(),
            checkpoint_bytes: number(),
            checkpoint_lsn: number(),
            checkpoint_hash: number().into(),
            checkpoint_copy_at: number(),
            chain_seed: number(),
            mount: number(),
            profile: String::from_utf8_lossy(&bytes[..bytes.len().min(64)]).into_owned(),
        };
        let _ = Superblock::decode(&superblock.encode(0), 0);
    }),
    ("record", |bytes| {
        let _ = (record::claimed_len(bytes, PAGE_BYTES), record::decode(bytes));
    }),
    ("record behind its sum", |bytes| {
        let mut input = Reader::new(bytes);
        let mut number = || input.u64().unwrap_or_default();
        let header = RecordHeader {
            store: number(),
            mount: 1,
            seq: number(),
            previous: 0,
            transactions: 1,
            epoch: 1,
            flushed_epoch: number(),
            first_lsn: 1,
            flushed_seq: 1,
        };
        let ops = input.rest();
        let mut record = vec![0; record::pages_for(ops.len(), PAGE_BYTES) * PAGE_BYTES];
        record::encode(&header, ops, &mut record);
        let _ = record::decode(&record);
    }),
    ("record operation", |bytes| {
        let _ = RecordOp::decode(&mut Reader::new(bytes));
    }),
    ("frame", |bytes| {
        let _ = (frame::claimed(bytes), frame::decode(bytes));
    }),
    ("checkpoint page", |bytes| {
        let _ = checkpoint::decode_page(bytes, hash128(bytes), 1, 0);
    }),
    ("checkpoint page behind its sums", |bytes| {
        let mut input = Reader::new(bytes);
        let next = ChainLink {
            at: input.u64().unwrap_or_default(),
            copy_at: input.u64().unwrap_or_default(),
            bytes: input.u32().unwrap_or_default(),
            hash: 7,
        };
        let part = input.rest();
        let mut page = vec![0; checkpoint::HEAD_LEN + part.len()];
        let hash = checkpoint::encode_page(1, 0, &next, part, &mut page);
        if let Ok(page) = checkpoint::decode_page(&page, hash, 1, 0) {
            let _ = snapshot::decode(page.part, PAGE_BYTES, page.version);
        }
    }),
    ("checkpoint body", |bytes| {
        for version in 1..=checkpoint::VERSION {
            if let Ok(body) = snapshot::decode(bytes, PAGE_BYTES, version) {
                derive(body.tables);
            }
        }
    }),
    ("record operations, applied", |bytes| {
        let _ = replay(bytes);
    }),
    ("place of a scrub", |bytes| {
        let _ = ScrubPlace::decode(bytes);
    }),
    ("dump of an image", |bytes| {
        let mut image = Image::zeroed((bytes.len() as u64).next_multiple_of(4096));
        image.write(0, bytes);
        let _ = StoreDump::on(MemoryDevice::from_image(image, u64::MAX)).outline(&mut |_| true);
    }),
    ("dump, check and scrub of a damaged store", |bytes| look(overwritten(whole_store(), bytes))),
    ("opening of a damaged store", |bytes| segments::go_on(overwritten(whole_store(), bytes))),
    ("segment header", |bytes| {
        let _ = SegmentHeader::decode(bytes);
    }),
    ("group record", |bytes| {
        let (first, rest) = bytes.split_at(bytes.len().min(PAGE_BYTES));
        let _ = (group::claimed_shape(first, 0, 1024), group::decode(first, rest));
    }),
    ("group record behind its sum", segments::decode_group),
    ("damaged store in segments", |bytes| {
        let image = overwritten(store_in_segments(), bytes);
        look(image.clone());
        segments::go_on(image);
    }),
    ("store with other headers of segments", |bytes| {
        segments::open_with_other_headers(store_in_segments(), bytes);
    }),
    ("store in segments with any operations", |bytes| {
        let _ = segments::open_with_operations(bytes);
    }),
];

/// A store with an object of each kind, and the places of its bytes that hold something.
fn whole_store() -> &'static (Image, Vec<u64>) {
    static STORE: OnceLock<(Image, Vec<u64>)> = OnceLock::new();
    STORE.get_or_init(|| made(&MkfsOptions { journal_bytes: Some(64 << 10), ..MkfsOptions::default() }))
}

/// The same in segments.
fn store_in_segments() -> &'static (Image, Vec<u64>) {
    static STORE: OnceLock<(Image, Vec<u64>)> = OnceLock::new();
    STORE.get_or_init(|| made(&segments::options()))
}

fn made(options: &MkfsOptions) -> (Image, Vec<u64>) {
    let bytes = DEVICE_BYTES / 4;
    let device: Arc<dyn Device> = MemoryDevice::new(bytes);
    // A build that cannot make a store has nothing to fuzz here.
    let _ = Store::mkfs(&device, options).map(|()| fill(&device));
    let mut image = Image::zeroed(bytes);
    let mut used = Vec::new();
    for at in (0..bytes).step_by(PAGE_BYTES) {
        if let Ok(page) = device.read_now(at, AlignedBuf::zeroed(PAGE_BYTES))
            && page.iter().any(|byte| *byte != 0)
        {
            image.write(at, &page);
            used.push(at);
        }
    }
    (image, used)
}

fn fill(device: &Arc<dyn Device>) -> Option<()> {
    let (store, _) = Store::open(Arc::clone(device), &OpenOptions::default()).ok()?;
    let stream = CreateOptions { kind: ObjectKind::Stream, ..CreateOptions::default() };
    let mut writer = store.writer(ObjectId(3), CreateOptions::default()).ok()?;
    writer.append(&[3; 70_000]).ok()?;
    let txn = Txn::new()
        .create(ObjectId(1), CreateOptions::default())
        .append(ObjectId(1), 0, Bytes::from_static(&[1; 9000]))
        .create(ObjectId(2), stream)
        .publish(writer.finish().ok()?);
    store.commit(txn, Ack::Durable).wait().ok()?;
    store.checkpoint().ok()?;
    for frame in [&[1; 100][..], &[2; 5000], &[3; 10]] {
        let frame = Bytes::copy_from_slice(frame);
        store.append_frame(ObjectId(2), frame, None, Ack::Durable).wait().ok()?;
    }
    store
        .commit(Txn::new().append(ObjectId(1), 9000, Bytes::from_static(&[4; 100])), Ack::Durable)
        .wait()
        .ok()?;
    Some(())
}

/// The store with other bytes: each four of `bytes` name a page, a place in it and a byte.
fn overwritten((image, used): &(Image, Vec<u64>), bytes: &[u8]) -> Image {
    let mut image = image.clone();
    for change in bytes.chunks_exact(4) {
        let page = usize::from(change[0]) * used.len() / 256;
        let Some(at) = used.get(page) else { break };
        let within = u64::from(u16::from_le_bytes([change[1], change[2]])) % PAGE_BYTES as u64;
        image.write(at + within, &change[3..]);
    }
    image
}

/// Shows, checks and scrubs all that is readable of a store.
fn look(image: Image) {
    let device: Arc<dyn Device> = MemoryDevice::from_image(image, u64::MAX);
    let _ = StoreDump::on(Arc::clone(&device)).outline(&mut |_| true);
    let options = OpenOptions { read_only: true, salvage: true, ..OpenOptions::default() };
    let Ok((store, _)) = Store::open(device, &options) else { return };
    for id in 0..4 {
        let _ = store.dump_object(ObjectId(id), &mut |_| true);
    }
    let _ = store.check(&CheckOptions { data: true, repair: false });
    let mut scrub = store.scrub();
    while let Ok(Some(_)) = scrub.step(&mut |_| ()) {}
}

/// Size of the device: enough for the store to grow a few times.
const DEVICE_BYTES: u64 = 256 << 20;

/// Result of operations that fit: the tables, and the pages without an owner.
#[cfg_attr(not(test), expect(dead_code, reason = "tests compare the numbers"))]
struct DerivedSpace {
    tables: ObjectTables,
    free_pages: u64,
}

/// Replays operations as recovery does, onto a small store. `None`: they are refused as damage.
fn replay(bytes: &[u8]) -> Option<DerivedSpace> {
    let mut tables = small_store().ok()?;
    let mut input = Reader::new(bytes);
    let mut effect = OpEffect::default();
    while let Ok(op) = RecordOp::decode(&mut input) {
        tables.apply(&op, 3, &mut effect).ok()?;
    }
    derive(tables)
}

/// Takes the steps of an opening after a replay. An accepted result can be encoded and decoded again.
fn derive(tables: ObjectTables) -> Option<DerivedSpace> {
    if tables.size_bytes()? > DEVICE_BYTES {
        return None;
    }
    let superblock = superblock();
    let empty = Box::new(CowPlacement::new(PageAllocator::new(tables.pages), JournalRing::default()));
    let (space, _) = derive_space(&tables, &superblock, &[CHECKPOINT], &[], &[], empty).ok()?;
    let position = CheckpointPosition {
        uuid: superblock.uuid,
        lsn: 3,
        next_seq: 4,
        journal_head: 5,
        epoch: 6,
        mount_pages: 0,
        segment: crate::format::segment::ChainSegment::default(),
    };
    let body = snapshot::encode(&tables, &position, &[], &[]);
    let read = snapshot::decode(&body, PAGE_BYTES, checkpoint::VERSION);
    assert!(read.is_ok(), "a checkpoint of it is refused: {:?}", read.err());
    Some(DerivedSpace { free_pages: space.free_pages(), tables })
}

const JOURNAL: PageRun = PageRun { at: 272, pages: 2048 };
const CHECKPOINT: PageRun = PageRun { at: 2320, pages: 1 };
/// Pages of the superblocks, the journal and the checkpoint.
#[cfg(test)]
const STORE_PAGES: u64 = 4 + 2048 + 1;

fn superblock() -> Superblock {
    Superblock {
        uuid: 1,
        generation: 1,
        backend: BACKEND_COW,
        logical_block: 4096,
        page_bytes: PAGE_BYTES as u32,
        segment_bytes: 0,
        size_bytes: 64 << 20,
        journal_at: JOURNAL.at,
        journal_pages: JOURNAL.pages.into(),
        checkpoint_at: CHECKPOINT.at,
        checkpoint_bytes: PAGE_BYTES as u64,
        checkpoint_lsn: 0,
        checkpoint_hash: 0,
        checkpoint_copy_at: 0,
        chain_seed: 0,
        mount: 1,
        profile: String::new(),
    }
}

/// A store of 64 MiB with one entry of each kind: objects 1 and 2 with sums by page and by unit, 4 published,
/// 5 a clone of 1; stream 3.
fn small_store() -> Result<ObjectTables, OpMisfit> {
    let what = |kind, check| {
        ObjectTraits::of(&CreateOptions { kind, check, ..CreateOptions::default() }, SumRule::Hashes)
    };
    let mut tables = ObjectTables::new(PAGE_BYTES, 16_384);
    let ops = [
        RecordOp::Create { id: 1, what: what(ObjectKind::Plain, ReadCheck::Pages) },
        RecordOp::Map {
            id: 1,
            at: 0,
            run: PageRun::new(3000, 3),
            epoch: 0,
            rule: SumRule::Hashes,
            sums: vec![1, 2, 3],
        },
        RecordOp::Length { id: 1, len: 12_288 },
        RecordOp::Create { id: 2, what: what(ObjectKind::Plain, ReadCheck::Caller) },
        RecordOp::Map {
            id: 2,
            at: 0,
            run: PageRun::new(3100, 40),
            epoch: 0,
            rule: SumRule::Hashes,
            sums: vec![1, 2, 3],
        },
        RecordOp::Length { id: 2, len: 160_000 },
        RecordOp::Create { id: 3, what: what(ObjectKind::Stream, ReadCheck::Pages) },
        RecordOp::StreamExtent { id: 3, run: PageRun::new(4096, 256), first: 0, incarnation: 9 },
        RecordOp::StreamExtent { id: 3, run: PageRun::new(4352, 256), first: 20, incarnation: 10 },
        RecordOp::Publish {
            id: 4,
            what: what(ObjectKind::Sealed, ReadCheck::Caller),
            len: 8192,
            runs: vec![PageRun::new(5000, 3)],
            trailer: 7,
            epoch: 1,
        },
        RecordOp::Clone { from: 1, to: 5 },
    ];
    let mut effect = OpEffect::default();
    ops.iter().try_for_each(|op| tables.apply(op, 2, &mut effect))?;
    debug_assert_eq!(pages_of(&effect.freed), 0);
    Ok(tables)
}

mod segments;
#[cfg(test)]
mod tests;
