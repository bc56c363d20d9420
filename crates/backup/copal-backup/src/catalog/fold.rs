//! Interface of a log's state: a pure fold over records that a checkpoint can hold.

use super::record::Record;
use copal_codec::Reader;

/// A record that was read, with its number and time.
#[derive(Clone, Debug)]
pub(crate) struct LogEntry {
    pub(crate) number: u64,
    pub(crate) created_ms: u64,
    pub(crate) record: Record,
}

/// State of a log.
pub(crate) trait LogState: Clone + Default + PartialEq {
    /// Kind of the log, as a checkpoint names it.
    const KIND: u8;
    /// Number of the next record.
    fn next_number(&self) -> u64;
    /// Sets the number of the next record.
    fn set_next_number(&mut self, number: u64);
    /// Applies one more record.
    fn apply(&mut self, entry: &LogEntry);
    /// As `apply`, if records before this one are lost.
    fn apply_behind_loss(&mut self, entry: &LogEntry) {
        self.apply(entry);
    }
    /// Number of items that a checkpoint would list.
    fn items(&self) -> usize;
    /// Encodes the fields of a checkpoint.
    fn put(&self, bytes: &mut Vec<u8>);
    /// Decodes the fields of a checkpoint in this version of the format.
    fn parse(next_number: u64, input: &mut Reader<'_>, version: u16) -> Result<Self, String>;
}
