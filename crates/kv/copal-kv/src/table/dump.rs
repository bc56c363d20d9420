//! Parts of a table for dumps.

use super::reader::Table;
use crate::format::{
    error::{Damage, DamageAt, TableError},
    footer::FooterSection,
    index::IndexPage,
};
use bytes::Bytes;
use copal_device::IoClass;
use copal_filter::{FilterPage, HEADER_BYTES, Kind};

/// One partition: its description and its stored pages.
pub(crate) struct PartitionView {
    pub(crate) fence: Bytes,
    pub(crate) offset: u64,
    pub(crate) data_len: u64,
    pub(crate) index_len: u32,
    pub(crate) filter_len: u32,
    pub(crate) uid: u64,
    pub(crate) keys: u32,
    pub(crate) entries: u64,
    /// Number of blocks in the stored index page.
    pub(crate) blocks: Result<u32, TableError>,
    /// Contents of the filter page; `None`: the partition has no filter.
    pub(crate) filter: Option<Result<FilterView, TableError>>,
}

/// A filter page with valid checksums.
pub(crate) struct FilterView {
    pub(crate) kind: Kind,
    pub(crate) unit_bytes: u32,
}

/// The sections after the partitions: names and places.
pub(crate) fn sections(table: &Table) -> [(&'static str, FooterSection); 3] {
    [
        ("range-tombstones", table.footer.tombstones),
        ("fences", table.footer.fences),
        ("properties", table.footer.properties),
    ]
}

/// Reads index and filter page of a partition as stored, never rebuilt ones. Blocks.
///
/// # Errors
/// The device failed. Damage is in the fields.
pub(crate) fn view_partition(table: &Table, partition: u32) -> Result<PartitionView, TableError> {
    let at = table.partition(partition);
    let index = table.read(at.index(), IoClass::Background)?;
    let blocks = IndexPage::decode(&index, at.uid, at.data_len)
        .map(|page| page.blocks())
        .map_err(|damage| damage.at(table.id, DamageAt::Index(partition)));
    let filter = if at.filter_len == 0 {
        None
    } else {
        let page = table.read(at.filter(), IoClass::Background)?;
        let checked = FilterPage::verify(&page, at.uid, table.options.store_seed);
        let damaged = |damage| Damage::Filter(damage).at(table.id, DamageAt::Filter(partition));
        let kind = table.meta.filter;
        let unit_bytes = at.filter_len.saturating_sub(HEADER_BYTES as u32) / u32::from(kind.units());
        Some(checked.map(|()| FilterView { kind, unit_bytes }).map_err(damaged))
    };
    Ok(PartitionView {
        fence: Bytes::copy_from_slice(table.fences.fence(partition as usize)),
        offset: at.offset,
        data_len: at.data_len,
        index_len: at.index_len,
        filter_len: at.filter_len,
        uid: at.uid,
        keys: at.keys,
        entries: at.entries,
        blocks,
        filter,
    })
}
