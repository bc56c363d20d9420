//! Map: iterator over the extents of one metadata context.
//!
//! A block status reply may cover less or more than the request. The next request starts where the reply
//! ended, and extents are clipped to the range. An extent that ends within a block of the export is refused.

use crate::{Client, NbdError};
use std::ops::Range;

/// A run of bytes with the same flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapExtent {
    /// First byte.
    pub offset: u64,
    /// Length in bytes, never 0.
    pub len: u64,
    /// Flags of the context: `STATE_HOLE`, `STATE_ZERO` or `STATE_DIRTY`.
    pub flags: u32,
}

/// Iterator over extents in ascending order, without gaps; adjacent extents with equal flags are merged.
#[derive(Debug)]
pub struct ExtentMap<'a> {
    client: &'a Client,
    context: u32,
    asked: Range<u64>,
    /// Extents of the last reply, in reverse order.
    ready: Vec<MapExtent>,
    failed: bool,
}

/// Length of one request: less than 4 GiB, a multiple of every block size.
const ASK_BYTES: u64 = 2 << 30;

impl<'a> ExtentMap<'a> {
    pub(crate) fn new(client: &'a Client, context: u32, asked: Range<u64>) -> ExtentMap<'a> {
        ExtentMap { client, context, asked, ready: Vec::new(), failed: false }
    }

    /// Next extent as the server reported it.
    fn pull(&mut self) -> Option<Result<MapExtent, NbdError>> {
        if self.failed {
            return None;
        }
        if self.ready.is_empty()
            && self.asked.start < self.asked.end
            && let Err(error) = self.ask()
        {
            self.failed = true;
            return Some(Err(error));
        }
        self.ready.pop().map(Ok)
    }

    fn ask(&mut self) -> Result<(), NbdError> {
        let len = (self.asked.end - self.asked.start).min(ASK_BYTES) as u32;
        let reply = self.client.block_status(self.asked.start, len)?;
        let (_, extents) = reply
            .into_iter()
            .find(|(context, _)| *context == self.context)
            .ok_or_else(|| NbdError::protocol("a block status leaves out a context"))?;
        let (size, block) = (self.client.size(), u64::from(self.client.export().block_bytes));
        for (len, flags) in extents {
            let end = self.asked.start + u64::from(len);
            if !end.is_multiple_of(block) && end < size {
                return Err(NbdError::protocol(format!(
                    "a block status ends at byte {end}, within a block of {block}"
                )));
            }
            let len = u64::from(len).min(self.asked.end - self.asked.start);
            if len > 0 {
                self.ready.push(MapExtent { offset: self.asked.start, len, flags });
                self.asked.start += len;
            }
        }
        self.ready.reverse();
        Ok(())
    }
}

impl Iterator for ExtentMap<'_> {
    type Item = Result<MapExtent, NbdError>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut extent = match self.pull()? {
            Ok(extent) => extent,
            Err(error) => return Some(Err(error)),
        };
        loop {
            match self.pull() {
                Some(Ok(next)) if next.flags == extent.flags => extent.len += next.len,
                Some(Ok(next)) => {
                    self.ready.push(next);
                    return Some(Ok(extent));
                }
                Some(Err(error)) => return Some(Err(error)),
                None => return Some(Ok(extent)),
            }
        }
    }
}
