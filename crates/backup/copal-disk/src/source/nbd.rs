//! An export of an NBD server: a running guest's snapshot, a storage appliance, `qemu-nbd`.
//!
//! Holes come from the metadata context `base:allocation`; changed extents from a dirty bitmap
//! (`qemu:dirty-bitmap:<name>`), when the server exports one.
//!
//! Invariant: of a disk whose VM runs, no two requests that overlap are on the wire ([`ReadMode`]): QEMU
//! before 7.2.15, 9.0.4 and 9.1.1 aborts on them.
//! Not here: starting a server (`qcow2`), finding out how a QEMU has to be read (`copal-live`).

use super::{Bitmap, ChangedExtents, Extent, ExtentKind, Source, SourceError, runs::Runs};
use copal_nbd::{BASE_ALLOCATION, Client, ConnectOptions, NbdError, STATE_DIRTY, STATE_ZERO, Uri};
use parking_lot::Mutex;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// How long the server may take to say its size once more.
const SECOND_LOOK: Duration = Duration::from_secs(10);
/// What one question about the map covers at most, in bytes.
const MAP_BYTES: u64 = 1 << 30;
/// Most extents that are remembered of one answer: 1.5 MiB.
const MAP_EXTENTS: usize = 1 << 16;
/// Most extents of the server's that one question waits for: 8 MiB on the wire.
const MAP_PARTS: usize = 1 << 20;
/// A shorter hole is read: that takes no longer than being told.
const SHORT_HOLE_BYTES: u64 = 4096;

/// The error number of a disk that cannot be read.
const EIO: u32 = 5;
/// Least cluster of QEMU's filter `copy-before-write`: a request within one is answered of one point in time,
/// also where the filter has larger ones.
const CLUSTER_BYTES: u32 = 64 << 10;

/// How the requests to an export are cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadMode {
    /// The export does not change: long reads, and holes as its map tells them.
    #[default]
    Still,
    /// The disk of a VM that runs, at a point in time of a QEMU that answers requests of any length from
    /// that: as `Still`, one call at a time.
    PointInTime,
    /// The disk of a VM that runs, and nobody knows how QEMU answers. Before 8.0 it takes a request that
    /// begins in a copied cluster and ends behind it from the present disk, and tells holes of that. So the
    /// map is never asked for, and each read lies within one cluster of 64 KiB; many are on the wire, and a
    /// hole costs 12 bytes there.
    Clusters,
}

/// An export of an NBD server.
#[derive(Debug)]
pub struct NbdSource {
    what: String,
    uri: Uri,
    client: Client,
    mode: ReadMode,
    has_map: bool,
    /// Held by a call whose requests are on the wire, where no two may overlap.
    turn: Mutex<()>,
    /// The server has refused a request.
    is_refused: Arc<AtomicBool>,
    /// The last block status reply: ascending, without gaps.
    known: Mutex<Vec<Extent>>,
}

fn failed(what: &str, error: &NbdError) -> SourceError {
    SourceError::Unusable { reason: format!("{what}: {error}") }
}

/// Name of the metadata context of a dirty bitmap.
fn bitmap_context(name: &str) -> String {
    format!("qemu:dirty-bitmap:{name}")
}

impl NbdSource {
    /// Connects to an export; asks for dirty bitmaps too.
    ///
    /// # Errors
    /// The address is wrong, nobody listens, or the server refuses. A bitmap that it does not have is no
    /// error, see [`NbdSource::has_bitmap`].
    pub fn connect(uri: &str, bitmaps: &[&str], mode: ReadMode) -> Result<NbdSource, SourceError> {
        let parsed = Uri::parse(uri).map_err(|error| SourceError::Unusable { reason: error.to_string() })?;
        NbdSource::connect_to(uri, &parsed, bitmaps, mode)
    }

    /// As [`NbdSource::connect`], for an address already understood; `what` names it in messages.
    ///
    /// # Errors
    /// As [`NbdSource::connect`], but for the address.
    pub fn connect_to(
        what: &str,
        uri: &Uri,
        bitmaps: &[&str],
        mode: ReadMode,
    ) -> Result<NbdSource, SourceError> {
        let mut options = ConnectOptions::default();
        if mode == ReadMode::Clusters {
            // A server asks its map for every context that was agreed on, whichever the question is about.
            options.contexts.clear();
        }
        options.contexts.extend(bitmaps.iter().map(|name| bitmap_context(name)));
        let client = Client::connect(uri, &options).map_err(|error| failed(what, &error))?;
        let has_map = client.contexts().iter().any(|context| context.name == BASE_ALLOCATION);
        Ok(NbdSource {
            what: what.to_owned(),
            uri: uri.clone(),
            client,
            mode,
            has_map,
            turn: Mutex::new(()),
            is_refused: Arc::default(),
            known: Mutex::new(Vec::new()),
        })
    }

    /// Set from the moment on in which the server refuses to read, which is no failure of its disk: QEMU does
    /// for a point in time that it has given up.
    pub fn refusals(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.is_refused)
    }

    /// Whether a bitmap that was asked for at `connect` can be mapped.
    pub fn has_bitmap(&self, name: &str) -> bool {
        let wanted = bitmap_context(name);
        self.client.contexts().iter().any(|context| context.name == wanted)
    }

    /// What a dirty bitmap says has changed since it began.
    ///
    /// # Errors
    /// The bitmap is not there, or the connection broke.
    pub fn changed(&self, bitmap: &str) -> Result<ChangedExtents, SourceError> {
        let size_bytes = self.client.size();
        let mut runs = Runs::default();
        let map = self.client.map(&bitmap_context(bitmap), 0..size_bytes);
        for extent in map.map_err(|error| failed(&self.what, &error))? {
            let extent = extent.map_err(|error| failed(&self.what, &error))?;
            if extent.flags & STATE_DIRTY != 0 {
                runs.push(extent.offset..extent.offset + extent.len);
            }
        }
        Ok(ChangedExtents {
            size_bytes,
            base: None,
            bitmap: Some(Bitmap { name: bitmap.to_owned(), dirty_bytes: runs.bytes }),
            extents: runs.extents(),
        })
    }

    /// Reads the last block: an export that lost its end, or whose server is gone, fails here although
    /// nothing but holes was asked for.
    pub(super) fn read_end(&self) -> Result<(), SourceError> {
        let size = self.client.size();
        if size > 0 {
            self.read_at(size - 1, &mut [0])?;
        }
        Ok(())
    }

    /// Sees that nothing else is on the wire where that matters, until `ask` returns.
    fn alone<T>(&self, ask: impl FnOnce() -> Result<T, NbdError>) -> Result<T, SourceError> {
        let turn = (self.mode != ReadMode::Still).then(|| self.turn.lock());
        let outcome = ask();
        drop(turn);
        if matches!(outcome, Err(NbdError::Request { errno, .. }) if errno != EIO) {
            self.is_refused.store(true, Ordering::Release);
        }
        outcome.map_err(|error| failed(&self.what, &error))
    }

    fn read_aligned(&self, offset: u64, buf: &mut [u8]) -> Result<(), SourceError> {
        self.alone(|| match self.mode {
            ReadMode::Still | ReadMode::PointInTime => self.client.read(offset, buf),
            ReadMode::Clusters => self.client.read_within(offset, buf, CLUSTER_BYTES),
        })
    }

    /// Asks the server what lies at `offset` and remembers the answer, as far as it fits the bounds.
    fn ask(&self, offset: u64, known: &mut Vec<Extent>) -> Result<(), NbdError> {
        let end = self.client.size().min(offset + MAP_BYTES);
        known.clear();
        for extent in self.client.map(BASE_ALLOCATION, offset..end)?.take(MAP_PARTS) {
            let extent = extent?;
            let is_hole = extent.flags & STATE_ZERO != 0 && extent.len >= SHORT_HOLE_BYTES;
            let kind = if is_hole { ExtentKind::Zero } else { ExtentKind::Data };
            let count = known.len();
            match known.last_mut() {
                Some(last) if last.kind == kind => last.length += extent.len,
                _ if count == MAP_EXTENTS => break,
                _ => known.push(Extent { offset: extent.offset, length: extent.len, kind }),
            }
        }
        Ok(())
    }
}

impl Source for NbdSource {
    fn size_bytes(&self) -> Option<u64> {
        Some(self.client.size())
    }

    fn block_bytes(&self) -> u32 {
        self.client.export().block_bytes.max(4096)
    }

    fn extent_at(&self, offset: u64) -> Result<Extent, SourceError> {
        let size = self.client.size();
        if !self.has_map {
            return Ok(Extent { offset, length: size - offset, kind: ExtentKind::Data });
        }
        let mut known = self.known.lock();
        let find = |known: &[Extent]| {
            let at = known.partition_point(|extent| extent.end() <= offset);
            known.get(at).filter(|extent| extent.offset <= offset).copied()
        };
        if let Some(extent) = find(&known) {
            return Ok(extent);
        }
        let block = u64::from(self.client.export().block_bytes);
        self.alone(|| self.ask(offset - offset % block, &mut known))?;
        find(&known).ok_or_else(|| SourceError::Unusable {
            reason: format!("{}: the server does not say what lies at byte {offset}", self.what),
        })
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize, SourceError> {
        let size = self.client.size();
        let len = buf.len().min(usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX));
        if len == 0 {
            return Ok(0);
        }
        let buf = &mut buf[..len];
        let block = u64::from(self.client.export().block_bytes);
        let (start, end) = (offset - offset % block, (offset + len as u64).next_multiple_of(block));
        if (start, end) == (offset, offset + len as u64) {
            self.read_aligned(offset, buf)?;
        } else {
            // The server reads whole blocks only.
            let mut whole = vec![0; (end - start) as usize];
            self.read_aligned(start, &mut whole)?;
            buf.copy_from_slice(&whole[(offset - start) as usize..][..len]);
        }
        Ok(len)
    }
    /// The size of an export is told once per connection, so a new one is made, after the old one is closed:
    /// many servers take one client at a time. One that has ended with its client cannot be asked.
    fn confirm(&self) -> Result<Option<String>, SourceError> {
        self.read_end()?;
        self.client.hang_up();
        let options =
            ConnectOptions { contexts: Vec::new(), timeout: SECOND_LOOK, ..ConnectOptions::default() };
        match Client::connect(&self.uri, &options) {
            Ok(again) if again.size() == self.client.size() => Ok(None),
            Ok(again) => Err(SourceError::Changed {
                what: self.what.clone(),
                how: format!("went from {} to {} bytes", self.client.size(), again.size()),
            }),
            Err(error) => {
                tracing::debug!(%error, what = self.what, "the server does not tell its size again");
                Ok(None)
            }
        }
    }
}

#[cfg(test)]
mod tests;
