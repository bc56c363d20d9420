//! Reading ahead in the pieces of an open stream, whose end is known, and the search for a frame in a piece.
//!
//! No index of frames exists: a piece knows its first frame, and each frame its number. A search reads windows of a
//! piece, finds a frame in each, and continues between the nearest ones. The first place and every second one are
//! those that frames of one length would have; the others halve the rest. So the number of reads has a bound that
//! depends on the length of a piece only, and a search among frames of about one length is one or two reads.
//! Invariants
//! - A frame that a payload contains is not taken for one: incarnations are random. Frames that ride have none, so
//!   nobody searches for them.

use super::walk::{FoundDamage, PieceWindow, ReadPages, behind_damage, frame_at};
use crate::{
    format::{frame::FrameHeader, run::PageRun},
    tables::StreamPiece,
};
use copal_device::DeviceError;

/// Pages that a reader of frames reads at once.
const READER_PAGES: u32 = 64;
/// A search reads windows of three times as many pages at most. Longer frames are found by reading those before them.
pub(crate) const SEARCHED_PAGES_MAX: u32 = READER_PAGES;

/// A page of a piece, and the number of the frame that begins there.
pub(crate) type FramePlace = (u32, u64);

/// A frame in a piece, between two places.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FrameSearch {
    pub(crate) frame: u64,
    /// The frame is this one or a later one.
    pub(crate) low: FramePlace,
    /// The frame is an earlier one, and begins before this page.
    pub(crate) high: FramePlace,
    /// No frame has more pages.
    pub(crate) pages_max: u32,
}

enum SearchStep {
    Found(u32),
    /// `low` and `high` are closer.
    Closer,
    /// Neither frame nor damage lead on.
    Lost,
}

impl FrameSearch {
    /// Pages read at once: they hold a complete frame, wherever they begin.
    fn window_pages(&self) -> u32 {
        READER_PAGES + 2 * self.pages_max
    }

    /// Reads one window.
    fn step(
        &mut self,
        window: &mut PieceWindow<'_>,
        incarnation: u64,
        halves: bool,
    ) -> Result<SearchStep, DeviceError> {
        let start = self.start(halves);
        let end = start.saturating_add(self.window_pages()).min(window.piece.pages);
        // Frames that begin before are in the window as a whole.
        let whole = if end == window.piece.pages { end } else { end - self.pages_max };
        // Held bytes may end within the window.
        window.bytes.clear();
        let from_low = start == self.low.0;
        let (mut at, mut leads_on) = (start, from_low);
        while at < whole {
            let found = frame_at(window, at, incarnation)?.map(|(header, pages, _)| (header.frame, pages));
            match found.filter(|(number, _)| self.is_between(*number)) {
                Some((number, _)) if number == self.frame => return Ok(SearchStep::Found(at)),
                // It lies before the window, or is damaged.
                Some((number, _)) if number > self.frame => {
                    self.high = (start, number);
                    return Ok(if leads_on { SearchStep::Lost } else { SearchStep::Closer });
                }
                Some((number, pages)) => {
                    at += pages;
                    self.low = (at, number + 1);
                    leads_on = true;
                }
                // The middle of a frame, or damage.
                None => at += 1,
            }
        }
        if !leads_on {
            self.high.0 = start;
        } else if from_low && self.low.0 == start {
            self.low.0 = whole;
        }
        Ok(if self.low.0 < self.high.0 { SearchStep::Closer } else { SearchStep::Lost })
    }

    /// First page of the next window.
    fn start(&self, halves: bool) -> u32 {
        let ((low, first), (high, end)) = (self.low, self.high);
        let pages = u64::from(high.saturating_sub(low));
        if pages <= u64::from(self.window_pages() - self.pages_max) {
            return low;
        }
        let ahead = match halves {
            true => pages / 2,
            // Frames of one length; a part of the window lies before the frame.
            false => {
                let share =
                    u128::from(pages) * u128::from(self.frame - first) / u128::from((end - first).max(1));
                (share as u64).saturating_sub(u64::from(self.window_pages() / 4))
            }
        };
        low + ahead as u32
    }

    fn is_between(&self, number: u64) -> bool {
        (self.low.1..self.high.1).contains(&number)
    }
}

/// Pages of a piece read ahead.
#[derive(Default)]
pub(crate) struct ReadAhead {
    piece: Option<PageRun>,
    at: u32,
    bytes: Vec<u8>,
}

impl ReadAhead {
    /// See [`behind_damage`].
    pub(crate) fn behind_damage(
        &mut self,
        piece: &StreamPiece,
        at: u32,
        wanted: u64,
        page_bytes: usize,
        read: ReadPages<'_>,
    ) -> Result<Option<(u32, u64)>, DeviceError> {
        behind_damage(&mut window_of(piece.run, page_bytes, read), at, piece.incarnation, wanted)
    }

    /// The valid frame at page `at` of `piece`. Tries the pages read ahead first, then reads them again: the
    /// frame may have been appended since.
    pub(crate) fn frame(
        &mut self,
        piece: &StreamPiece,
        at: u32,
        page_bytes: usize,
        read: ReadPages<'_>,
    ) -> Result<Option<(FrameHeader, u32, Vec<u8>)>, DeviceError> {
        if self.piece != Some(piece.run) {
            *self = ReadAhead { piece: Some(piece.run), ..ReadAhead::default() };
        }
        let bytes = std::mem::take(&mut self.bytes);
        let mut window = PieceWindow { at: self.at, bytes, ..window_of(piece.run, page_bytes, read) };
        let mut found = frame_at(&mut window, at, piece.incarnation)?.map(owned);
        if found.is_none() {
            window.bytes.clear();
            found = frame_at(&mut window, at, piece.incarnation)?.map(owned);
        }
        self.at = window.at;
        self.bytes = window.bytes;
        Ok(found)
    }

    /// Page of a frame in `piece`; `None`: it was not found, so that damage is in the way. The pages read last stay
    /// for [`ReadAhead::frame`].
    pub(crate) fn search(
        &mut self,
        piece: &StreamPiece,
        mut search: FrameSearch,
        page_bytes: usize,
        read: ReadPages<'_>,
    ) -> Result<Option<u32>, DeviceError> {
        let pages = search.window_pages();
        let mut window =
            PieceWindow { ahead: pages, ahead_max: pages, ..window_of(piece.run, page_bytes, read) };
        let mut steps = 0;
        let page = loop {
            match search.step(&mut window, piece.incarnation, steps % 2 == 1)? {
                SearchStep::Found(page) => break Some(page),
                SearchStep::Lost => break None,
                SearchStep::Closer => steps += 1,
            }
        };
        *self = ReadAhead { piece: Some(piece.run), at: window.at, bytes: window.bytes };
        Ok(page)
    }
}

/// The window of a reader.
fn window_of(piece: PageRun, page_bytes: usize, read: ReadPages<'_>) -> PieceWindow<'_> {
    let ahead = READER_PAGES;
    PieceWindow { read, page_bytes, piece, at: 0, bytes: Vec::new(), ahead, ahead_max: ahead }
}

fn owned((header, pages, payload): FoundDamage<'_>) -> (FrameHeader, u32, Vec<u8>) {
    (header, pages, payload.to_vec())
}
