//! Group buffer: the data of the open group, which waits in memory until the group closes.

use copal_device::AlignedBuf;

/// Data pages of the open group, behind the page of its record.
#[derive(Debug, Default)]
pub(crate) struct GroupBuffer {
    /// Pages taken.
    taken: u32,
    /// Filled parts: first page in the group's data, and bytes.
    parts: Vec<(u32, AlignedBuf)>,
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
        let is_filled = self.parts.iter().any(|(at, _)| *at >= first);
        if first + pages == self.taken && !is_filled {
            self.taken = first;
        }
    }

    pub(crate) fn fill(&mut self, first: u32, bytes: AlignedBuf) {
        self.parts.push((first, bytes));
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
