//! Appends records about published snapshots: forgotten, held, verified, accepted.

use crate::api::lookup::SnapshotLookup;
use crate::catalog::record::{MAX_LISTED, Record};
use crate::catalog::vm::PublishedSnapshot;
use crate::keys::role::Role;
use crate::request::error::{Error, Result};
use crate::request::{ForgetOptions, ForgetSummary, SnapshotId};
use crate::sessions::parts::RepositoryParts;
use uuid::Uuid;

/// Carries out `Repository::forget_with`.
pub(crate) fn forget_with(
    parts: &RepositoryParts,
    lookup: &SnapshotLookup<'_>,
    snapshots: &[SnapshotId],
    options: &ForgetOptions,
) -> Result<ForgetSummary> {
    parts.roles().require(Role::Delete)?;
    let by_vm = lookup.by_vm(snapshots)?;
    let all = by_vm.iter().flat_map(|(_, published)| published);
    let clock = lookup.clock_for_holds(all.clone().map(|one| one.held_until_ms), options.accept_clock)?;
    if let Some((clock, held)) = clock.and_then(|clock| {
        let held = all.clone().find(|one| clock.holds(one.held_until_ms))?;
        Some((clock, held))
    }) {
        let reason = clock.refusal(&held.snapshot.short(), held.held_until_ms);
        return Err(Error::Denied { reason });
    }
    let mut summary = ForgetSummary::default();
    append_listed(parts, &by_vm, |snapshots| {
        summary.forgotten.extend_from_slice(&snapshots);
        Record::Forget { snapshots }
    })?;
    Ok(summary)
}

/// Carries out `Repository::hold`.
pub(crate) fn hold(
    parts: &RepositoryParts,
    lookup: &SnapshotLookup<'_>,
    snapshots: &[SnapshotId],
    until_ms: u64,
) -> Result<()> {
    parts.roles().require(Role::Delete)?;
    let by_vm = lookup.by_vm(snapshots)?;
    append_listed(parts, &by_vm, |snapshots| Record::Hold { snapshots, until_ms })
}

/// Carries out `Repository::note_verified`.
pub(crate) fn note_verified(
    parts: &RepositoryParts,
    lookup: &SnapshotLookup<'_>,
    snapshot: SnapshotId,
) -> Result<()> {
    parts.roles().require(Role::Delete)?;
    let by_vm = lookup.by_vm(&[snapshot])?;
    append_listed(parts, &by_vm, |snapshots| Record::Verified { snapshots })
}

/// Carries out `Repository::accept`.
pub(crate) fn accept(
    parts: &RepositoryParts,
    lookup: &SnapshotLookup<'_>,
    snapshots: &[SnapshotId],
) -> Result<()> {
    parts.roles().require(Role::Delete)?;
    let by_vm = lookup.by_vm(snapshots)?;
    append_listed(parts, &by_vm, |snapshots| Record::Accepted { snapshots })
}

/// Appends to the log of each VM one record, or several if it has many of the snapshots.
fn append_listed(
    parts: &RepositoryParts,
    by_vm: &[(Uuid, Vec<PublishedSnapshot>)],
    mut record: impl FnMut(Vec<SnapshotId>) -> Record,
) -> Result<()> {
    for (vm, published) in by_vm {
        for listed in published.chunks(MAX_LISTED) {
            let snapshots = listed.iter().map(|published| published.snapshot).collect();
            parts.append(*vm, &record(snapshots))?;
        }
    }
    Ok(())
}
