//! `copal check` and `copal verify`.

mod conclude;
mod progress;

use super::{CommandContext, close, fields::SnapshotFields};
use crate::{
    arguments::{CheckArgs, VerifyArgs},
    coverage::{CoverageReport, range_as_json},
    failure::{Failure, Outcome},
    human,
    output::write_out,
    place::RepositoryPlace,
    repository::RemoteView,
};
use conclude::conclude;
use copal_backup::{CheckReport, ReadData, Snapshot};
use copal_data::CheckOptions;
use copal_node::{Access, Stack, StoreLocation};
use copal_object::RangeCoverage;
use progress::{CheckLayer, CheckProgress};
use serde_json::json;

pub(super) fn check(context: &CommandContext<'_>, check: &CheckArgs) -> Outcome<()> {
    let read_data = match (check.read_data, check.read_data_subset) {
        (true, _) => ReadData::All,
        (false, Some((index, of))) => ReadData::Slice { index, of },
        (false, None) => ReadData::No,
    };
    let common = &context.arguments.common;
    if check.coverage
        && matches!(
            RepositoryPlace::find(common)?,
            RepositoryPlace::Store(StoreLocation::Files(_))
                | RepositoryPlace::Cluster(_)
                | RepositoryPlace::Remote(_)
        )
    {
        return Err(Failure::usage(
            "--coverage lists the bytes of a store file; this repository has none, leave it out",
        ));
    }
    let opened = context.open_for(Access::Read, RemoteView::Stored)?;
    let meter = context.meter();
    let used = opened.store().map_or(0, |store| store.objects().space().live_bytes);
    let walk = CheckProgress::new(&meter, check.read_data, used);
    // The list of covered bytes has those that were compared with the sums of the lowest layer.
    if let Some(store) = opened.store().filter(|_| check.read_data && !check.coverage) {
        store.objects().note_verified_ranges();
    }
    let report = opened.repository().check(read_data, &walk, &context.cancel).map_err(Failure::from);
    let mut coverage = check.coverage.then(CoverageReport::default);
    let device_bytes = opened.store().map_or(0, |store| store.objects().device_bytes());
    let report = report.and_then(|mut report| {
        let Some(store) = opened.store() else {
            if let RepositoryPlace::Cluster(_) = RepositoryPlace::find(common)? {
                context
                    .output
                    .notice("the servers of the cluster are compared by `copal group verify --all --deep`");
            }
            return Ok((report, LeftoverCounts { objects: 0, bytes: 0 }));
        };
        let leftovers = check_store(store, check.read_data, &walk, &mut report)?;
        check_objects(context, store, check.read_data, &walk, &mut coverage, &mut report)?;
        Ok((report, leftovers))
    });
    drop(meter);
    let lost = opened.repository().lost_frames();
    let (report, leftovers) = close(opened, report)?;
    context.note_lost(&lost);
    if leftovers.objects > 0 {
        context.output.notice(&format!(
            "an interrupted run left {} objects ({}) in the store; the next command that writes frees them",
            leftovers.objects,
            human::bytes(leftovers.bytes)
        ));
    }
    let mut more = json!({ "leftovers": leftovers.objects, "leftover_bytes": leftovers.bytes });
    if let Some(coverage) = &coverage {
        more["coverage"] = coverage.as_json(device_bytes);
        if !context.output.is_json() {
            write_out(&coverage.as_text(device_bytes));
        }
    }
    conclude(context, "check", "the repository", &report, more)
}

/// Objects that an interrupted run left in the store; no damage.
struct LeftoverCounts {
    objects: u64,
    bytes: u64,
}

/// Checks the layers below: rows, tables and accounts, which a repository does not check in its own reads.
fn check_store(
    store: &Stack,
    read_data: bool,
    walk: &CheckProgress<'_>,
    report: &mut CheckReport,
) -> Outcome<LeftoverCounts> {
    for stream in &store.recovery().damaged_streams {
        report.add("the store", format!("acknowledged frames of stream {} are damaged", stream.0));
    }
    walk.below(CheckLayer::Volumes);
    let options =
        CheckOptions { read_data, engine: true, verified: Some(std::mem::take(&mut report.verified_packs)) };
    let mut is_engine = false;
    let below = store.volumes().check(&options, &mut |so_far| {
        if so_far.engine_bytes == 0 {
            walk.reached(so_far.verified_bytes);
            return;
        }
        if !std::mem::replace(&mut is_engine, true) {
            walk.below(CheckLayer::Engine);
        }
        walk.reached(so_far.engine_bytes);
    })?;
    for damage in below.damage {
        report.add("the store", damage.to_string());
    }
    report.more_damages += below.more_damage;
    Ok(LeftoverCounts { objects: below.leftovers, bytes: below.leftover_bytes })
}

/// Checks the lowest layer: every byte with a checksum, of any owner. Bytes that the layers above have read and
/// verified are not read again.
fn check_objects(
    context: &CommandContext<'_>,
    store: &Stack,
    read_data: bool,
    walk: &CheckProgress<'_>,
    coverage: &mut Option<CoverageReport>,
    report: &mut CheckReport,
) -> Outcome<()> {
    let options = copal_object::CheckOptions { data: read_data, repair: false };
    let objects = store.objects();
    walk.below(CheckLayer::Objects);
    let mut summed = 0;
    let found = objects.check_coverage(&options, &mut |range, covered| {
        if matches!(covered, RangeCoverage::Summed(_)) {
            summed += range.end - range.start;
            walk.reached(summed);
        }
        if let Some(coverage) = coverage {
            context.output.message("verbose", range_as_json(&range, covered));
            coverage.add(&range, covered);
        }
    });
    walk.end();
    let found = found.map_err(|error| Failure::plain("check", format!("checking the store: {error}")))?;
    for damage in &whole_ranges(&found.damages) {
        let mut detail = damage.to_string();
        if matches!(damage, copal_object::StoreDamage::Superblock { .. }) {
            detail.push_str("; the next command that writes repairs it");
        }
        report.add("the store", detail);
    }
    if let Some(coverage) = coverage
        && found.is_clean()
    {
        for gap in coverage.gaps(objects.device_bytes()) {
            let detail = format!("bytes {} to {} are neither under a checksum nor free", gap.start, gap.end);
            report.add("the store", detail);
        }
    }
    Ok(())
}

/// Merges adjacent damaged units of one object into ranges.
fn whole_ranges(damages: &[copal_object::StoreDamage]) -> Vec<copal_object::StoreDamage> {
    use copal_object::StoreDamage;
    let mut whole: Vec<StoreDamage> = Vec::new();
    for damage in damages {
        if let (Some(StoreDamage::Object { id, range }), StoreDamage::Object { id: next_id, range: next }) =
            (whole.last_mut(), damage)
            && id == next_id
            && range.end == next.start
        {
            range.end = next.end;
        } else {
            whole.push(damage.clone());
        }
    }
    whole
}

pub(super) fn verify(context: &CommandContext<'_>, verify: &VerifyArgs) -> Outcome<()> {
    let opened = context.open_for(Access::Read, RemoteView::Stored)?;
    let repository = opened.repository();
    let meter = context.meter();
    let report = repository
        .resolve_damaged(&verify.which.snapshot, verify.which.vm.as_deref())
        .and_then(|snapshot| Ok((repository.verify(snapshot.id, &meter, &context.cancel)?, snapshot)));
    drop(meter);
    let lost = repository.lost_frames();
    let (report, snapshot) = close(opened, report.map_err(Failure::from))?;
    context.note_lost(&lost);
    if report.is_clean() && !snapshot.is_verified {
        note_verified(context, &snapshot);
    }
    let subject = format!("snapshot {} of {}", snapshot.id.short(), human::visible(&snapshot.vm.name));
    let more = json!({ "snapshot": SnapshotFields::from(&snapshot) });
    conclude(context, "verify", &subject, &report, more)
}

/// Records the verification, since retention keeps the newest verified snapshot. If the store cannot be
/// written, the verification itself still counts.
fn note_verified(context: &CommandContext<'_>, snapshot: &Snapshot) {
    let noted = context.open_again(Access::Write).and_then(|opened| {
        let noted = opened.repository().note_verified(snapshot.id).map_err(Failure::from);
        close(opened, noted)
    });
    if let Err(failure) = noted {
        context.output.notice(&format!("the verification was not recorded: {}", failure.sentence));
    }
}

#[cfg(test)]
mod tests {
    use super::whole_ranges;
    use copal_object::{ObjectId, StoreDamage};

    /// Symptom: a lost region was listed in hundreds of lines, 64 KiB each.
    /// Cause: every damaged unit is found separately. Fix: adjacent units are merged.
    #[test]
    fn damaged_units_side_by_side_are_one_place() {
        let object = |id, range| StoreDamage::Object { id: ObjectId(id), range };
        let found = [
            object(1, 0..10),
            object(1, 10..20),
            object(1, 30..40),
            object(2, 40..50),
            StoreDamage::Superblock { copy: 1 },
            object(2, 50..60),
        ];
        let whole = [
            object(1, 0..20),
            object(1, 30..40),
            object(2, 40..50),
            StoreDamage::Superblock { copy: 1 },
            object(2, 50..60),
        ];
        assert_eq!(whole_ranges(&found), whole);
    }
}
