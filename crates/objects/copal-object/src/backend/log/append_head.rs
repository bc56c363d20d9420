//! Append head: the segment to which data of one kind is appended.

use super::SegmentTable;
use crate::format::run::PageRun;

/// Where data of one kind goes next.
#[derive(Debug, Default)]
pub(crate) struct AppendHead {
    /// The segment, and its next page.
    at: Option<(u32, u32)>,
    /// New segments come from the end of the device.
    from_end: bool,
}

impl AppendHead {
    /// New segments come from the end of the device.
    pub(crate) fn from_end() -> AppendHead {
        AppendHead { at: None, from_end: true }
    }

    /// Pages left in its segment.
    pub(crate) fn rest_pages(&self, segments: &SegmentTable) -> u32 {
        self.at.map_or(0, |(_, page)| segments.segment_pages() - page)
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
        let next = match self.at {
            _ if self.from_end => segments.hold_last_free(),
            Some((segment, _)) => segments.hold_free(segment),
            None => segments.hold_free(0),
        };
        let Some(next) = next else {
            return false;
        };
        if let Some((segment, _)) = self.at {
            segments.close(segment);
        }
        self.at = Some((next, 0));
        true
    }
}
