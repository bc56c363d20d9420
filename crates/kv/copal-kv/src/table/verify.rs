//! Full check of a table: every checksum, every entry, every order.
//!
//! Reads the device, never the cache.

use super::io::again_if_damaged;
use super::reader::Table;
use crate::format::entry::{Entry, compare};
use crate::format::{
    block::DataBlock,
    block_cursor::BlockCursor,
    error::{Damage, DamageAt, TableError},
    footer::FOOTER_BYTES,
    index::{BlockAt, IndexPage},
};
use bytes::Bytes;
use copal_codec::crc32c;
use copal_device::IoClass;
use copal_filter::FilterPage;
use copal_object::StoreError;
use std::{cmp::Ordering, fmt, ops::Range};

/// Bytes checked per read.
const STEP_BYTES: u64 = 1 << 20;

/// Result of a full check.
#[derive(Clone, Debug, Default)]
pub struct VerifyReport {
    /// Number of intact data blocks.
    pub blocks: u64,
    /// Number of intact entries.
    pub entries: u64,
    /// Damaged parts, in the order of the object.
    pub damaged: Vec<DamagedKeys>,
}

/// Result of the check of one partition.
#[derive(Debug, Default)]
pub(crate) struct PartitionReport {
    /// Approximate number of bytes read.
    pub(crate) bytes: u64,
    /// 1, or 0 when the partition does not exist.
    pub(crate) partitions: u32,
    pub(crate) damaged: Vec<DamagedKeys>,
    /// Another partition follows.
    pub(crate) more: bool,
}

/// One damaged part.
#[derive(Clone, Debug)]
pub struct DamagedKeys {
    /// Place and kind of the damage.
    pub error: TableError,
    /// Keys that may be lost: from the first of the partition up to the first of the next one (`None`: to the
    /// end of the table). Absent for index and filter pages, whose damage costs speed but no data.
    pub lost: Option<(Bytes, Option<Bytes>)>,
}

impl fmt::Display for DamagedKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.error)?;
        match &self.lost {
            None => write!(f, " (no data is lost)"),
            Some((start, Some(end))) => {
                write!(
                    f,
                    " (keys from {} to before {} may be lost)",
                    start.escape_ascii(),
                    end.escape_ascii()
                )
            }
            Some((start, None)) => write!(f, " (keys from {} on may be lost)", start.escape_ascii()),
        }
    }
}

impl VerifyReport {
    /// Whether nothing is damaged.
    pub fn is_clean(&self) -> bool {
        self.damaged.is_empty()
    }

    fn found(&mut self, error: TableError, lost: Option<(Bytes, Option<Bytes>)>) -> Result<(), TableError> {
        match error {
            // The device failed or the store was closed: nothing is known about the bytes.
            TableError::Object(ref object) if !matches!(object, StoreError::Corrupt { .. }) => Err(error),
            error => {
                self.damaged.push(DamagedKeys { error, lost });
                Ok(())
            }
        }
    }
}

/// Checker of one stored table.
pub struct TableVerifier<'t> {
    table: &'t Table,
}

impl<'t> TableVerifier<'t> {
    /// Checker of `table`.
    #[must_use]
    pub fn new(table: &'t Table) -> TableVerifier<'t> {
        TableVerifier { table }
    }

    /// Reads and checks everything. Damage is reported, not returned as an error. Blocks, for long.
    ///
    /// # Errors
    /// The device failed.
    pub fn verify(&self, class: IoClass) -> Result<VerifyReport, TableError> {
        let mut report = VerifyReport::default();
        if let Err(error) = self.table.whole() {
            report.found(error, Some((Bytes::new(), None)))?;
            return Ok(report);
        }
        let mut last = None;
        for partition in 0..self.table.fences.len() as u32 {
            self.verify_pages(partition, class, &mut report)?;
            match self.table.index(partition, class) {
                Ok(index) => {
                    self.verify_blocks(partition, &index, class, &mut last, &mut report, &mut |_| {})?;
                }
                Err(error) => report.found(error, Some(self.keys_of(partition)))?,
            }
        }
        if report.is_clean() {
            self.verify_whole(class, &mut report)?;
        }
        Ok(report)
    }

    /// Reads and checks one partition, and with the last one also the sections after the partitions. Calls
    /// `visit` with the entries of intact blocks. Blocks.
    ///
    /// # Errors
    /// The device failed.
    pub(crate) fn verify_partition(
        &self,
        partition: u32,
        class: IoClass,
        visit: &mut dyn FnMut(&Entry<'_>),
    ) -> Result<PartitionReport, TableError> {
        let mut report = VerifyReport::default();
        let partitions = self.table.fences.len() as u32;
        let mut found = PartitionReport { more: partition + 1 < partitions, ..PartitionReport::default() };
        if let Err(error) = self.table.whole() {
            report.found(error, Some((Bytes::new(), None)))?;
            found.damaged = report.damaged;
            return Ok(found);
        }
        if partition < partitions {
            let at = self.table.partition(partition);
            found.partitions = 1;
            found.bytes = at.filter().end - at.offset;
            self.verify_pages(partition, class, &mut report)?;
            match self.table.index(partition, class) {
                Ok(index) => self.verify_blocks(partition, &index, class, &mut None, &mut report, visit)?,
                Err(error) => report.found(error, Some(self.keys_of(partition)))?,
            }
        }
        if !found.more {
            found.bytes += self.table.meta.bytes.saturating_sub(self.table.footer.partitions_end);
            self.verify_sections(class, &mut report)?;
            self.verify_tail(class, &mut report)?;
        }
        found.damaged = report.damaged;
        Ok(found)
    }

    /// Checks the stored range tombstones and fences. The open table uses its copies in memory, but the next
    /// opening reads the stored ones.
    fn verify_sections(&self, class: IoClass, report: &mut VerifyReport) -> Result<(), TableError> {
        for (name, section) in
            [("range tombstones", self.table.footer.tombstones), ("fences", self.table.footer.fences)]
        {
            let once = || {
                let checked = section.check(&self.table.read(section.range(), class)?);
                checked.map_err(|damage| damage.at(self.table.id, DamageAt::Section(name)))
            };
            if let Err(error) = again_if_damaged(once) {
                report.found(error, Some((self.table.meta.smallest.clone(), None)))?;
            }
        }
        Ok(())
    }

    /// Range of keys that a partition may hold.
    fn keys_of(&self, partition: u32) -> (Bytes, Option<Bytes>) {
        let fence = |i: usize| Bytes::copy_from_slice(self.table.fences.fence(i));
        let i = partition as usize;
        let start = if i == 0 { self.table.meta.smallest.clone() } else { fence(i) };
        (start, (i + 1 < self.table.fences.len()).then(|| fence(i + 1)))
    }

    /// Checks the stored index page and filter page.
    fn verify_pages(
        &self,
        partition: u32,
        class: IoClass,
        report: &mut VerifyReport,
    ) -> Result<(), TableError> {
        let at = self.table.partition(partition);
        let index = self.table.read(at.index(), class).and_then(|bytes| {
            let decoded = IndexPage::decode(&bytes, at.uid, at.data_len);
            decoded.map_err(|damage| damage.at(self.table.id, DamageAt::Index(partition)))
        });
        if let Err(error) = index {
            report.found(error, None)?;
        }
        if at.filter_len == 0 {
            return Ok(());
        }
        let filter = self.table.read(at.filter(), class).and_then(|bytes| {
            let checked = FilterPage::verify(&bytes, at.uid, self.table.options.store_seed);
            checked.map_err(|damage| Damage::Filter(damage).at(self.table.id, DamageAt::Filter(partition)))
        });
        match filter {
            Ok(()) => Ok(()),
            Err(error) => report.found(error, None),
        }
    }

    fn verify_blocks(
        &self,
        partition: u32,
        index: &IndexPage,
        class: IoClass,
        last: &mut Option<(Vec<u8>, u64)>,
        report: &mut VerifyReport,
        visit: &mut dyn FnMut(&Entry<'_>),
    ) -> Result<(), TableError> {
        let (mut window, mut start) = (Bytes::new(), 0);
        for number in 0..index.blocks() {
            let at =
                index.block(number).map_err(|damage| damage.at(self.table.id, DamageAt::Index(partition)))?;
            if at.offset < start || at.range().end > start + window.len() as u64 {
                (window, start) = (self.table.read(self.step_from(partition, at), class)?, at.offset);
            }
            let from = (at.offset - start) as usize;
            let stored = window.slice(from.min(window.len())..(from + at.len as usize).min(window.len()));
            let before = last.clone();
            let mut checked = self.check_block(partition, number, &stored, last, visit);
            if checked.is_err() {
                let range = self.table.partition(partition).offset + at.offset;
                let again = self.table.read(range..range + at.len, class)?;
                *last = before;
                checked = self.check_block(partition, number, &again, last, visit);
            }
            match checked {
                Ok(entries) => {
                    report.blocks += 1;
                    report.entries += entries;
                }
                Err(damage) => {
                    let error = damage.at(self.table.id, DamageAt::Block { partition, block: number });
                    let error = self.table.blame(partition, error);
                    report.found(error, Some(self.keys_of(partition)))?;
                }
            }
        }
        Ok(())
    }

    fn step_from(&self, partition: u32, at: BlockAt) -> Range<u64> {
        let partition = self.table.partition(partition);
        let end = (at.offset + STEP_BYTES.max(at.len)).min(partition.data_len);
        partition.offset + at.offset..partition.offset + end
    }

    /// Reads all entries of one block; returns their number.
    fn check_block(
        &self,
        partition: u32,
        number: u32,
        stored: &Bytes,
        last: &mut Option<(Vec<u8>, u64)>,
        visit: &mut dyn FnMut(&Entry<'_>),
    ) -> Result<u64, Damage> {
        let mut cursor =
            BlockCursor::new(DataBlock::decode_shared(stored, self.table.partition(partition).uid, number)?);
        let (mut entries, (start, end)) = (0, self.keys_of(partition));
        cursor.first()?;
        while let Some(entry) = cursor.entry() {
            let ascends = last
                .as_ref()
                .is_none_or(|(key, seq)| compare((key, *seq), entry.position()) == Ordering::Less);
            if !ascends || entry.key < start || end.as_ref().is_some_and(|end| entry.key >= end) {
                return Err(Damage::Order);
            }
            let (key, seq) = last.get_or_insert_default();
            key.clear();
            key.extend_from_slice(entry.key);
            *seq = entry.seq;
            entries += 1;
            visit(&entry);
            cursor.next()?;
        }
        Ok(entries)
    }

    /// Checks the counts, and the checksum over the object up to its properties, padding and sections
    /// included.
    fn verify_whole(&self, class: IoClass, report: &mut VerifyReport) -> Result<(), TableError> {
        if report.entries != self.table.meta.entries {
            let error = Damage::Field("number of entries").at(self.table.id, DamageAt::Object);
            report.found(error, Some((self.table.meta.smallest.clone(), None)))?;
        }
        let (mut computed, mut at) = (0, 0);
        let properties = self.table.footer.properties;
        while at < properties.offset {
            let end = properties.offset.min(at + STEP_BYTES);
            computed = crc32c(computed, &self.table.read(at..end, class)?);
            at = end;
        }
        if computed != self.table.object_crc {
            let damage = Damage::Checksum { stored: self.table.object_crc, computed };
            report.found(damage.at(self.table.id, DamageAt::Object), None)?;
        }
        self.verify_tail(class, report)
    }

    /// Checks the properties, the zeros after them, and both footers.
    fn verify_tail(&self, class: IoClass, report: &mut VerifyReport) -> Result<(), TableError> {
        let properties = self.table.footer.properties;
        let tail = self.table.read(properties.offset..self.table.meta.bytes, class)?;
        let (section, rest) = tail.split_at((properties.len as usize).min(tail.len()));
        if let Err(damage) = properties.check(section) {
            report.found(damage.at(self.table.id, DamageAt::Section("properties")), None)?;
        }
        let (zeros, footers) = rest.split_at(rest.len().saturating_sub(2 * FOOTER_BYTES));
        let written = self.table.footer.encode();
        if zeros.iter().any(|&byte| byte != 0) || !footers.chunks(FOOTER_BYTES).eq([&written[..]; 2]) {
            let damage = Damage::Field("padding or one of its two copies");
            report.found(damage.at(self.table.id, DamageAt::Footer), None)?;
        }
        Ok(())
    }
}
