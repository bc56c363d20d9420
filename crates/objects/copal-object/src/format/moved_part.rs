//! Moved part: pages of one owner that the cleaner has copied to another place.
//!
//! Format: docs/formats/object-record.md v1

use super::run::{PageRun, put_run, take_run};
use copal_codec::{DecodeError, Put, Reader};

/// Pages of one object or stream, and their new place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MovedPart {
    /// The object or stream.
    pub(crate) id: u64,
    /// First page inside the object; in a stream, the number of the piece's first frame.
    pub(crate) at: u64,
    /// Where the pages were.
    pub(crate) from: PageRun,
    /// Number of the first page in the run that holds them now.
    pub(crate) offset: u32,
}

impl MovedPart {
    /// Bytes in a record.
    pub(crate) const LEN: usize = 32;

    pub(super) fn put(&self, out: &mut impl Put) {
        out.put_u64(self.id);
        out.put_u64(self.at);
        put_run(out, self.from);
        out.put_u32(self.offset);
    }

    pub(super) fn take(input: &mut Reader<'_>) -> Result<MovedPart, DecodeError> {
        Ok(MovedPart { id: input.u64()?, at: input.u64()?, from: take_run(input)?, offset: input.u32()? })
    }

    /// The pages in `to`; `None` if they do not lie there.
    pub(crate) fn place_in(&self, to: PageRun) -> Option<PageRun> {
        let end = self.offset.checked_add(self.from.pages)?;
        (end <= to.pages).then(|| PageRun::new(to.at + u64::from(self.offset), self.from.pages))
    }
}
