//! NBD source: an export of a running guest's snapshot, of a storage appliance, or of `qemu-nbd`.
//!
//! Holes come from the metadata context `base:allocation`. Changed extents come from a dirty bitmap
//! (`qemu:dirty-bitmap:<name>`), if the server exports one.
//!
//! Invariant: on the disk of a running VM, no two requests in flight overlap ([`ReadMode`]): QEMU before
//! 7.2.15, 9.0.4 and 9.1.1 aborts on them.
//! Not here: starting a server (`qcow2`), testing which read mode a QEMU needs (`copal-live`).

use super::{BitmapState, ChangedExtents, Extent, ExtentKind, Source, SourceError, dirty_runs::DirtyRuns};
use copal_nbd::{BASE_ALLOCATION, Client, ConnectOptions, NbdError, STATE_DIRTY, STATE_ZERO, Uri};
use parking_lot::Mutex;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// Timeout of the second connection, which asks for the size again.
const RECHECK_TIMEOUT: Duration = Duration::from_secs(10);
/// Most bytes of the disk that one map request covers.
const MAP_BYTES: u64 = 1 << 30;
/// Maximum number of extents that are remembered of one reply: 1.5 MiB.
const MAP_EXTENTS: usize = 1 << 16;
/// Maximum number of extents in one reply of the server: 8 MiB on the wire.
const MAP_REPLY_EXTENTS: usize = 1 << 20;
/// A shorter hole is read as data: the read takes no longer than the extra map entry.
const SHORT_HOLE_BYTES: u64 = 4096;

/// The error number of a disk that cannot be read.
const EIO: u32 = 5;
/// Smallest cluster of QEMU's filter `copy-before-write`. A request within one such cluster is answered from
/// one point in time, also if the filter has larger clusters.
const CLUSTER_BYTES: u32 = 64 << 10;

/// How reads of an export are split into requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadMode {
    /// The export does not change: long reads, and holes from its map.
    #[default]
    Still,
    /// A running VM's disk at a point in time. The QEMU answers requests of any length from that point in
    /// time. As `Still`, but one call at a time.
    PointInTime,
    /// A running VM's disk, exported by a QEMU whose behaviour is unknown. Before 8.0, QEMU reads from the
    /// present disk if a request begins in a copied cluster and ends past it. It also reports the holes of
    /// the present disk. So the map is never requested, and each read stays within one cluster of 64 KiB.
    /// Many reads are in flight; a hole costs 12 bytes on the wire.
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
    /// Held by a call with requests in flight, in the modes in which no two may overlap.
    turn: Mutex<()>,
    /// The server has refused a request.
    is_refused: Arc<AtomicBool>,
    /// The extents of the last block status reply: ascending, without gaps.
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
    /// Connects to an export and negotiates dirty bitmaps.
    ///
    /// # Errors
    /// The address is malformed, no server listens there, or the server refuses. A missing bitmap is no
    /// error, see [`NbdSource::has_bitmap`].
    pub fn connect(uri: &str, bitmaps: &[&str], mode: ReadMode) -> Result<NbdSource, SourceError> {
        let parsed = Uri::parse(uri).map_err(|error| SourceError::Unusable { reason: error.to_string() })?;
        NbdSource::connect_to(uri, &parsed, bitmaps, mode)
    }

    /// As [`NbdSource::connect`], for a parsed address; `what` names the source in messages.
    ///
    /// # Errors
    /// As [`NbdSource::connect`], except for the address.
    pub fn connect_to(
        what: &str,
        uri: &Uri,
        bitmaps: &[&str],
        mode: ReadMode,
    ) -> Result<NbdSource, SourceError> {
        let mut options = ConnectOptions::default();
        if mode == ReadMode::Clusters {
            // A server looks up every negotiated context, even for a request about one of them.
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

    /// Flag that is set once the server refuses a read without an I/O error. QEMU does that for a point in
    /// time that is broken.
    pub fn refusals(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.is_refused)
    }

    /// Whether a bitmap that `connect` asked for can be mapped.
    pub fn has_bitmap(&self, name: &str) -> bool {
        let wanted = bitmap_context(name);
        self.client.contexts().iter().any(|context| context.name == wanted)
    }

    /// The extents that are dirty in a bitmap.
    ///
    /// # Errors
    /// The bitmap is missing, or the connection broke.
    pub fn changed(&self, bitmap: &str) -> Result<ChangedExtents, SourceError> {
        let size_bytes = self.client.size();
        let mut runs = DirtyRuns::default();
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
            bitmap: Some(BitmapState { name: bitmap.to_owned(), dirty_bytes: runs.bytes }),
            extents: runs.extents(),
        })
    }

    /// Reads the last block. It fails if the export was cut or its server has ended, even if a backup has
    /// asked for holes only.
    pub(super) fn read_end(&self) -> Result<(), SourceError> {
        let size = self.client.size();
        if size > 0 {
            self.read_at(size - 1, &mut [0])?;
        }
        Ok(())
    }

    /// Runs `work` with no other request in flight, if the mode requires that.
    fn exclusive<T>(&self, work: impl FnOnce() -> Result<T, NbdError>) -> Result<T, SourceError> {
        let turn = (self.mode != ReadMode::Still).then(|| self.turn.lock());
        let outcome = work();
        drop(turn);
        if matches!(outcome, Err(NbdError::Request { errno, .. }) if errno != EIO) {
            self.is_refused.store(true, Ordering::Release);
        }
        outcome.map_err(|error| failed(&self.what, &error))
    }

    fn read_aligned(&self, offset: u64, buf: &mut [u8]) -> Result<(), SourceError> {
        self.exclusive(|| match self.mode {
            ReadMode::Still | ReadMode::PointInTime => self.client.read(offset, buf),
            ReadMode::Clusters => self.client.read_within(offset, buf, CLUSTER_BYTES),
        })
    }

    /// Requests the map at `offset` and remembers the reply within the bounds.
    fn request_map(&self, offset: u64, known: &mut Vec<Extent>) -> Result<(), NbdError> {
        let end = self.client.size().min(offset + MAP_BYTES);
        known.clear();
        for extent in self.client.map(BASE_ALLOCATION, offset..end)?.take(MAP_REPLY_EXTENTS) {
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
        self.exclusive(|| self.request_map(offset - offset % block, &mut known))?;
        find(&known).ok_or_else(|| SourceError::Unusable {
            reason: format!("{}: the server does not report the extent at byte {offset}", self.what),
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
    /// A connection learns the size once, so a new connection is made. The old one is closed before, since
    /// many servers accept one client at a time. A server that ends with its client cannot be asked again.
    fn confirm(&self) -> Result<Option<String>, SourceError> {
        self.read_end()?;
        self.client.disconnect();
        let options =
            ConnectOptions { contexts: Vec::new(), timeout: RECHECK_TIMEOUT, ..ConnectOptions::default() };
        match Client::connect(&self.uri, &options) {
            Ok(again) if again.size() == self.client.size() => Ok(None),
            Ok(again) => Err(SourceError::Changed {
                what: self.what.clone(),
                how: format!("went from {} to {} bytes", self.client.size(), again.size()),
            }),
            Err(error) => {
                tracing::debug!(%error, export = self.what, "size not checked again");
                Ok(None)
            }
        }
    }
}

#[cfg(test)]
mod tests;
