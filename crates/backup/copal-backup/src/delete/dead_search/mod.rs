//! Deletion by merged summary vectors: finds the frames that only forgotten snapshots of a VM refer to,
//! without reading recipes of snapshots that stay.
//!
//! Paper:  low-profile-dedup §4 (fast approximate deletion with summary comparison)
//! Invariants
//! - A frame that a snapshot that stays refers to is never reported as dead: the vectors of all these
//!   snapshots are merged, with one geometry. Otherwise there is no result, and the exact mark decides
//!   (BAK-18).
//! - Nothing is removed here (`prune`).
//!
//! Memory: one block of the merged vector, and a bit per frame of packs with dead ones.

mod candidates;
mod merged;

use crate::catalog::vm::PublishedSnapshot;
use crate::delete::references::is_private;
use crate::index::dead_frames::DeadFrames;
use crate::request::error::Result;
use crate::request::progress::CancelFlag;
use crate::sessions::parts::RepositoryParts;
use crate::snapshot::manifest::Manifest;
use crate::snapshot::recipe::FrameRef;
use crate::steps::removal::neighbours;
use candidates::for_each_candidate;
use merged::MergedVectors;
pub(crate) use merged::VectorGap;
use uuid::Uuid;

/// Counts of the references of forgotten snapshots.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CandidateCounts {
    /// References that no neighbour has in the same place: those in `dead` and in `kept`.
    pub(crate) candidates: u64,
    /// References to dead frames.
    pub(crate) dead: u64,
    /// Stored bytes of the frames that were not dead before.
    pub(crate) dead_bytes: u64,
    /// References to frames that another snapshot refers to, or seems to.
    pub(crate) kept: u64,
}

/// Adds to `dead` the frames that only the snapshots `gone` refer to; `stay` are all others of the VM.
/// The inner error: only a mark can decide.
/// # Errors
/// `Cancelled`; errors of the store that are not damage.
pub(crate) fn find_dead(
    parts: &RepositoryParts,
    vm: Uuid,
    gone: &[PublishedSnapshot],
    stay: &[PublishedSnapshot],
    dead: &mut DeadFrames,
    cancel: &CancelFlag,
) -> Result<std::result::Result<CandidateCounts, VectorGap>> {
    let mut merged = match MergedVectors::of(parts, vm, stay)? {
        Ok(merged) => merged,
        Err(gap) => return Ok(Err(gap)),
    };
    let mut search = DeadFrameSearch { parts, dead, found: CandidateCounts::default() };
    let mut manifests = Vec::new();
    for one in gone {
        let Some(manifest) = readable(parts.manifest(vm, one))? else {
            return Ok(Err(VectorGap::Unreadable));
        };
        let beside = neighbours(one, stay).map(|published| readable(parts.manifest(vm, published)));
        let beside: Vec<Manifest> = beside.filter_map(Result::transpose).collect::<Result<_>>()?;
        manifests.push((manifest, beside));
    }
    for number in 0..merged.blocks() {
        if !merged.load(number)? {
            return Ok(Err(VectorGap::Unreadable));
        }
        let before = search.found.dead_bytes;
        for (manifest, beside) in &manifests {
            let walked = for_each_candidate(parts, manifest, beside, cancel, |reference| {
                search.judge(&merged, number, reference)
            });
            match walked {
                Err(error) if error.is_corruption() => return Ok(Err(VectorGap::Unreadable)),
                walked => walked?,
            }
        }
        // Estimate of the leak: frames of this block are kept by chance at the error rate.
        let leak = (search.found.dead_bytes - before) as f64 * merged.error_rate();
        search.dead.leak_bytes = search.dead.leak_bytes.saturating_add(leak as u64);
    }
    Ok(Ok(search.found))
}

/// Turns damage into `None`.
fn readable<T>(read: Result<T>) -> Result<Option<T>> {
    match read {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_corruption() => Ok(None),
        Err(error) => Err(error),
    }
}

/// A search for dead frames.
struct DeadFrameSearch<'a> {
    parts: &'a RepositoryParts,
    dead: &'a mut DeadFrames,
    found: CandidateCounts,
}

impl DeadFrameSearch<'_> {
    /// Decides about a candidate, if it belongs to block `number`.
    fn judge(&mut self, merged: &MergedVectors<'_>, number: u32, reference: &FrameRef) -> Result<()> {
        let id = reference.id.short();
        if !is_private(reference) || merged.block_of(&id) != number {
            return Ok(());
        }
        if merged.has(&id) {
            self.found.candidates += 1;
            self.found.kept += 1;
            return Ok(());
        }
        let located = match self.parts.pack_store().locate(reference) {
            Ok(located) => located,
            // The frame is lost already.
            Err(error) if error.is_corruption() => return Ok(()),
            Err(error) => return Err(error),
        };
        let frames = located.footer.rows.len() as u32;
        if located.location.home.vm().is_none() {
            return Ok(());
        }
        self.found.candidates += 1;
        self.found.dead += 1;
        // Another reference may lead to the same frame.
        if self.dead.add(located.location, frames) {
            self.found.dead_bytes += u64::from(located.row().stored);
        }
        Ok(())
    }
}
