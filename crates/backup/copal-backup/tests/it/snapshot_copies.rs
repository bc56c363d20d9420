//! Copies of snapshots in another repository: content, order, times, holds, and bytes read.

use crate::world::*;
use copal_backup::copy::*;
use copal_backup::*;
use copal_data::LocalStore;
use copal_volume::ManualClock;
use std::sync::Arc;
use zeroize::Zeroizing;

const MIB: usize = 1 << 20;
const DAY_MS: u64 = 86_400_000;
const START_MS: u64 = 1_790_000_000_000;

fn options() -> CopyOptions {
    CopyOptions { memory_bytes: 24 << 20, holder: Holder::default() }
}

fn plan(source: &Repository, target: &Repository) -> CopyPlan {
    CopyPlan::new(source, target, CopyChoice::All, 0).unwrap()
}

/// Copies all snapshots that the target lacks.
fn copy_all(source: &Arc<Repository>, target: &Repository) -> Vec<FinishedCopy> {
    let plan = plan(source, target);
    let mut copier = SnapshotCopier::new(source, target, options()).unwrap();
    let copies = plan.snapshots().iter().map(|snapshot| {
        match copier.copy(&plan, snapshot, &Silent, &CancelFlag::new()).unwrap() {
            CopyOutcome::Copied(copy) => *copy,
            CopyOutcome::Present => panic!("{} is there", snapshot.id),
        }
    });
    copies.collect()
}

/// A disk with text, and its states on several days.
fn days(count: u64) -> Vec<Disk> {
    let mut disk = Disk::new(9 * MIB + 4096);
    Random::new(31).text(&mut disk.bytes[..6 * MIB]);
    let day = |day: u64| {
        if day > 0 {
            disk.changed.clear();
            let mut data = vec![0; 100_000];
            Random::new(day).fill(&mut data);
            disk.write(day as usize * MIB + 777, &data);
            disk.discard(day as usize * MIB / 2, 20_000);
        }
        disk.clone()
    };
    (0..count).map(day).collect()
}

/// A repository with a snapshot of each day, and its clock.
fn source_of(layout: Layout, days: &[Disk]) -> (Arc<Repository>, Vec<SnapshotId>, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new(START_MS));
    let repository = init_as(&embedded_store_at(clock.clone()), layout);
    let snapshots = days.iter().enumerate().map(|(number, day)| {
        clock.set(START_MS + number as u64 * DAY_MS);
        let mut request = request_since(&repository, "web", day, number > 0);
        request.tags = vec![format!("day-{number}")];
        request.description = "by hand".to_owned();
        repository.backup(request, &Silent, &CancelFlag::new()).unwrap().snapshot
    });
    let snapshots = snapshots.collect();
    (Arc::new(repository), snapshots, clock)
}

#[test]
fn copies_have_the_bytes_and_the_words_of_their_sources_in_both_layouts() {
    let days = days(4);
    for (from, to) in [(Layout::Solo, FLEET), (FLEET, Layout::Solo)] {
        let (source, snapshots, clock) = source_of(from, &days);
        let target = init_as(&embedded_store_at(clock), to);
        let copies = copy_all(&source, &target);
        assert_eq!(copies.iter().map(|copy| copy.origin.snapshot).collect::<Vec<_>>(), snapshots);
        let listed = target.snapshots(None).unwrap();
        for (number, ((day, copy), listed)) in days.iter().zip(&copies).zip(&listed).enumerate() {
            assert!(restore(&target, copy.summary.snapshot) == day.bytes, "day {number}");
            assert_eq!(listed.id, copy.summary.snapshot);
            assert_eq!(listed.tags, [format!("day-{number}")]);
            assert_eq!((listed.description.as_str(), listed.vm.name.as_str()), ("by hand", "web"));
            let origin = listed.copied_from.unwrap();
            assert_eq!(origin, copy.origin);
            assert_eq!(origin.repository, source.info().domain);
            assert_eq!(listed.created_ms, START_MS + number as u64 * DAY_MS);
            assert!(listed.misdated.is_none() && listed.doubts.is_empty());
        }
        assert!(check(&target).is_clean());
        let again = plan(&source, &target);
        assert_eq!((again.snapshots().len(), again.present(), again.older().len()), (0, 4, 0));
    }
}

#[test]
fn a_second_copy_reads_what_changed_since_the_first() {
    let days = days(3);
    let (source, _, clock) = source_of(Layout::Solo, &days[..2]);
    let target = init_as(&embedded_store_at(clock.clone()), FLEET);
    let copies = copy_all(&source, &target);
    let [first, second] = &copies[..] else { panic!("{copies:?}") };
    let mode = |copy: &FinishedCopy| copy.summary.disks[0].mode;
    assert_eq!((mode(first), mode(second)), (DiskMode::Full, DiskMode::Incremental));
    assert_eq!(second.summary.base, Some(first.summary.snapshot));
    // Whole chunks, and the blocks around them.
    let most = 600_000;
    assert!(second.summary.counts.read_bytes < most, "{:?}", second.summary.counts);
    // This process has made the base.
    assert_eq!(second.summary.counts.spot_check_bytes, 0);
    back_up(&source, "web", &days[2], false);
    let [third] = &copy_all(&source, &target)[..] else { panic!("one is new") };
    assert_eq!(mode(third), DiskMode::Incremental);
    assert!(third.summary.counts.read_bytes < most, "{:?}", third.summary.counts);
    assert!(third.summary.counts.spot_check_bytes > 4 << 20, "{:?}", third.summary.counts);
    assert!(restore(&target, third.summary.snapshot) == days[2].bytes);
    // Another disk of the VM is new, and one has grown.
    let mut grown = days[2].clone();
    grown.bytes.resize(11 * MIB, 7);
    let disks = ["sda", "sdb"].map(|name| DiskSource::new(name, grown.source()));
    source.backup(BackupRequest::new("web", disks.into()), &Silent, &CancelFlag::new()).unwrap();
    let [fourth] = &copy_all(&source, &target)[..] else { panic!("one is new") };
    let modes: Vec<DiskMode> = fourth.summary.disks.iter().map(|disk| disk.mode).collect();
    assert_eq!(modes, [DiskMode::Rescan, DiskMode::Full]);
    assert!(check(&target).is_clean());
}

/// BAK-3: the changes are those since the snapshot that the newest one of the target is a copy of, and no other.
#[test]
fn changes_are_used_only_behind_the_copy_of_the_snapshot_that_they_begin_at() {
    let days = days(3);
    let (source, snapshots, clock) = source_of(Layout::Solo, &days[..2]);
    let target = init_as(&embedded_store_at(clock.clone()), FLEET);
    copy_all(&source, &target);
    // A backup of another state, made in the target itself.
    let mut other = days[1].clone();
    other.write(3 * MIB, &[9; 5000]);
    clock.set(START_MS + 2 * DAY_MS);
    back_up(&target, "web", &other, false);
    clock.set(START_MS + 3 * DAY_MS);
    back_up(&source, "web", &days[2], false);
    let [copy] = &copy_all(&source, &target)[..] else { panic!("one is new") };
    assert_eq!(copy.summary.disks[0].mode, DiskMode::Rescan);
    assert!(copy.summary.disks[0].reason.contains("is no copy"), "{:?}", copy.summary.disks);
    assert!(restore(&target, copy.summary.snapshot) == days[2].bytes);
    // The source has forgotten the snapshot that was copied last.
    let newest = source.snapshots(None).unwrap().pop().unwrap().id;
    source.forget(&[newest]).unwrap();
    clock.set(START_MS + 4 * DAY_MS);
    back_up(&source, "web", &days[0], false);
    let [copy] = &copy_all(&source, &target)[..] else { panic!("one is new") };
    assert!(copy.summary.disks[0].reason.contains("has no more"), "{:?}", copy.summary.disks);
    assert!(restore(&target, copy.summary.snapshot) == days[0].bytes);
    assert!(restore(&source, snapshots[0]) == days[0].bytes);
}

/// A snapshot of the source that claims to be a copy of another one takes no part in the comparison.
#[test]
fn a_forged_origin_hides_no_change() {
    let days = days(2);
    let (source, snapshots, clock) = source_of(Layout::Solo, &days[..1]);
    let target = init_as(&embedded_store_at(clock.clone()), FLEET);
    copy_all(&source, &target);
    // It has the bytes of the next day already.
    let mut request = request("web", &days[1], false);
    let (repository, snapshot) = (source.info().domain, snapshots[0]);
    let origin = CopyOrigin { repository, snapshot, created_ms: START_MS };
    request.copied = Some(CopiedSnapshot { origin, follows: Some(snapshot) });
    source.backup(request, &Silent, &CancelFlag::new()).unwrap();
    clock.set(START_MS + 2 * DAY_MS);
    back_up(&source, "web", &days[1], false);
    let copies = copy_all(&source, &target);
    assert_eq!(copies.len(), 1);
    assert!(restore(&target, copies[0].summary.snapshot) == days[1].bytes);
}

/// BAK-30: another process has made a snapshot since this one looked.
#[test]
fn a_copy_follows_only_the_snapshot_that_it_was_planned_for() {
    for layout in LAYOUTS {
        let days = days(2);
        let target = init_as(&embedded_store(), layout);
        let first = back_up(&target, "web", &days[0], false).snapshot;
        let origin = CopyOrigin {
            repository: target.info().domain,
            snapshot: SnapshotId([7; 16]),
            created_ms: START_MS,
        };
        for (follows, is_made) in [(None, false), (Some(SnapshotId([8; 16])), false), (Some(first), true)] {
            let mut request = request("web", &days[1], false);
            request.copied = Some(CopiedSnapshot { origin, follows });
            match target.backup(request, &Silent, &CancelFlag::new()) {
                Ok(made) => assert!(is_made && restore(&target, made.snapshot) == days[1].bytes),
                Err(error) => assert!(!is_made && matches!(error, Error::Busy { .. }), "{error}"),
            }
            assert_eq!(target.snapshots(None).unwrap().len(), 1 + usize::from(is_made), "{layout:?}");
        }
    }
}

/// BAK-30: `latest`, and retention, would take an older state for the newest one.
#[test]
fn a_snapshot_older_than_the_newest_of_the_target_is_passed_over() {
    let days = days(4);
    let (source, snapshots, clock) = source_of(Layout::Solo, &days);
    let target = init_as(&embedded_store_at(clock.clone()), FLEET);
    let choice = |choice| CopyPlan::new(&source, &target, choice, 0).unwrap();
    let id = snapshots[1].to_string();
    let one = choice(CopyChoice::Snapshot(&id, None));
    assert_eq!(one.snapshots().iter().map(|one| one.id).collect::<Vec<_>>(), [snapshots[1]]);
    let mut copier = SnapshotCopier::new(&source, &target, options()).unwrap();
    copier.copy(&one, &one.snapshots()[0], &Silent, &CancelFlag::new()).unwrap();
    let all = choice(CopyChoice::All);
    assert_eq!(all.snapshots().iter().map(|one| one.id).collect::<Vec<_>>(), snapshots[2..]);
    assert_eq!(all.older().iter().map(|one| one.id).collect::<Vec<_>>(), snapshots[..1]);
    assert_eq!(all.present(), 1);
    // A backup of the target itself is newer than all of them.
    clock.set(START_MS + 9 * DAY_MS);
    back_up(&target, "web", &days[3], false);
    let none = choice(CopyChoice::Vm("web"));
    assert_eq!((none.snapshots().len(), none.older().len(), none.present()), (0, 3, 1));
    let since = CopyPlan::new(&source, &target, CopyChoice::All, START_MS + 3 * DAY_MS).unwrap();
    assert_eq!(since.older().len(), 1);
    assert!(CopyPlan::new(&source, &target, CopyChoice::Vm("none"), 0).is_err());
}

#[test]
fn a_copy_of_a_copy_has_the_first_origin_and_is_made_once() {
    let days = days(2);
    let (source, snapshots, clock) = source_of(Layout::Solo, &days);
    let [second, third] =
        [FLEET, Layout::Solo].map(|layout| Arc::new(init_as(&embedded_store_at(clock.clone()), layout)));
    copy_all(&source, &second);
    let copies = copy_all(&second, &third);
    assert_eq!(copies.iter().map(|copy| copy.origin.snapshot).collect::<Vec<_>>(), snapshots);
    assert_eq!(copies[1].summary.disks[0].mode, DiskMode::Incremental);
    for (from, to) in [(&source, &third), (&second, &source), (&third, &source), (&third, &second)] {
        let plan = plan(from, to);
        assert_eq!((plan.snapshots().len(), plan.present()), (0, 2));
    }
    let same = SnapshotCopier::new(&third, &third, options()).err().unwrap();
    assert!(matches!(same, Error::Invalid { .. }), "{same}");
}

fn password() -> Unlock {
    Unlock::Password(Zeroizing::new("correct horse".into()))
}

/// A repository with role keys, opened with a key of this role.
fn opened_as(role: Role, clock: &Arc<ManualClock>) -> Repository {
    let store = embedded_store_at(clock.clone());
    let options = InitOptions { layout: FLEET, argon2_memory_kib: 64, ..InitOptions::new(password()) };
    let made = Repository::init(Arc::new(store.clone()), IndexHome::Memory, &options).unwrap();
    let key = made.draw_key(role).unwrap();
    made.add_key(&key).unwrap();
    open_by(&store, &Unlock::Key(key))
}

fn open_by(store: &LocalStore, unlock: &Unlock) -> Repository {
    Repository::open(Arc::new(store.clone()), IndexHome::Memory, unlock).unwrap()
}

#[test]
fn times_and_holds_come_along_where_the_key_may_delete() {
    let days = days(2);
    let (source, snapshots, clock) = source_of(Layout::Solo, &days);
    let until_ms = START_MS + 900 * DAY_MS;
    source.hold(&snapshots[1..], until_ms).unwrap();
    clock.set(START_MS + 30 * DAY_MS);
    for (role, keeps) in [(Role::Backup, false), (Role::Delete, true)] {
        let target = opened_as(role, &clock);
        let copies = copy_all(&source, &target);
        let listed = target.snapshots(None).unwrap();
        for (number, (copy, listed)) in copies.iter().zip(&listed).enumerate() {
            let origin_ms = START_MS + number as u64 * DAY_MS;
            assert_eq!(copy.origin.created_ms, origin_ms);
            assert_eq!(listed.copied_from.unwrap().created_ms, origin_ms);
            assert_eq!(listed.created_ms == origin_ms, keeps, "{role:?}");
            assert_eq!(copy.summary.created_ms == origin_ms, keeps, "{role:?}");
            assert!(listed.misdated.is_none(), "{listed:?}");
        }
        assert_eq!(copies[1].lacks_hold, !keeps);
        assert!(!copies[0].lacks_hold);
        assert_eq!(listed[1].held_until_ms, if keeps { until_ms } else { 0 });
        assert!(check(&target).is_clean());
        // A hold that is set or extended later comes along with the next copy.
        source.hold(&snapshots[..1], u64::MAX).unwrap();
        let plan = plan(&source, &target);
        let copier = SnapshotCopier::new(&source, &target, options()).unwrap();
        assert_eq!(copier.hold_present(&plan).unwrap(), u64::from(keeps));
        let first = &target.snapshots(None).unwrap()[0];
        assert_eq!(first.held_until_ms, if keeps { u64::MAX } else { 0 });
        source.hold(&snapshots[..1], 0).unwrap();
    }
}

/// BAK-13: a time that lies ahead of the clock, or before an earlier snapshot, is not taken over.
#[test]
fn an_implausible_time_is_replaced_by_that_of_the_copy() {
    let days = days(3);
    let (source, _, clock) = source_of(Layout::Solo, &days[..1]);
    clock.set(START_MS + 500 * DAY_MS);
    back_up(&source, "web", &days[1], false);
    clock.set(START_MS + DAY_MS);
    let target = init_as(&embedded_store_at(clock.clone()), Layout::Solo);
    copy_all(&source, &target);
    let listed = target.snapshots(None).unwrap();
    let times: Vec<u64> = listed.iter().map(|one| one.created_ms - START_MS).collect();
    assert_eq!(times, [0, DAY_MS]);
    assert!(listed.iter().all(|one| one.misdated.is_none()), "{listed:?}");
    assert_eq!(listed[1].copied_from.unwrap().created_ms, START_MS + 500 * DAY_MS);
}

#[test]
fn doubts_come_along_until_they_are_accepted() {
    let days = days(1);
    let (source, _, clock) = source_of(Layout::Solo, &days);
    let mut smaller = days[0].clone();
    smaller.bytes.truncate(5 * MIB);
    let mut doubtful = Vec::new();
    for _ in 0..2 {
        let mut request = request("web", &smaller, false);
        request.allow_smaller = true;
        doubtful.push(source.backup(request, &Silent, &CancelFlag::new()).unwrap().snapshot);
    }
    source.accept(&doubtful[1..]).unwrap();
    let target = init_as(&embedded_store_at(clock), FLEET);
    copy_all(&source, &target);
    let is_doubtful: Vec<bool> = target.snapshots(None).unwrap().iter().map(Snapshot::is_doubtful).collect();
    assert_eq!(is_doubtful, [false, true, false]);
}

/// Names of the packs of chunks.
fn packs(store: &LocalStore) -> Vec<Vec<u8>> {
    let packs = files(store).into_iter().filter(|(volume, ..)| volume.starts_with("pds-"));
    packs.map(|(_, name, _)| name).collect()
}

#[test]
fn a_damaged_snapshot_stops_no_other_one() {
    let store = embedded_store();
    let made = init(&store);
    let mut disk = days(1).remove(0);
    let mut bytes = Vec::new();
    let mut packs_of_days = Vec::new();
    for day in 0..3 {
        // Each day overwrites the writes of the day before.
        let mut data = vec![0; 200_000];
        Random::new(40 + day).fill(&mut data);
        disk.write(3 * MIB, &data);
        back_up(&made, "web", &disk, false);
        bytes.push(disk.bytes.clone());
        packs_of_days.push(packs(&store));
    }
    let bad = embedded_store();
    copy_into(&store, &bad, |_, name, body| {
        let is_of_second_day = |name: &[u8]| !packs_of_days[0].iter().any(|pack| pack == name);
        if packs_of_days[1].iter().any(|pack| pack == name) && is_of_second_day(name) {
            let at = body.len() / 2;
            body[at] ^= 1;
        }
        true
    });
    let (source, target) = (Arc::new(open(&bad)), init_as(&embedded_store(), FLEET));
    let plan = plan(&source, &target);
    let mut copier = SnapshotCopier::new(&source, &target, options()).unwrap();
    let mut copy = |at: usize| copier.copy(&plan, &plan.snapshots()[at], &Silent, &CancelFlag::new());
    copy(0).unwrap();
    let failure = copy(1).unwrap_err();
    assert_eq!((failure.side, failure.scope()), (CopySide::Source, FailureScope::Snapshot));
    assert!(failure.error.is_corruption(), "{}", failure.error);
    assert_eq!(target.snapshots(None).unwrap().len(), 1);
    let CopyOutcome::Copied(third) = copy(2).unwrap() else { panic!("it is there") };
    assert_eq!(third.summary.disks[0].mode, DiskMode::Incremental);
    assert!(restore(&target, third.summary.snapshot) == bytes[2]);
    assert!(check(&target).is_clean());
}
