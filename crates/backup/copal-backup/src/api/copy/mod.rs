//! Copies of snapshots in another repository.
//!
//! Design: docs/design/backup.md#copies BAK-30
//!
//! A [`CopyPlan`] lists the snapshots to copy, oldest first. A [`SnapshotCopier`] opens the disks of each in the source
//! repository, as an export does, and backs them up in the target repository. The manifest of a copy names its origin.
//! - [`plan`]: which snapshots the target lacks, and which are older than its newest ones.
//! - [`disk`]: a disk of a snapshot as the source of a backup, and its difference from an older snapshot.
//!
//! Not here: backups (`backup`), reading of disks (`restore::serve`), the command (`copal`).

mod disk;
mod failure;
mod plan;

pub use failure::{CopyFailure, CopySide, FailureScope};
pub use plan::{CopyChoice, CopyPlan};

use crate::api::repository::Repository;
use crate::keys::role::Role;
use crate::request::error::{Error, Result};
use crate::request::open_session::Holder;
use crate::request::progress::{CancelFlag, Progress};
use crate::request::*;
use crate::restore::serve::{AlwaysOpen, Lender, ServeCache, ServedDisk, serve};
use crate::snapshot::manifest::Manifest;
use disk::{SnapshotSource, SourceErrors, changed_extents};
use std::collections::HashSet;
use std::sync::Arc;

/// Memory of a copy, and its holder in the target repository.
#[derive(Clone, Debug)]
pub struct CopyOptions {
    /// Memory for reading and backing up, in bytes.
    pub memory_bytes: u64,
    /// The holder of the sessions of the target, see [`BackupRequest::holder`].
    pub holder: Holder,
}

/// Share of the memory for decoded chunks of the source repository.
const CACHE_SHARE: u64 = 3;

/// Copies snapshots of one repository into another one.
pub struct SnapshotCopier<'a> {
    source: &'a Arc<Repository>,
    target: &'a Repository,
    lender: Arc<dyn Lender>,
    cache: Arc<ServeCache>,
    options: CopyOptions,
    /// The copies that this copier has made.
    made: HashSet<SnapshotId>,
}

/// A finished copy.
#[derive(Clone, Debug)]
pub struct FinishedCopy {
    /// The backup that made it.
    pub summary: BackupSummary,
    /// The snapshot that it is a copy of.
    pub origin: CopyOrigin,
    /// The source is held, and this handle may not hold the copy.
    pub lacks_hold: bool,
}

/// Result of copying one snapshot.
#[derive(Clone, Debug)]
pub enum CopyOutcome {
    /// The copy was made.
    Copied(Box<FinishedCopy>),
    /// Another process made the copy meanwhile.
    Present,
}

impl<'a> SnapshotCopier<'a> {
    /// A copier from `source` to `target`.
    /// # Errors
    /// `Invalid`: both are the same repository.
    pub fn new(
        source: &'a Arc<Repository>,
        target: &'a Repository,
        options: CopyOptions,
    ) -> Result<SnapshotCopier<'a>> {
        if source.info().domain == target.info().domain {
            let reason = "the repository to copy to is the one to copy from; name another one".to_owned();
            return Err(Error::Invalid { reason });
        }
        Ok(SnapshotCopier {
            source,
            target,
            lender: Arc::new(AlwaysOpen(Arc::clone(source))),
            cache: Arc::new(ServeCache::new(options.memory_bytes / CACHE_SHARE)),
            options,
            made: HashSet::new(),
        })
    }

    /// Copies a snapshot of the plan. On a failure nothing is published; the next try uses the chunks that were stored.
    /// # Errors
    /// The side that failed, and its error.
    pub fn copy(
        &mut self,
        plan: &CopyPlan,
        snapshot: &Snapshot,
        progress: &dyn Progress,
        cancel: &CancelFlag,
    ) -> std::result::Result<CopyOutcome, CopyFailure> {
        let newest = self.newest(&snapshot.vm.name).map_err(CopyFailure::of_target)?;
        let newest_origin = newest.as_ref().and_then(|newest| newest.origin);
        if newest_origin.is_some_and(|origin| origin.snapshot == snapshot.first_id()) {
            return Ok(CopyOutcome::Present);
        }
        let errors = SourceErrors::default();
        let request =
            self.request(plan, snapshot, newest, (&errors, cancel)).map_err(CopyFailure::of_source)?;
        let origin = origin_of(self.source, snapshot);
        let summary = self.target.backup(request, progress, cancel).map_err(|error| match errors.take() {
            Some(cause) if matches!(error, Error::Source { .. }) => CopyFailure::of_source(cause),
            _ => CopyFailure::of_target(error),
        })?;
        self.made.insert(summary.snapshot);
        let is_held = snapshot.held_until_ms > 0;
        let may_hold = self.may_hold();
        if is_held && may_hold {
            let held = self.target.hold(&[summary.snapshot], snapshot.held_until_ms);
            held.map_err(CopyFailure::of_target)?;
        }
        let lacks_hold = is_held && !may_hold;
        Ok(CopyOutcome::Copied(Box::new(FinishedCopy { summary, origin, lacks_hold })))
    }

    /// Holds copies that were made before for as long as their sources are held. Returns the number of copies that are
    /// held longer now.
    /// # Errors
    /// The target failed.
    pub fn hold_present(&self, plan: &CopyPlan) -> std::result::Result<u64, CopyFailure> {
        if !self.may_hold() {
            return Ok(0);
        }
        for (snapshot, until_ms) in plan.missing_holds() {
            self.target.hold(&[*snapshot], *until_ms).map_err(CopyFailure::of_target)?;
        }
        Ok(plan.missing_holds().len() as u64)
    }

    fn may_hold(&self) -> bool {
        self.target.roles().has(Role::Delete)
    }

    /// The manifest of the newest readable snapshot of a VM of the target.
    fn newest(&self, vm: &str) -> Result<Option<Manifest>> {
        let parts = self.target.parts();
        let vm = match parts.directory().find(vm) {
            Err(Error::NotFound { .. }) => return Ok(None),
            vm => vm?.uuid,
        };
        for published in parts.vm_state(vm)?.published.iter().rev() {
            match parts.manifest(vm, published) {
                Err(error) if error.is_corruption() => {}
                manifest => return manifest.map(Some),
            }
        }
        Ok(None)
    }

    /// The backup that copies a snapshot behind `newest`.
    /// # Errors
    /// Errors of the source repository.
    fn request(
        &self,
        plan: &CopyPlan,
        snapshot: &Snapshot,
        newest: Option<Manifest>,
        (errors, cancel): (&SourceErrors, &CancelFlag),
    ) -> Result<BackupRequest> {
        let disks = serve(&self.lender, &self.cache, snapshot.id)?;
        let follows = newest.as_ref().map(|newest| newest.snapshot);
        let known = newest.map(|newest| self.known(plan, snapshot, &newest));
        let disks = disks.into_iter().map(|served| {
            let (changed, no_changes) = match &known {
                None => (None, None),
                Some(Err(reason)) => (None, Some(reason.clone())),
                Some(Ok((base, older))) => match older.iter().find(|older| older.name() == served.name()) {
                    Some(older) => (changed_extents(&served, older, *base, cancel)?, None),
                    None => (None, None),
                },
            };
            let listed = snapshot.disks.iter().find(|disk| disk.name == served.name());
            let doubts = snapshot.doubts.iter().filter(|doubt| doubt.disk == served.name());
            let doubts = doubts.filter(|_| snapshot.is_doubtful());
            let name = served.name().to_owned();
            Ok(DiskSource {
                serial: listed.map(|disk| disk.serial.clone()).unwrap_or_default(),
                changed,
                no_changes,
                content: copal_disk::source::ContentEvidence::Decoded,
                doubts: doubts.map(|doubt| (doubt.kind, doubt.text.clone())).collect(),
                ..DiskSource::new(name, Box::new(SnapshotSource::new(served, errors)))
            })
        });
        let mut request = BackupRequest::new(snapshot.vm.name.clone(), disks.collect::<Result<_>>()?);
        request.tags.clone_from(&snapshot.tags);
        request.description.clone_from(&snapshot.description);
        request.memory_bytes = self.options.memory_bytes - self.options.memory_bytes / CACHE_SHARE;
        request.holder = self.options.holder.clone();
        request.copied = Some(CopiedSnapshot { origin: origin_of(self.source, snapshot), follows });
        // This process has just made the base.
        if follows.is_some_and(|follows| self.made.contains(&follows)) {
            request.spot_check_millionths = Some(0);
        }
        Ok(request)
    }

    /// The snapshot of the source that the newest one of the target is a copy of, opened (BAK-3); otherwise why there is
    /// none.
    fn known(&self, plan: &CopyPlan, snapshot: &Snapshot, newest: &Manifest) -> KnownBase {
        let Some(origin) = newest.origin else {
            return Err("the newest snapshot of the VM is no copy, so the changes since are not known".into());
        };
        let Some(base) = plan.in_source(&snapshot.vm, origin.snapshot) else {
            return Err(format!(
                "the newest snapshot of the VM is a copy of {}, which the repository to copy from has no more",
                origin.snapshot.short()
            ));
        };
        match serve(&self.lender, &self.cache, base) {
            Ok(disks) => Ok((newest.snapshot, disks)),
            Err(error) => Err(format!("the snapshot that was copied before cannot be compared: {error}")),
        }
    }
}

/// The newest snapshot of the target, and the disks of the snapshot of the source that it is a copy of; otherwise a
/// reason.
type KnownBase = std::result::Result<(SnapshotId, Vec<Arc<ServedDisk>>), String>;

/// Where a backup made a snapshot.
fn origin_of(source: &Repository, snapshot: &Snapshot) -> CopyOrigin {
    snapshot.copied_from.unwrap_or(CopyOrigin {
        repository: source.info().domain,
        snapshot: snapshot.id,
        created_ms: snapshot.created_ms,
    })
}
