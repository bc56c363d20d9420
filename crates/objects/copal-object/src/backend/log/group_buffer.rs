//! Group buffer: the data of the open group, which waits in memory until the group closes.

use bytes::Bytes;
use copal_device::AlignedBuf;
use std::collections::BTreeMap;

/// Data pages of the open group, behind the page of its record.
#[derive(Debug, Default)]
pub(crate) struct GroupBuffer {
    /// Pages taken.
    taken: u32,
    /// Filled parts by their first page in the group's data.
    parts: BTreeMap<u32, Bytes>,
}

impl GroupBuffer {
    pub(crate) fn taken(&self) -> u32 {
        self.taken
    }

    /// Takes the next `pages` pages; returns the first of them.
    pub(crate) fn take(&mut self, pages: u32) -> u32 {
        let first = self.taken;
        self.taken += pages;
        first
    }

    /// Gives back `pages` pages from `first` on, if they are the last ones and hold nothing. Other pages stay: they
    /// are written as zeros and have no owner.
    pub(crate) fn give_back(&mut self, first: u32, pages: u32) {
        let is_filled = self.parts.range(first..).next().is_some();
        if first + pages == self.taken && !is_filled {
            self.taken = first;
        }
    }

    pub(crate) fn fill(&mut self, first: u32, bytes: AlignedBuf) {
        self.parts.insert(first, Bytes::from_owner(bytes));
    }

    /// Bytes of a page of the group's data, if it is filled.
    pub(crate) fn page(&self, page: u32, page_bytes: usize) -> Option<Bytes> {
        let (first, bytes) = self.parts.range(..=page).next_back()?;
        let from = (page - first) as usize * page_bytes;
        (from < bytes.len()).then(|| bytes.slice(from..from + page_bytes))
    }

    /// Copies the data into `out`, all taken pages.
    pub(crate) fn copy_to(&self, out: &mut [u8], page_bytes: usize) {
        out.fill(0);
        for (first, bytes) in &self.parts {
            let from = *first as usize * page_bytes;
            out[from..from + bytes.len()].copy_from_slice(bytes);
        }
    }
}
