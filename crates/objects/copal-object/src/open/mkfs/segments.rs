//! Layout of a new store of the `log` backend: headers of the first two segments of records, and an empty
//! checkpoint in segments of data.

use crate::{
    MkfsOptions, StoreOpenError,
    backend::log::CommitHead,
    format::{
        run::PageRun,
        segment::{ChainSegment, SegmentHeader},
        superblock::{PAGE_SIZES, SEGMENT_BYTES, STORE_BYTES_MAX},
    },
    space::segment_table::SegmentTable,
    tables::chain::ChainPlace,
};
use copal_device::AlignedBuf;

/// Least length of a store that is made without a given segment size.
const STORE_BYTES_MIN: u64 = 256 << 20;
/// Segments that a store needs: three for records, three for heads, four kept, and some for data.
const SEGMENTS_MIN: u64 = 16;
const MIB: u64 = 1 << 20;

/// Layout of a new store in segments.
pub(super) struct SegmentLayout {
    pub(super) page_bytes: u64,
    pub(super) pages: u64,
    pub(super) segment_bytes: u32,
    /// First segment of records, the one after it, and the one after that.
    records: [u32; 3],
    pub(super) checkpoint: ChainPlace,
    segments: SegmentTable,
}

impl SegmentLayout {
    pub(super) fn new(
        size: u64,
        page_bytes: u64,
        options: &MkfsOptions,
    ) -> Result<SegmentLayout, StoreOpenError> {
        if !PAGE_SIZES.iter().any(|size| u64::from(*size) == page_bytes) {
            return refuse(format!("a page has 4096, 8192 or 16384 bytes, not {page_bytes}"));
        }
        let size = size.min(STORE_BYTES_MAX) / page_bytes * page_bytes;
        if size < STORE_BYTES_MIN && options.segment_bytes.is_none() {
            return refuse(format!(
                "the log backend takes at least {} MiB, and there are {}; use the cow backend",
                STORE_BYTES_MIN / MIB,
                size / MIB
            ));
        }
        let most = options.profile.as_ref().map_or(32 * MIB, |profile| profile.segment_bytes().into());
        let default = 1u64 << (size / 128).clamp(MIB, most.max(MIB)).ilog2();
        let segment_bytes = options.segment_bytes.unwrap_or(default as u32);
        if !SEGMENT_BYTES.contains(&segment_bytes) || !segment_bytes.is_power_of_two() {
            let (least, most) = (SEGMENT_BYTES.start(), SEGMENT_BYTES.end());
            return refuse(format!(
                "a segment has a power of two from {least} to {most} bytes, not {segment_bytes}"
            ));
        }
        let (pages, segment_pages) = (size / page_bytes, segment_bytes / page_bytes as u32);
        if segment_pages < 8 {
            return refuse(format!("a segment has at least 8 pages, so {segment_bytes} bytes are too few"));
        }
        let mut segments = SegmentTable::new(pages, segment_pages, page_bytes as usize);
        if segments.usable() < SEGMENTS_MIN {
            return refuse(format!(
                "the log backend takes at least {SEGMENTS_MIN} segments of {segment_bytes} bytes besides those \
                 with a superblock, and {} fit into {size}",
                segments.usable()
            ));
        }
        let mut take = || segments.hold_free(0).unwrap_or_default();
        let records = [take(), take(), take()];
        let (first, copy) = (take(), segments.hold_last_free().unwrap_or_default());
        let checkpoint = ChainPlace {
            run: PageRun::new(segments.first_page(first), 1),
            copy: Some(PageRun::new(segments.first_page(copy), 1)),
        };
        Ok(SegmentLayout { page_bytes, pages, segment_bytes, records, checkpoint, segments })
    }

    /// Position of the first record.
    pub(super) fn head(&self) -> u64 {
        CommitHead::position(self.records[0], 1)
    }

    /// The segment of the first record.
    pub(super) fn segment(&self) -> ChainSegment {
        ChainSegment { number: 1, next: self.records[1].into() }
    }

    /// Headers of the first two segments of records.
    pub(super) fn headers(&self, uuid: u128) -> Vec<(PageRun, AlignedBuf)> {
        let header = |index: usize| {
            let segment = self.records[index];
            let header = SegmentHeader {
                store: uuid as u64,
                segment: segment.into(),
                number: index as u64 + 1,
                next: self.records[index + 1].into(),
            };
            let mut page = AlignedBuf::zeroed(self.page_bytes as usize);
            header.encode(&mut page);
            (PageRun::new(self.segments.first_page(segment), 1), page)
        };
        vec![header(0), header(1)]
    }

    /// Notes that the segments with headers are written completely. Returns their pages behind the headers, which get
    /// zeros; a segment with a header gets none later.
    pub(super) fn write_ahead(&mut self) -> Vec<PageRun> {
        let pages = self.segments.segment_pages();
        let with_header = self.records.iter().take(2);
        let firsts: Vec<u64> = with_header.map(|&segment| self.segments.first_page(segment)).collect();
        firsts.iter().for_each(|&first| self.segments.note_written(PageRun::new(first, pages)));
        firsts.into_iter().map(|first| PageRun::new(first + 1, pages - 1)).collect()
    }

    /// Runs of written zones, for the checkpoint.
    pub(super) fn written_zones(&self) -> Vec<(u64, u64)> {
        self.segments.written_zones()
    }
}

pub(super) fn refuse<T>(what: String) -> Result<T, StoreOpenError> {
    Err(StoreOpenError::Options { what })
}
