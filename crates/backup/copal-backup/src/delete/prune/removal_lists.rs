//! Lists the packs that a prune is about to remove, so that the next writer knows them (BAK-15).
//!
//! In the layout solo this is needed only in a cluster, where a removal may take effect late. There the lists
//! are files of their own, by epoch. In a fleet a list is a record of the VM's log, appended behind
//! everything that the prune has read. So either the record stands before the Open record of a backup, which
//! then knows the listed packs, or the prune sees that backup and gives way (BAK-17). It also gives way to
//! another prune of the VM (BAK-23).
//!
//! Not here: the next writer's treatment of a list (`parts`).

use crate::catalog::fields::DeadList;
use crate::catalog::log::{AppendOutcome, LogName};
use crate::catalog::record::{MAX_LISTED, PackPlace, Record};
use crate::catalog::removals::{RemovalList, begin_removal, end_removals};
use crate::request::SnapshotId;
use crate::request::error::{Error, Result};
use crate::rules::broken::{self, Flaw};
use crate::sessions::parts::RepositoryParts;
use crate::steps::removal::{LostAppend, lost};
use uuid::Uuid;

/// Removal lists of one prune.
pub(crate) struct RemovalLists<'a> {
    parts: &'a RepositoryParts,
    place: ListLocation,
}

enum ListLocation {
    /// Files of the catalog.
    Epoch(Vec<RemovalList>),
    /// The log of a VM.
    Log {
        vm: Uuid,
        /// Number of the record behind everything that was read.
        next_number: u64,
        listed: Vec<PackPlace>,
    },
}

impl<'a> RemovalLists<'a> {
    /// Lists in the epoch of the present change.
    pub(super) fn in_epoch(parts: &'a RepositoryParts) -> RemovalLists<'a> {
        RemovalLists { parts, place: ListLocation::Epoch(Vec::new()) }
    }

    /// Lists in the log of a VM that is not being backed up. The marks were made from its state below
    /// `next_number`.
    pub(crate) fn in_log(parts: &'a RepositoryParts, vm: Uuid, next_number: u64) -> RemovalLists<'a> {
        RemovalLists { parts, place: ListLocation::Log { vm, next_number, listed: Vec::new() } }
    }

    /// Lists packs; durable on return.
    /// # Errors
    /// `Busy`: a backup of the VM began, a clean-up has moved chunks, or another prune runs. Errors of the
    /// store. After an error nothing may be removed.
    pub(crate) fn add(&mut self, packs: &[PackPlace]) -> Result<()> {
        if broken::by(Flaw::RemovesUnlisted) {
            return Ok(());
        }
        let parts = self.parts;
        match &mut self.place {
            ListLocation::Epoch(removals) => {
                if parts.pack_store().volumes.store.is_replicated() {
                    for listed in packs.chunks(MAX_LISTED) {
                        let (epoch, number) = (parts.changing_epoch(), removals.len() as u32);
                        removals.push(begin_removal(parts.catalog().files(), epoch, number, listed)?);
                    }
                }
                Ok(())
            }
            ListLocation::Log { vm, next_number, listed } => {
                for packs in packs.chunks(MAX_LISTED) {
                    let record = Record::Removing { packs: packs.to_vec() };
                    *next_number = append_unless_disturbed(parts, *vm, *next_number, &record)?;
                    listed.extend_from_slice(packs);
                }
                Ok(())
            }
        }
    }

    /// In a fleet: records a list of dead frames. From then on no process adds a reference to these frames.
    /// # Errors
    /// As [`RemovalLists::add`].
    pub(super) fn free(&mut self, gone: &[SnapshotId], dead: Option<DeadList>) -> Result<()> {
        let ListLocation::Log { vm, next_number, .. } = &mut self.place else {
            return Ok(());
        };
        let mut listed = gone.chunks(MAX_LISTED);
        let mut snapshots = listed.next().unwrap_or_default().to_vec();
        loop {
            let record = Record::Freed { snapshots, dead };
            *next_number = append_unless_disturbed(self.parts, *vm, *next_number, &record)?;
            match listed.next() {
                Some(more) => snapshots = more.to_vec(),
                None => return Ok(()),
            }
        }
    }

    /// Ends the lists: all listed packs are removed.
    /// # Errors
    /// Errors of the store.
    pub(super) fn end(self) -> Result<()> {
        match self.place {
            ListLocation::Epoch(removals) => end_removals(self.parts.catalog().files(), &removals),
            ListLocation::Log { vm, listed, .. } => listed.chunks(MAX_LISTED).try_for_each(|packs| {
                let packs = packs.to_vec();
                self.parts.append(vm, &Record::Removed { packs })
            }),
        }
    }
}

/// Appends a record to the log of a VM at `next_number`, or behind records that do not affect it. Returns the
/// number of the next record.
/// # Errors
/// `Busy`: one of them affects it. Errors of the store.
fn append_unless_disturbed(
    parts: &RepositoryParts,
    vm: Uuid,
    mut next_number: u64,
    record: &Record,
) -> Result<u64> {
    let (catalog, log) = (parts.catalog(), LogName::Vm(vm));
    loop {
        if let AppendOutcome::Done = catalog.append(log, next_number, record)? {
            return Ok(next_number + 1);
        }
        let since = catalog.tail(log, next_number);
        let since = match catalog.has_checkpoint_behind(log, next_number)? {
            // A checkpoint has replaced the records. A record that it covers has no effect, even if it is
            // this one.
            true => Vec::new(),
            false => since?,
        };
        let behind = since.last().map_or(next_number, |last| last.number + 1);
        match lost(record, &since) {
            LostAppend::Stands => return Ok(behind),
            LostAppend::Again => next_number = behind,
            LostAppend::GiveWay => {
                return Err(Error::Busy { what: format!("VM {}", vm.simple()) });
            }
        }
    }
}
