//! Stores in segments with hostile headers and records under valid sums.

use super::{PAGE_BYTES, look};
use crate::{
    Ack, BackendKind, CreateOptions, MkfsOptions, ObjectId, OpenOptions, Store, Txn,
    flaw::BrokenRule,
    format::{
        group::{self, GroupHeader},
        record::RecordHeader,
        segment::SegmentHeader,
        sum_rule::SumRule,
    },
    recovery,
};
use bytes::Bytes;
use copal_codec::Reader;
use copal_device::{AlignedBuf, Device, Image, MemoryDevice};
use std::sync::{Arc, OnceLock};

const STORE_BYTES: u64 = 64 << 20;
/// Bytes of a segment: the smallest.
pub(super) const SEGMENT_BYTES: u64 = 64 << 10;

pub(super) fn options() -> MkfsOptions {
    let segment_bytes = Some(SEGMENT_BYTES as u32);
    MkfsOptions { backend: BackendKind::Log, segment_bytes, ..MkfsOptions::default() }
}

/// Opens a store for writing and goes on.
pub(super) fn go_on(image: Image) {
    let device: Arc<dyn Device> = MemoryDevice::from_image(image, 2 * STORE_BYTES);
    let Ok((store, _)) = Store::open(device, &OpenOptions::default()) else { return };
    let txn = Txn::new().create(ObjectId(77), CreateOptions::default()).append(
        ObjectId(77),
        0,
        Bytes::from_static(&[7; 100_000]),
    );
    let _ = store.commit(txn, Ack::Durable).wait();
    let _ = store.commit(Txn::new().delete(ObjectId(1)), Ack::Durable).wait();
    let _ = store.checkpoint();
    let _ = store.close();
}

/// Any group record whose sum fits.
pub(super) fn decode_group(bytes: &[u8]) {
    let (header, ops) = any_group(bytes, 3);
    let mut first = vec![0; PAGE_BYTES];
    let mut rest = vec![0; group::rest_pages(ops.len(), PAGE_BYTES) as usize * PAGE_BYTES];
    group::encode(&header, ops, &mut first, &mut rest);
    let _ = group::claimed_shape(&first, header.at, 1024);
    let _ = group::decode(&first, &rest);
}

fn any_group(bytes: &[u8], at: u64) -> (GroupHeader, &[u8]) {
    let mut input = Reader::new(bytes);
    let mut number = || input.u64().unwrap_or_default();
    let record = RecordHeader {
        store: number(),
        mount: 1,
        seq: number(),
        previous: 0,
        transactions: 1,
        epoch: number(),
        flushed_epoch: number(),
        first_lsn: number(),
        flushed_seq: number(),
    };
    let header = GroupHeader { record, at, data_pages: number() as u32, data_sum: 0 };
    (header, input.rest())
}

/// The store of `fuzz` with other headers of segments: each 10 bytes name a segment, a field and a number.
pub(super) fn open_with_other_headers((image, used): &(Image, Vec<u64>), bytes: &[u8]) {
    let mut image = image.clone();
    let headers: Vec<u64> = used.iter().copied().filter(|at| at % SEGMENT_BYTES == 0).collect();
    for change in bytes.chunks_exact(10) {
        let Some(at) = headers.get(usize::from(change[0]) % headers.len().max(1)) else { break };
        let mut page = vec![0; PAGE_BYTES];
        image.read(*at, &mut page);
        let Ok(mut header) = SegmentHeader::decode(&page) else { continue };
        let number = Reader::new(&change[2..]).u64().unwrap_or_default();
        match change[1] % 5 {
            0 => header.number = number,
            1 => header.segment = number,
            2 => header.next = number,
            3 => header.next = number % (STORE_BYTES / SEGMENT_BYTES),
            _ => header.number = header.number.wrapping_add(number % 3).wrapping_sub(1),
        }
        header.encode(&mut page);
        image.write(*at, &page);
    }
    look(image.clone());
    go_on(image);
}

/// An empty store, and the header of the next record in it.
fn empty_store() -> Option<&'static (Image, GroupHeader)> {
    static EMPTY: OnceLock<Option<(Image, GroupHeader)>> = OnceLock::new();
    let make = || {
        let device: Arc<dyn Device> = MemoryDevice::new(STORE_BYTES);
        Store::mkfs(&device, &options()).ok()?;
        let (superblock, _) = recovery::newest_superblock(device.as_ref()).ok()?;
        let broken = BrokenRule::default();
        let source = recovery::RecoverySource {
            device: device.as_ref(),
            page_bytes: PAGE_BYTES,
            salvage: false,
            broken,
        };
        let found = recovery::read_checkpoint(&source, &superblock, recovery::ChainCopies::AsNeeded).ok()?;
        let (segment, page) = (found.position.journal_head >> 32, found.position.journal_head & 0xffff_ffff);
        let record = RecordHeader {
            store: superblock.uuid as u64,
            mount: superblock.mount,
            seq: found.position.next_seq,
            previous: superblock.chain_seed,
            transactions: 1,
            epoch: found.position.epoch + 1,
            flushed_epoch: found.position.epoch,
            first_lsn: found.position.lsn + 1,
            flushed_seq: 0,
        };
        let at = segment * SEGMENT_BYTES / PAGE_BYTES as u64 + page;
        let mut image = Image::zeroed(STORE_BYTES);
        for at in (0..STORE_BYTES).step_by(1 << 20) {
            image.write(at, &device.read_now(at, AlignedBuf::zeroed(1 << 20)).ok()?);
        }
        Some((image, GroupHeader { record, at, data_pages: 0, data_sum: 0 }))
    };
    EMPTY.get_or_init(make).as_ref()
}

/// An empty store whose first record has any operations. The first byte is the number of its pages of data. Returns
/// whether the store opens with the record.
pub(super) fn open_with_operations(bytes: &[u8]) -> bool {
    let (Some((image, header)), Some((&pages, ops))) = (empty_store(), bytes.split_first()) else {
        return false;
    };
    let data = vec![pages; usize::from(pages % 8) * PAGE_BYTES];
    let sum = SumRule::Hashes.sum(0, &data, PAGE_BYTES);
    let header = GroupHeader { data_pages: u32::from(pages % 8), data_sum: sum, ..header.clone() };
    let mut first = vec![0; PAGE_BYTES];
    let mut rest = vec![0; group::rest_pages(ops.len(), PAGE_BYTES) as usize * PAGE_BYTES];
    group::encode(&header, ops, &mut first, &mut rest);
    let mut image = image.clone();
    image.write(header.at * PAGE_BYTES as u64, &[first, data, rest].concat());
    look(image.clone());
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    let opened = Store::open(MemoryDevice::from_image(image.clone(), u64::MAX), &options);
    go_on(image);
    opened.is_ok_and(|(_, report)| report.records_replayed == 1)
}
