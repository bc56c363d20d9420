//! Append head: the segment to which data of one kind is appended.

use crate::format::run::PageRun;
use crate::space::segment_table::SegmentTable;

/// The free segment that a head takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum SegmentOrder {
    /// The first one behind the present one.
    #[default]
    Next,
    /// The first one of the device.
    Lowest,
    /// The last one of the device.
    Last,
}

/// Where data of one kind goes next.
#[derive(Debug, Default)]
pub(crate) struct AppendHead {
    /// The segment, and its next page.
    at: Option<(u32, u32)>,
    order: SegmentOrder,
    has_checkpoints: bool,
}

impl AppendHead {
    /// A head for checkpoints, which takes segments in this order.
    pub(crate) fn of_checkpoints(order: SegmentOrder) -> AppendHead {
        AppendHead { at: None, order, has_checkpoints: true }
    }

    pub(crate) fn set_order(&mut self, order: SegmentOrder) {
        self.order = order;
    }

    /// Whether it has a segment.
    pub(crate) fn has_segment(&self) -> bool {
        self.at.is_some()
    }

    /// Pages left in its segment.
    pub(crate) fn rest_pages(&self, segments: &SegmentTable) -> u32 {
        self.at.map_or(0, |(_, page)| segments.segment_pages() - page)
    }

    /// Segments that it takes for runs of `pages` pages in all, if each run is short beside a segment.
    pub(crate) fn segments_for(&self, pages: u64, segments: &SegmentTable) -> u64 {
        if pages <= self.rest_pages(segments).into() {
            return 0;
        }
        pages.div_ceil(segments.segment_pages().into())
    }

    /// Its segment.
    pub(crate) fn segment(&self) -> Option<u32> {
        self.at.map(|(segment, _)| segment)
    }

    /// Takes a run of `pages` pages, in a new segment if the present one has fewer left. `None` if no segment is
    /// free, or if no segment is so long.
    pub(crate) fn take_run(&mut self, segments: &mut SegmentTable, pages: u32) -> Option<PageRun> {
        if pages > segments.segment_pages() {
            return None;
        }
        if self.rest_pages(segments) < pages && !self.begin(segments) {
            return None;
        }
        let (segment, page) = self.at?;
        let run = PageRun::new(segments.first_page(segment) + u64::from(page), pages);
        assert!(segments.take(run), "nothing lies behind a head");
        self.at = Some((segment, page + pages));
        Some(run)
    }

    /// Takes `pages` pages as few runs. `None`, with nothing taken, if too few segments are free.
    pub(crate) fn take(&mut self, segments: &mut SegmentTable, pages: u64) -> Option<Vec<PageRun>> {
        let rest = u64::from(self.rest_pages(segments));
        let more = pages.saturating_sub(rest).div_ceil(segments.segment_pages().into());
        if more > segments.free_segments() {
            return None;
        }
        let mut runs = Vec::new();
        let mut left = pages;
        while left > 0 {
            if self.rest_pages(segments) == 0 && !self.begin(segments) {
                break;
            }
            let part = left.min(self.rest_pages(segments).into()) as u32;
            runs.extend(self.take_run(segments, part));
            left -= u64::from(part);
        }
        Some(runs)
    }

    fn begin(&mut self, segments: &mut SegmentTable) -> bool {
        let next = match (self.order, self.at) {
            (SegmentOrder::Last, _) => segments.hold_last_free(),
            (SegmentOrder::Next, Some((segment, _))) => segments.hold_free(segment),
            (SegmentOrder::Next, None) | (SegmentOrder::Lowest, _) => segments.hold_free(0),
        };
        let Some(next) = next else {
            return false;
        };
        if let Some((segment, _)) = self.at {
            if self.has_checkpoints {
                segments.close_chain(segment);
            } else {
                segments.close(segment);
            }
        }
        self.at = Some((next, 0));
        true
    }
}
