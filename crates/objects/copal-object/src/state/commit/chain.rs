//! Record chain: number, hash and mount of the next record.
//!
//! Not here: the record's place (`space::journal_place`).

use crate::{format::record::RecordHeader, space::journal_place::JournalPlace};

/// A record about to be written.
pub(crate) struct NewRecord<'a> {
    pub(crate) ops: &'a [u8],
    pub(crate) transactions: u16,
    pub(crate) first_lsn: u64,
    pub(crate) epoch: u64,
    pub(crate) flushed_epoch: u64,
}

/// Header fields of the next record.
#[derive(Debug)]
pub(crate) struct RecordChain {
    pub(crate) seq: u64,
    /// Records below this are durable.
    pub(crate) flushed_seq: u64,
    /// Hash of the last record, or the chain seed.
    pub(crate) previous: u64,
    pub(crate) mount: u64,
    pub(crate) store: u64,
}

impl RecordChain {
    /// Encodes the next record, whose place in `journal` was just taken, into `out`.
    pub(crate) fn write(&mut self, journal: &mut dyn JournalPlace, record: &NewRecord<'_>, out: &mut [u8]) {
        let header = RecordHeader {
            store: self.store,
            mount: self.mount,
            seq: self.seq,
            previous: self.previous,
            transactions: record.transactions,
            epoch: record.epoch,
            flushed_epoch: record.flushed_epoch,
            first_lsn: record.first_lsn,
            flushed_seq: self.flushed_seq,
        };
        self.previous = journal.encode(&header, record.ops, out);
        self.seq += 1;
    }
}
