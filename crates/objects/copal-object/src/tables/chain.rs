//! Chain of a checkpoint, encoded page by page from the last one on, without the mutex.
//!
//! Each page holds the hash of the next, so the last page is known first. The body is encoded in parts of a
//! table chunk each, and every page is written as soon as it is full: at no time the whole body is in memory.
//! Design: docs/design/object.md#checkpoint OBJ-35
//! Invariants
//! - The tables are those of the checkpoint's position, however long the encoding takes.
//! - The body has exactly the length for which space was taken.
//!
//! Not here: the bytes of a page (`format::checkpoint`) and of the body (`snapshot`).

use crate::{
    format::{
        checkpoint::{ChainLink, HEAD_LEN, encode_page},
        run::PageRun,
    },
    tables::{ObjectTables, snapshot::CheckpointParts},
};
use copal_device::AlignedBuf;

/// Places of one chain page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChainPlace {
    pub(crate) run: PageRun,
    /// Second copy of the same length; `None` if there is no space for it.
    pub(crate) copy: Option<PageRun>,
}

impl ChainPlace {
    pub(crate) fn runs(&self) -> impl Iterator<Item = PageRun> + use<> {
        std::iter::once(self.run).chain(self.copy)
    }
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct ChainEncoder {
    lsn: u64,
    page_bytes: usize,
    parts: CheckpointParts,
    /// Places of the pages that are not encoded yet, each with its bytes of the body.
    places: Vec<(ChainPlace, usize)>,
    /// Encoded bytes of the body that belong to these pages.
    rest: Vec<u8>,
    /// Link to the page that was encoded last.
    link: ChainLink,
}

/// Bytes of a body that fit into a chain page of so many device pages.
pub(crate) fn page_capacity(pages: u32, page_bytes: usize) -> usize {
    pages as usize * page_bytes - HEAD_LEN
}

impl ChainEncoder {
    /// The chain of `parts` in `places`, which have room for it.
    pub(crate) fn new(
        lsn: u64,
        parts: CheckpointParts,
        places: Vec<ChainPlace>,
        page_bytes: usize,
    ) -> ChainEncoder {
        let mut left = parts.len();
        let split = |place: ChainPlace| {
            let here = page_capacity(place.run.pages, page_bytes).min(left);
            left -= here;
            (place, here)
        };
        let places = places.into_iter().map(split).collect();
        assert_eq!(left, 0, "a checkpoint has room in its places");
        ChainEncoder { lsn, page_bytes, parts, places, rest: Vec::new(), link: ChainLink::default() }
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.places.is_empty()
    }

    /// Link to the page that was encoded last; in the end, to the first page of the chain.
    pub(crate) fn link(&self) -> ChainLink {
        self.link
    }

    /// Encodes the page before the one that was encoded last; returns its place and its bytes.
    ///
    /// # Panics
    /// When the body is shorter or longer than its computed length: a bug of Copal.
    pub(crate) fn encode_page(&mut self) -> Option<(ChainPlace, AlignedBuf)> {
        let (place, bytes) = self.places.pop()?;
        while self.rest.len() < bytes {
            let mut part = self.parts.take_last().expect("the computed length of a checkpoint is exact");
            part.append(&mut self.rest);
            self.rest = part;
        }
        let mut buf = AlignedBuf::zeroed(place.run.pages as usize * self.page_bytes);
        let part = self.rest.split_off(self.rest.len() - bytes);
        let index = self.places.len() as u32;
        let hash = encode_page(self.lsn, index, &self.link, &part, &mut buf);
        self.link = ChainLink {
            at: place.run.at,
            copy_at: place.copy.map_or(0, |copy| copy.at),
            bytes: buf.len() as u32,
            hash,
        };
        if self.is_finished() {
            let ends = self.rest.is_empty() && self.parts.take_last().is_none();
            assert!(ends, "the computed length of a checkpoint is exact");
        }
        Some((place, buf))
    }

    /// A flaw (OBJ-35): the rest of the body comes from the live tables, if it has the same length there.
    pub(crate) fn follow(&mut self, live: &ObjectTables) {
        self.parts.follow(live);
    }
}

/// All pages of a chain: the link to the first one, and the writes of each copy.
pub(crate) fn encode_chain(mut encoder: ChainEncoder) -> (ChainLink, Vec<(PageRun, AlignedBuf)>) {
    let mut pages = Vec::new();
    while let Some((place, buf)) = encoder.encode_page() {
        pages.extend(place.copy.map(|copy| (copy, AlignedBuf::padded(&buf, 1))));
        pages.push((place.run, buf));
    }
    (encoder.link(), pages)
}
