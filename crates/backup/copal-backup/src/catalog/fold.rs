//! What a log amounts to: a pure fold over its records, which a checkpoint can hold.

use super::record::Record;
use copal_codec::Reader;

/// A record as it was read.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) number: u64,
    pub(crate) created_ms: u64,
    pub(crate) record: Record,
}

/// What a log amounts to.
pub(crate) trait Fold: Clone + Default + PartialEq {
    /// Says in a checkpoint which log it is of.
    const KIND: u8;
    /// Number the next record gets.
    fn next_number(&self) -> u64;
    /// The next record gets `number`.
    fn go_on_at(&mut self, number: u64);
    /// The state after one more record.
    fn apply(&mut self, entry: &Entry);
    /// As `apply`, where records before it are lost.
    fn apply_behind_loss(&mut self, entry: &Entry) {
        self.apply(entry);
    }
    /// How many things a checkpoint lists.
    fn items(&self) -> usize;
    /// The fields of a checkpoint.
    fn put(&self, bytes: &mut Vec<u8>);
    /// Reads what `put` wrote in this version of the format.
    fn parse(next_number: u64, input: &mut Reader<'_>, version: u16) -> Result<Self, String>;
}
