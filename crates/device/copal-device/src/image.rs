//! Device content in memory as a copy-on-write tree of shared pages.
//!
//! A clone costs one reference count; a write into a clone copies the three nodes above the changed page. So
//! millions of crash states can be enumerated: each is a clone of the durable image with a few pages
//! replaced.
//!
//! Invariants
//! - Pages that were never written are absent and read as zeros.
//! - No byte at or beyond `size` is stored: shrinking drops it.

use std::sync::Arc;

/// Bytes of a tree page; unrelated to page sizes of upper layers.
pub(crate) const PAGE: usize = 4096;
const FANOUT: usize = 64;
const LEAF_PAGES: u64 = FANOUT as u64;
const BRANCH_PAGES: u64 = LEAF_PAGES * FANOUT as u64;

pub(crate) type Page = [u8; PAGE];

#[derive(Clone)]
struct ImageLeaf([Option<Arc<Page>>; FANOUT]);

#[derive(Clone)]
struct ImageBranch([Option<Arc<ImageLeaf>>; FANOUT]);

/// Content of a device, copy-on-write. Absent pages are zeros.
#[derive(Clone, Default)]
pub struct Image {
    branches: Arc<Vec<Option<Arc<ImageBranch>>>>,
    size: u64,
}

impl Image {
    /// `size` zero bytes; takes no memory for them.
    #[must_use]
    pub fn zeroed(size: u64) -> Image {
        let mut image = Image::default();
        image.resize(size);
        image
    }

    /// Bytes of the image.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Shortens the image, or extends it with zeros.
    pub fn resize(&mut self, size: u64) {
        if size < self.size {
            let end = size.next_multiple_of(PAGE as u64);
            self.fill(size, end.min(self.size) - size, 0);
            for index in end / PAGE as u64..self.size.div_ceil(PAGE as u64) {
                if self.page(index).is_some() {
                    self.set_page(index, None);
                }
            }
        }
        let branches = size.div_ceil(PAGE as u64).div_ceil(BRANCH_PAGES) as usize;
        Arc::make_mut(&mut self.branches).resize(branches, None);
        self.size = size;
    }

    pub(crate) fn page(&self, index: u64) -> Option<&Arc<Page>> {
        let branch = self.branches.get((index / BRANCH_PAGES) as usize)?.as_ref()?;
        let leaf = branch.0[(index / LEAF_PAGES % LEAF_PAGES) as usize].as_ref()?;
        leaf.0[(index % LEAF_PAGES) as usize].as_ref()
    }

    fn slot(&mut self, index: u64) -> &mut Option<Arc<Page>> {
        const NO_LEAF: Option<Arc<ImageLeaf>> = None;
        const NO_PAGE: Option<Arc<Page>> = None;
        let branches = Arc::make_mut(&mut self.branches);
        let branch = branches[(index / BRANCH_PAGES) as usize]
            .get_or_insert_with(|| Arc::new(ImageBranch([NO_LEAF; FANOUT])));
        let leaf = Arc::make_mut(branch).0[(index / LEAF_PAGES % LEAF_PAGES) as usize]
            .get_or_insert_with(|| Arc::new(ImageLeaf([NO_PAGE; FANOUT])));
        &mut Arc::make_mut(leaf).0[(index % LEAF_PAGES) as usize]
    }

    /// Sets a shared page without copying its bytes.
    pub(crate) fn set_page(&mut self, index: u64, page: Option<Arc<Page>>) {
        *self.slot(index) = page;
    }

    /// Copies bytes out.
    ///
    /// # Panics
    /// When the range is not inside the image.
    pub fn read(&self, at: u64, out: &mut [u8]) {
        self.assert_inside(at, out.len() as u64);
        for (index, within, part) in pieces(at, out.len()) {
            let target = &mut out[part.clone()];
            match self.page(index) {
                Some(page) => target.copy_from_slice(&page[within..within + part.len()]),
                None => target.fill(0),
            }
        }
    }

    /// Copies bytes in. Whole pages of zeros take no memory.
    ///
    /// # Panics
    /// When the range is not inside the image.
    pub fn write(&mut self, at: u64, bytes: &[u8]) {
        self.assert_inside(at, bytes.len() as u64);
        for (index, within, part) in pieces(at, bytes.len()) {
            let source = &bytes[part];
            if source.len() == PAGE && source.iter().all(|&byte| byte == 0) {
                if self.page(index).is_some() {
                    self.set_page(index, None);
                }
                continue;
            }
            let page = self.slot(index).get_or_insert_with(|| Arc::new([0; PAGE]));
            Arc::make_mut(page)[within..within + source.len()].copy_from_slice(source);
        }
    }

    /// Sets `len` bytes to `byte`. Whole pages of zeros free their memory.
    ///
    /// # Panics
    /// When the range is not inside the image.
    pub fn fill(&mut self, at: u64, len: u64, byte: u8) {
        self.assert_inside(at, len);
        let whole = (byte != 0).then(|| Arc::new([byte; PAGE]));
        let mut from = at;
        while from < at + len {
            let within = (from % PAGE as u64) as usize;
            let step = (PAGE - within).min(usize::try_from(at + len - from).unwrap_or(PAGE));
            let index = from / PAGE as u64;
            if step == PAGE {
                if whole.is_some() || self.page(index).is_some() {
                    self.set_page(index, whole.clone());
                }
            } else if byte != 0 || self.page(index).is_some() {
                let page = self.slot(index).get_or_insert_with(|| Arc::new([0; PAGE]));
                Arc::make_mut(page)[within..within + step].fill(byte);
            }
            from += step as u64;
        }
    }

    fn assert_inside(&self, at: u64, len: u64) {
        let inside = at.checked_add(len).is_some_and(|end| end <= self.size);
        assert!(inside, "{len} bytes at {at} are outside an image of {}", self.size);
    }
}

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Image").field("size", &self.size).finish_non_exhaustive()
    }
}

/// Page index, offset in the page, and range of the caller's bytes, for each page of a range.
fn pieces(at: u64, len: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let from = at + done as u64;
        let within = (from % PAGE as u64) as usize;
        let step = (PAGE - within).min(len - done);
        let part = done..done + step;
        done += step;
        Some((from / PAGE as u64, within, part))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A seeded walk over reads, writes, fills, resizes and clones, against plain vectors.
    #[test]
    fn an_image_and_its_clones_behave_like_vectors() {
        let mut random = crate::random::DeviceRandom::new(1);
        let mut next = move |below| random.below(below);
        let start = 40 * PAGE;
        let mut pairs = vec![(Image::zeroed(start as u64), vec![0u8; start])];
        for step in 0..4000u32 {
            let which = next(pairs.len() as u64) as usize;
            let count = pairs.len();
            let (image, model) = &mut pairs[which];
            let at = next(model.len() as u64) as usize;
            let len = next((model.len() - at) as u64 + 1).min(3 * PAGE as u64) as usize;
            match next(12) {
                0..=5 => {
                    let bytes: Vec<u8> = (0..len).map(|i| (i as u32 ^ step) as u8).collect();
                    image.write(at as u64, &bytes);
                    model[at..at + len].copy_from_slice(&bytes);
                }
                6 | 7 => {
                    let byte = (step % 3) as u8;
                    image.fill(at as u64, len as u64, byte);
                    model[at..at + len].fill(byte);
                }
                8 => {
                    let size = 1 + next(60 * PAGE as u64) as usize;
                    image.resize(size as u64);
                    model.resize(size, 0);
                }
                9 if count < 6 => {
                    let copy = pairs[which].clone();
                    pairs.push(copy);
                }
                _ => {
                    let mut out = vec![0xaa; len];
                    image.read(at as u64, &mut out);
                    assert_eq!(out, model[at..at + len]);
                }
            }
        }
        for (image, model) in &pairs {
            let mut out = vec![0xaa; model.len()];
            image.read(0, &mut out);
            assert_eq!(&out, model);
        }
    }

    #[test]
    fn a_terabyte_of_zeros_is_sparse() {
        let mut image = Image::zeroed(1 << 40);
        image.write((1 << 40) - 3, b"end");
        let mut out = [9; 5];
        image.read((1 << 40) - 5, &mut out);
        assert_eq!(&out, b"\0\0end");
    }

    #[test]
    #[should_panic(expected = "outside an image")]
    fn writes_beyond_the_end_are_our_own_bug() {
        Image::zeroed(100).write(98, b"abc");
    }
}
