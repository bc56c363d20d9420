//! Dump: shows the structures of a store in readable form, item by item.
//!
//! [`StoreDump`] works on the device alone, so it also shows a store that does not open. Objects and streams need
//! the tables, so they are shown of an open store; one that was opened for salvage reads past damage.
//!
//! Formats: docs/formats/object-superblock.md, object-checkpoint.md, object-record.md, object-segment.md,
//! object-frame.md
//! Design: docs/design/object.md#tools
//! Invariants
//! - Reads only. Memory: that of an opening.
//! - An unreadable part is an item of kind `damage`, never a silent end.
//!
//! Not here: checking (`fsck`), wording of the command line.

pub(crate) mod contents;
pub(crate) mod item;
mod journal;

use crate::{
    StoreOpenError,
    backend::hostfs::HostFiles,
    check::dump::item::{DumpItem, DumpSink},
    flaw::BrokenRule,
    format::superblock::{BACKEND_HOSTFS, BACKEND_LOG, COPIES, Superblock},
    interface::BackendKind,
    recovery::{self, ChainCopies, FoundCheckpoint, FoundCopy, RecoverySource},
    tables::{TableEntry, snapshot},
};
use copal_device::{Device, DeviceError};
use std::{path::Path, sync::Arc};

/// A store that is not open, to be shown.
pub struct StoreDump {
    device: Arc<dyn Device>,
}

impl StoreDump {
    /// The store on a device.
    #[must_use]
    pub fn on(device: Arc<dyn Device>) -> StoreDump {
        StoreDump { device }
    }

    /// The store of files in `dir`.
    /// # Errors
    /// `Open`: the directory does not exist, holds no store, or another process has it open.
    pub fn in_dir(dir: &Path) -> Result<StoreDump, StoreOpenError> {
        Ok(StoreDump { device: HostFiles::open(dir, true)? })
    }

    /// Shows the superblock copies, the checkpoint that the newest one names, and the records behind it with their
    /// operations. Blocks on the device.
    /// # Errors
    /// No superblock can be read: `NotAStore`, `Damaged`, `Version`. `Device`: the system cannot read at this time.
    /// Other damage is shown.
    pub fn outline(&self, sink: &mut DumpSink<'_>) -> Result<(), StoreOpenError> {
        let device = self.device.as_ref();
        for (copy, found) in recovery::read_superblocks(device)?.iter().enumerate() {
            if !sink(of_copy(copy, found)) {
                return Ok(());
            }
        }
        let (superblock, _) = recovery::newest_superblock(device)?;
        let page_bytes = superblock.page_bytes as usize;
        let source = RecoverySource { device, page_bytes, salvage: true, broken: BrokenRule::default() };
        let position = match recovery::read_checkpoint(&source, &superblock, ChainCopies::Both) {
            Ok(found) => {
                let position = found.position.clone();
                let items = std::iter::once(of_checkpoint(&superblock, &found))
                    .chain(found.damaged.iter().map(|run| damaged_copy(run.at)));
                if !items.into_iter().all(&mut *sink) {
                    return Ok(());
                }
                position
            }
            Err(error) => {
                sink(DumpItem::damage(0, &passed(error)?));
                return Ok(());
            }
        };
        match journal::dump(&source, &superblock, &position, sink) {
            Ok(()) => Ok(()),
            Err(error) => {
                sink(DumpItem::damage(0, &passed(error)?));
                Ok(())
            }
        }
    }
}

/// The error, unless it says nothing about the bytes.
fn passed(error: StoreOpenError) -> Result<StoreOpenError, StoreOpenError> {
    match error {
        StoreOpenError::Device(error) if error.is_passing() => Err(StoreOpenError::Device(error)),
        error => Ok(error),
    }
}

/// As [`passed`], for an error of the device.
fn passed_read(error: DeviceError) -> Result<DeviceError, DeviceError> {
    if error.is_passing() { Err(error) } else { Ok(error) }
}

fn damaged_copy(page: u64) -> DumpItem {
    DumpItem::damage(0, &"a copy of a page of the checkpoint is damaged").number("page", page)
}

fn of_copy(copy: usize, found: &FoundCopy) -> DumpItem {
    let item = DumpItem::new(0, "superblock").number("copy", copy as u64).number("at", COPIES[copy]);
    match found {
        FoundCopy::Absent => item.text("damage", "its place lies behind the end of the device"),
        FoundCopy::Unreadable(error) => item.text("damage", error.to_string()),
        FoundCopy::Read(Err(error)) => item.text("damage", error.to_string()),
        FoundCopy::Read(Ok(superblock)) => of_superblock(item, superblock),
    }
}

fn of_superblock(item: DumpItem, superblock: &Superblock) -> DumpItem {
    let backend = match superblock.backend {
        BACKEND_LOG => BackendKind::Log,
        BACKEND_HOSTFS => BackendKind::Hostfs,
        _ => BackendKind::Cow,
    };
    item.number("generation", superblock.generation)
        .text("uuid", format!("{:032x}", superblock.uuid))
        .text("backend", backend.name())
        .number("size_bytes", superblock.size_bytes)
        .number("page_bytes", superblock.page_bytes)
        .number("logical_block", superblock.logical_block)
        .number("segment_bytes", superblock.segment_bytes)
        .number("journal_page", superblock.journal_at)
        .number("journal_pages", superblock.journal_pages)
        .number("checkpoint_page", superblock.checkpoint_at)
        .number("checkpoint_copy_page", superblock.checkpoint_copy_at)
        .number("checkpoint_lsn", superblock.checkpoint_lsn)
        .text("chain_seed", format!("{:016x}", superblock.chain_seed))
        .text("mount", format!("{:016x}", superblock.mount))
        .number("profile_bytes", superblock.profile.len() as u64)
}

fn of_checkpoint(superblock: &Superblock, found: &FoundCheckpoint) -> DumpItem {
    let entries = &found.tables.entries;
    let streams = entries.iter().filter(|(_, entry)| matches!(entry, TableEntry::Stream(_))).count() as u64;
    let body = snapshot::encoded_len(&found.tables, found.zones.len() as u64, found.hollow.len() as u64);
    let position = &found.position;
    DumpItem::new(0, "checkpoint")
        .number("generation", superblock.generation)
        .number("lsn", position.lsn)
        .number("epoch", position.epoch)
        .number("next_record", position.next_seq)
        .number("journal_head", position.journal_head)
        .number("body_bytes", body)
        .number("chain_pages", found.runs.len() as u64)
        .number("objects", entries.len() - streams)
        .number("streams", streams)
        .number("store_pages", found.tables.pages)
        .number("written_zone_runs", found.zones.len() as u64)
        .number("hollow_runs", found.hollow.len() as u64)
}

impl std::fmt::Debug for StoreDump {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoreDump").finish_non_exhaustive()
    }
}
