//! Selection of the newest readable state of a store, and the check of its length.
//!
//! Not here: recovery of a state (`recovery`).

use super::StoreBackend;
use crate::{
    OlderState, OpenOptions, StoreOpenError,
    flaw::BrokenRule,
    format::superblock::Superblock,
    recovery::{self, FoundSegments, RecoveredStore, RecoverySource},
};
use copal_device::Device;

/// A store is not opened if less than one such part of it is left.
const CUT_PARTS_MAX: u64 = 4;

/// Length of the store according to its metadata, and length of the device.
pub(super) struct StoreLengths {
    pub(super) store_bytes: u64,
    pub(super) device_bytes: u64,
}

impl StoreLengths {
    pub(super) fn truncated(&self) -> StoreOpenError {
        StoreOpenError::Truncated { store_bytes: self.store_bytes, device_bytes: self.device_bytes }
    }

    /// Bytes that were cut off the end of the store.
    fn cut_bytes(&self) -> u64 {
        self.store_bytes.saturating_sub(self.device_bytes)
    }
}

/// Reads the state on `device`, decides which records count, and checks that all owned pages are present.
/// Writes nothing.
pub(super) fn find(
    backend: &StoreBackend,
    device: &dyn Device,
    options: &OpenOptions,
    broken: BrokenRule,
) -> Result<(RecoveredStore, StoreLengths), StoreOpenError> {
    let (superblock, stale_copies) = recovery::newest_superblock(device)?;
    backend.fits(superblock.backend)?;
    let source = RecoverySource {
        device,
        page_bytes: superblock.page_bytes as usize,
        salvage: options.salvage && options.read_only,
        broken,
    };
    let journal_end = superblock.journal_at + superblock.journal_pages;
    let mut recovered = newest_or_older(&source, superblock, stale_copies, options)?;
    let lengths = lengths(&source, &recovered)?;
    if lengths.cut_bytes() > 0 {
        // The checkpoint's copies need no check, since the checkpoint was read. Streams need none: their ends
        // were found, or this point is not reached.
        // Records may have gone on in a segment that is named and was cut off.
        let segments_end = recovered.segments.as_ref().map_or(0, FoundSegments::end);
        let segments_end = segments_end * u64::from(recovered.tables.segment_pages);
        let end = recovered.tables.objects_end().max(journal_end).max(segments_end);
        if end * source.page_bytes as u64 > lengths.device_bytes && !source.salvage {
            return Err(lengths.truncated());
        }
        recovered.report.cut_bytes = lengths.cut_bytes();
    }
    Ok((recovered, lengths))
}

/// The state that `superblock`, the newest, names. For salvage, an older one if it cannot be read.
fn newest_or_older(
    source: &RecoverySource<'_>,
    superblock: Superblock,
    stale_copies: Vec<usize>,
    options: &OpenOptions,
) -> Result<RecoveredStore, StoreOpenError> {
    let lengths =
        StoreLengths { store_bytes: superblock.size_bytes, device_bytes: source.device.geometry().size };
    let accept_tail_loss = options.accept_tail_loss || source.salvage;
    let mut recovered = recovery::recover(source, superblock, stale_copies, accept_tail_loss);
    let is_passing =
        |error: &StoreOpenError| matches!(error, StoreOpenError::Device(error) if error.is_passing());
    if source.salvage && recovered.as_ref().is_err_and(|error| !is_passing(error)) {
        recovered = recover_older(source)?.map_or(recovered, Ok);
    }
    recovered.map_err(|error| {
        if lengths.cut_bytes() > 0 && !matches!(error, StoreOpenError::TailLoss { .. }) && !is_passing(&error)
        {
            lengths.truncated()
        } else {
            error
        }
    })
}

/// An older state that a superblock still names. Its tables and its part of the journal may not have been
/// overwritten yet. The report says how much older it is.
fn recover_older(source: &RecoverySource<'_>) -> Result<Option<RecoveredStore>, StoreOpenError> {
    let mut superblocks = recovery::older_superblocks(source.device)?.into_iter();
    let Some(newest) = superblocks.next() else {
        return Ok(None);
    };
    let older = superblocks.find_map(|superblock| {
        let recovered = recovery::recover(source, superblock, Vec::new(), true);
        recovered.inspect_err(|error| tracing::warn!(%error, "an older state cannot be read either")).ok()
    });
    let Some(mut older) = older else { return Ok(None) };
    older.report.older_state = Some(OlderState {
        generation: older.superblock.generation,
        newest: newest.generation,
        missing_commits: newest.checkpoint_lsn.saturating_sub(older.last_lsn),
    });
    Ok(Some(older))
}

/// The lengths, if they are plausible together: memory for derived structures depends on the store's length.
fn lengths(source: &RecoverySource<'_>, recovered: &RecoveredStore) -> Result<StoreLengths, StoreOpenError> {
    let Some(store_bytes) = recovered.tables.size_bytes() else {
        let what =
            format!("its metadata claims {} pages of {} bytes", recovered.tables.pages, source.page_bytes);
        return Err(StoreOpenError::Damaged { what });
    };
    let lengths = StoreLengths { store_bytes, device_bytes: source.device.geometry().size };
    if lengths.device_bytes < store_bytes / CUT_PARTS_MAX {
        return Err(lengths.truncated());
    }
    Ok(lengths)
}
