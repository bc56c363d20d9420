//! An export of an NBD server: a running guest's snapshot, a storage appliance, `qemu-nbd`.
//!
//! Holes come from the metadata context `base:allocation`; changed extents from a dirty bitmap
//! (`qemu:dirty-bitmap:<name>`), when the server exports one.
//! Not here: starting a server (`qcow2`).

use super::{ChangeKind, ChangedExtent, ChangedExtents, Extent, ExtentKind, Source, SourceError};
use copal_nbd::{BASE_ALLOCATION, Client, ConnectOptions, NbdError, STATE_DIRTY, STATE_ZERO, Uri};
use parking_lot::Mutex;
use std::time::Duration;

/// How long the server may take to say its size once more.
const SECOND_LOOK: Duration = Duration::from_secs(10);
/// What one block status request asks about, in bytes.
const MAP_BYTES: u64 = 1 << 30;

/// An export of an NBD server.
#[derive(Debug)]
pub struct NbdSource {
    what: String,
    uri: Uri,
    client: Client,
    has_map: bool,
    /// The last block status reply: ascending, without gaps.
    known: Mutex<Vec<Extent>>,
}

fn failed(what: &str, error: &NbdError) -> SourceError {
    SourceError::Unusable {
        reason: format!("{what}: {error}"),
    }
}

/// Name of the metadata context of a dirty bitmap.
fn bitmap_context(name: &str) -> String {
    format!("qemu:dirty-bitmap:{name}")
}

impl NbdSource {
    /// Connects to an export; asks for the dirty bitmap too when one is named.
    ///
    /// # Errors
    /// The address is wrong, nobody listens, the server refuses, or it has no such bitmap.
    pub fn connect(uri: &str, bitmap: Option<&str>) -> Result<NbdSource, SourceError> {
        let parsed = Uri::parse(uri).map_err(|error| SourceError::Unusable {
            reason: error.to_string(),
        })?;
        NbdSource::connect_to(uri, &parsed, bitmap)
    }

    /// As [`NbdSource::connect`], for an address already understood; `what` names it in messages.
    pub(super) fn connect_to(what: &str, uri: &Uri, bitmap: Option<&str>) -> Result<NbdSource, SourceError> {
        let mut options = ConnectOptions::default();
        options.contexts.extend(bitmap.map(bitmap_context));
        let client = Client::connect(uri, &options).map_err(|error| failed(what, &error))?;
        let has = |name: &str| client.contexts().iter().any(|context| context.name == name);
        if let Some(name) = bitmap
            && !has(&bitmap_context(name))
        {
            return Err(SourceError::Unusable {
                reason: format!(
                    "{what} exports no dirty bitmap {name:?}; make one with `qemu-img bitmap --add` or \
                     block-dirty-bitmap-add, or leave --bitmap out for a full read"
                ),
            });
        }
        let has_map = has(BASE_ALLOCATION);
        Ok(NbdSource {
            what: what.to_owned(),
            uri: uri.clone(),
            client,
            has_map,
            known: Mutex::new(Vec::new()),
        })
    }

    /// What the dirty bitmap says has changed, relative to the newest snapshot unless `base` is given.
    ///
    /// # Errors
    /// The bitmap was not asked for at `connect`, or the connection broke.
    pub fn changed(&self, bitmap: &str, base: Option<String>) -> Result<ChangedExtents, SourceError> {
        let size_bytes = self.client.size();
        let mut extents = Vec::new();
        let map = self.client.map(&bitmap_context(bitmap), 0..size_bytes);
        for extent in map.map_err(|error| failed(&self.what, &error))? {
            let extent = extent.map_err(|error| failed(&self.what, &error))?;
            if extent.flags & STATE_DIRTY != 0 {
                let (offset, length) = (extent.offset, extent.len);
                extents.push(ChangedExtent {
                    offset,
                    length,
                    kind: ChangeKind::Dirty,
                });
            }
        }
        Ok(ChangedExtents {
            size_bytes,
            base,
            extents,
        })
    }

    /// Reads the last block: an export that lost its end, or whose server is gone, fails here although nothing but holes was
    /// asked for.
    pub(super) fn read_end(&self) -> Result<(), SourceError> {
        let size = self.client.size();
        if size > 0 {
            self.read_at(size - 1, &mut [0])?;
        }
        Ok(())
    }

    /// Asks the server what lies at `offset` and remembers the whole answer.
    fn ask(&self, offset: u64, known: &mut Vec<Extent>) -> Result<(), NbdError> {
        let end = self.client.size().min(offset + MAP_BYTES);
        known.clear();
        for extent in self.client.map(BASE_ALLOCATION, offset..end)? {
            let extent = extent?;
            let zero = extent.flags & STATE_ZERO != 0;
            let kind = if zero { ExtentKind::Zero } else { ExtentKind::Data };
            known.push(Extent {
                offset: extent.offset,
                length: extent.len,
                kind,
            });
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
            return Ok(Extent {
                offset,
                length: size - offset,
                kind: ExtentKind::Data,
            });
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
        self.ask(offset - offset % block, &mut known)
            .map_err(|error| failed(&self.what, &error))?;
        find(&known).ok_or_else(|| SourceError::Unusable {
            reason: format!(
                "{}: the server does not say what lies at byte {offset}",
                self.what
            ),
        })
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize, SourceError> {
        let size = self.client.size();
        let len = buf
            .len()
            .min(usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX));
        if len == 0 {
            return Ok(0);
        }
        let buf = &mut buf[..len];
        let block = u64::from(self.client.export().block_bytes);
        let (start, end) = (
            offset - offset % block,
            (offset + len as u64).next_multiple_of(block),
        );
        let outcome = if (start, end) == (offset, offset + len as u64) {
            self.client.read(offset, buf)
        } else {
            // The server reads whole blocks only.
            let mut whole = vec![0; (end - start) as usize];
            let outcome = self.client.read(start, &mut whole);
            buf.copy_from_slice(&whole[(offset - start) as usize..][..len]);
            outcome
        };
        outcome.map_err(|error| failed(&self.what, &error))?;
        Ok(len)
    }
    /// The size of an export is told once per connection, so a new one is made, after the old one is closed: many servers
    /// take one client at a time. One that has ended with its client cannot be asked.
    fn confirm(&self) -> Result<Option<String>, SourceError> {
        self.read_end()?;
        self.client.hang_up();
        let options = ConnectOptions {
            contexts: Vec::new(),
            timeout: SECOND_LOOK,
        };
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
