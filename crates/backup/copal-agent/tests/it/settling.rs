//! What a job of several agents stores, beside what an exact index of all chunks would store.

use crate::world::{Fleet, Running};
use copal_agent::{
    coordinate::JobReport,
    settling::{self, SettleOptions, Settlement},
};
use copal_backup::{
    BackupRequest, CancelFlag, DiskSource, IndexHome, InitOptions, Layout, ReadData, Repository, Role,
    Silent, Unlock, source::file::FileSource,
};
use copal_testkit::Random;
use copal_volume::MemoryStore;
use std::{fs, sync::Arc, time::Duration};

const HOSTS: [&str; 3] = ["h1", "h2", "h3"];
const VMS: usize = 9;

fn vm(number: usize) -> String {
    format!("vm{number}")
}

/// Three kinds of VM. Each has what all have, what those of its kind have, what one VM of another kind has, and what nobody has.
fn image(number: usize) -> Vec<u8> {
    let mut bytes = vec![0; 6 << 20];
    let mut fill = |seed: usize, from: usize, len: usize| {
        Random::new(seed as u64).fill(&mut bytes[from..from + len]);
    };
    // Not at the same place on each disk.
    let shift = number * 4096;
    fill(1, shift, 2 << 20);
    fill(10 + number % 3, (2 << 20) + shift, 1 << 20);
    fill(20 + number / 2, (3 << 20) + shift, 1 << 19);
    fill(100 + number, (4 << 20) + shift, 1 << 20);
    bytes
}

/// Bytes of chunks in a repository where each VM is backed up by itself.
fn alone(fleet: &Fleet, layout: Layout) -> u64 {
    let options = InitOptions {
        layout,
        ..InitOptions::new(Unlock::Insecure)
    };
    let repository = Repository::init(Arc::new(MemoryStore::new()), IndexHome::Memory, &options).unwrap();
    for number in 0..VMS {
        let source = FileSource::open(&fleet.disk(&vm(number))).unwrap();
        let disk = DiskSource::new("sda", Box::new(source));
        let request = BackupRequest::new(vm(number), vec![disk]);
        repository.backup(request, &Silent, &CancelFlag::new()).unwrap();
    }
    repository.stats().unwrap().chunk_pack_bytes
}

/// Starts an agent on each host, with the VMs that `host_of` says.
fn start_all(fleet: &Fleet, host_of: fn(usize) -> usize, open: impl Fn() -> Arc<Repository>) -> Vec<Running> {
    for number in 0..VMS {
        fs::write(fleet.disk(&vm(number)), image(number)).unwrap();
    }
    let start = |(host, name): (usize, &&str)| {
        let vms: Vec<String> = (0..VMS)
            .filter(|number| host_of(*number) == host)
            .map(vm)
            .collect();
        fleet.start_with(name, fleet.plan_of_disks(name, &vms), open())
    };
    HOSTS.iter().enumerate().map(start).collect()
}

/// Bytes of live chunks in the repository of a fleet.
fn stored(fleet: &Fleet) -> u64 {
    let of_vm = |number| {
        let stats = fleet.repository.vm_stats(&vm(number)).unwrap();
        stats.chunk_pack_bytes - stats.dead_bytes
    };
    (0..VMS).map(of_vm).sum::<u64>() + fleet.repository.popular_status().unwrap().bytes
}

/// What the VMs take without sharing, and with an exact index.
struct Bounds {
    none: f64,
    exact: f64,
}

impl Bounds {
    fn of(fleet: &Fleet) -> Bounds {
        Bounds {
            none: alone(
                fleet,
                Layout::Fleet {
                    popular_millionths: 0,
                },
            ) as f64,
            exact: alone(fleet, Layout::Solo) as f64,
        }
    }

    /// Of what an exact index saves, how much a job saves.
    fn share(&self, fleet: &Fleet) -> f64 {
        (self.none - stored(fleet) as f64) / (self.none - self.exact)
    }
}

/// Symptom: in two or more rounds a job saved .60 to .86 of what an exact index saves, and nothing was unresolved.
/// Cause: a chunk that was asked about in an early round was stored privately; when a later round made it popular, the first copy stayed.
/// Fix: when all hosts have stored, each asks about the frames of this job again, and gives up those that are popular.
#[test]
fn a_job_saves_what_an_exact_index_saves_whatever_its_rounds_and_placement() {
    let by_kind: fn(usize) -> usize = |number| number % 3;
    let in_blocks: fn(usize) -> usize = |number| number / 3;
    let mostly_on_one: fn(usize) -> usize = |number| number.saturating_sub(5) / 2;
    let mut bounds = None;
    for (rounds, placement) in [
        ("auto", by_kind),
        ("5", in_blocks),
        ("6", by_kind),
        ("6", mostly_on_one),
    ] {
        let fleet = Fleet::with_fraction(1_000_000);
        let _agents = start_all(&fleet, placement, || Arc::clone(&fleet.repository));
        let bounds = bounds.get_or_insert_with(|| Bounds::of(&fleet));
        let report = fleet.job_in(rounds);
        assert!(report.is_complete(), "{report:?}");
        let share = bounds.share(&fleet);
        assert!(share >= 0.97, "{rounds} rounds: {share:.3} {report:?}");
        let settled = Settlement::of(&report);
        // In one round only what had no room at first.
        let moves_much = settled.moved_bytes > 1_000_000;
        assert_eq!(
            (moves_much, settled.unsettled.len()),
            (rounds != "auto", 0),
            "{settled:?}"
        );
        let checked = fleet
            .repository
            .check(ReadData::All, &Silent, &CancelFlag::new())
            .unwrap();
        assert!(checked.is_clean(), "{:?}", checked.damages);
    }
}

/// Hosts have keys that back up and nothing else: they settle nothing. Whoever waits for the job counts with such a key, and gives up
/// with one that may delete.
#[test]
fn vms_of_agents_whose_keys_may_not_delete_are_settled_by_whoever_waits_for_the_job() {
    let password = Unlock::Password(zeroize::Zeroizing::new("correct horse".into()));
    let fleet = Fleet::unlocked_by(password, 1_000_000);
    let _agents = start_all(&fleet, |number| number % 3, || fleet.open_as(Role::Backup));
    let mut report = fleet.job_in("3");
    assert!(report.is_complete(), "{report:?}");
    let unsettled = Settlement::of(&report);
    assert_eq!(
        (unsettled.moved, unsettled.unsettled.len()),
        (0, VMS),
        "{unsettled:?}"
    );

    let spool = tempfile::tempdir().unwrap();
    let options = SettleOptions {
        name: "operator",
        spool: spool.path(),
        timeout: Duration::from_secs(30),
        memory_bytes: 1 << 20,
    };
    let settle = |role, report: &mut JobReport| {
        let mut told = Vec::new();
        let mut tell = |vm: &str, number: usize, all: usize| told.push((vm.to_owned(), number, all));
        settling::settle(
            &fleet.open_as(role),
            report,
            &options,
            &CancelFlag::new(),
            &mut tell,
        );
        assert!(
            told.iter()
                .enumerate()
                .all(|(at, one)| (one.1, one.2) == (at + 1, VMS)),
            "{told:?}"
        );
        assert_eq!(told.len(), VMS);
        Settlement::of(report)
    };
    let before = stored(&fleet);
    let mut counted = report.clone();
    let counted = settle(Role::Backup, &mut counted);
    assert_eq!(
        (counted.moved, counted.unsettled.len(), stored(&fleet)),
        (0, 0, before),
        "{counted:?}"
    );
    assert!(counted.twice_bytes > 2 << 20, "{counted:?}");
    let settled = settle(Role::Delete, &mut report);
    assert_eq!((settled.twice, settled.unsettled.len()), (0, 0), "{settled:?}");
    // The VM that was to store a chunk for all, when it was counted, may be asked about it still.
    assert!(
        settled.moved_bytes * 100 >= counted.twice_bytes * 95,
        "{settled:?} {counted:?}"
    );
    let share = Bounds::of(&fleet).share(&fleet);
    assert!(share >= 0.97, "{share:.3} {settled:?}");
    let checked = fleet
        .repository
        .check(ReadData::All, &Silent, &CancelFlag::new())
        .unwrap();
    assert!(checked.is_clean(), "{:?}", checked.damages);
}

/// Symptom: a fleet with `--pds-fraction 30%` saved .77 of what an exact index saves, and nothing said why.
/// Cause: two VMs make a chunk popular only while less than half of the fraction is used, three until all of it is.
/// Fix: the answer says so, the job counts it, and the operator's page advises 100 % for a few dozen VMs.
#[test]
fn what_the_fraction_has_no_room_for_is_counted() {
    let mut shares = Vec::new();
    for popular_millionths in [300_000, 1_000_000] {
        let fleet = Fleet::with_fraction(popular_millionths);
        let _agents = start_all(&fleet, |number| number % 3, || Arc::clone(&fleet.repository));
        let report = fleet.job_in("3");
        assert!(report.is_complete(), "{report:?}");
        shares.push((Bounds::of(&fleet).share(&fleet), Settlement::of(&report).refused));
    }
    let [(little, refused), (all, none)] = shares[..] else {
        unreachable!()
    };
    assert!(little < 0.95 && refused > 20, "{shares:?}");
    assert!(all >= 0.97 && none == 0, "{shares:?}");
}
