//! What decodes the structures of a store, by name: for the fuzz targets, and a short run of each here.
//!
//! Where a checksum guards a structure, what lies behind it is listed too: chance does not get past a sum.
//! Built for tests and fuzzing only.

use crate::{
    format::{
        checkpoint::{self, Link},
        frame, hash128,
        ops::RecordOp,
        record::{self, RecordHeader},
        superblock::Superblock,
    },
    snapshot,
};
use copal_codec::Reader;

/// Takes any bytes, gives nothing back and must not panic.
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
            size_bytes: number(),
            journal_at: number(),
            journal_pages: number(),
            checkpoint_at: number(),
            checkpoint_bytes: number(),
            checkpoint_lsn: number(),
            checkpoint_hash: number().into(),
            chain_seed: number(),
            mount: number(),
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
        let next = Link {
            at: input.u64().unwrap_or_default(),
            bytes: input.u32().unwrap_or_default(),
            hash: 7,
        };
        let part = input.rest();
        let mut page = vec![0; checkpoint::HEAD_LEN + part.len()];
        let hash = checkpoint::encode_page(1, 0, &next, part, &mut page);
        if let Ok((_, part)) = checkpoint::decode_page(&page, hash, 1, 0) {
            let _ = snapshot::decode(part, PAGE_BYTES);
        }
    }),
    ("checkpoint body", |bytes| {
        let _ = snapshot::decode(bytes, PAGE_BYTES);
    }),
];

#[cfg(test)]
mod tests {
    /// Seeded bytes, mostly small numbers, so that counts and lengths are often plausible.
    fn bytes(seed: u64) -> Vec<u8> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let len = next() % 600;
        let byte = |word: u64| {
            if word & 0x300 == 0 {
                word as u8
            } else {
                (word % 5) as u8
            }
        };
        (0..len).map(|_| byte(next())).collect()
    }

    #[test]
    fn no_decoder_panics_on_any_bytes() {
        for (_, decode) in super::DECODERS {
            (0..4000).for_each(|seed| decode(&bytes(seed)));
        }
    }
}
