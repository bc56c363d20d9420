//! Stored bytes of a job of several agents, compared with an exact index of all chunks.

use crate::world::{Fleet, Running};
use copal_agent::{
    agent::AgentOptions,
    job::{
        job_report::JobReport,
        settlement::{self, JobSettlement, SettleOptions},
    },
};
use copal_backup::{
    BackupRequest, CancelFlag, DiskSource, IndexHome, InitOptions, Layout, ReadData, Repository, Role,
    Silent, Unlock,
};
use copal_disk::source::file::FileSource;
use copal_testkit::Random;
use copal_volume::MemoryStore;
use std::{
    fs,
    sync::{Arc, OnceLock},
    time::Duration,
};

const HOSTS: [&str; 3] = ["h1", "h2", "h3"];
const VMS: usize = 6;

fn vm(number: usize) -> String {
    format!("vm{number}")
}

/// Three kinds of VM, two of each. Each has content of all VMs, of its kind, of one VM of another kind, and
/// of its own.
fn image(number: usize) -> Vec<u8> {
    let mut bytes = vec![0; 6 << 20];
    let mut fill = |seed: usize, from: usize, len: usize| {
        Random::new(seed as u64).fill(&mut bytes[from..from + len]);
    };
    // Not at the same place on each disk.
    let shift = number * 4096;
    fill(1, shift, 2 << 20);
    fill(10 + number % 3, (2 << 20) + shift, 1 << 20);
    fill(20 + number / 2, (3 << 20) + shift, 3 << 19);
    fill(100 + number, 5 << 20, 3 << 18);
    bytes
}

/// Bytes of chunks in a repository where each VM is backed up alone.
fn alone(fleet: &Fleet, layout: Layout) -> u64 {
    let options = InitOptions { layout, ..InitOptions::new(Unlock::Insecure) };
    let repository = Repository::init(Arc::new(MemoryStore::new()), IndexHome::Memory, &options).unwrap();
    for number in 0..VMS {
        let source = FileSource::open(&fleet.disk(&vm(number))).unwrap();
        let disk = DiskSource::new("sda", Box::new(source));
        let mut request = BackupRequest::new(vm(number), vec![disk]);
        request.memory_bytes = 1 << 20;
        repository.backup(request, &Silent, &CancelFlag::new()).unwrap();
    }
    repository.stats().unwrap().chunk_pack_bytes
}

/// Starts an agent on each host, with the VMs that `host_of` says.
fn start_all(fleet: &Fleet, host_of: fn(usize) -> usize, open: impl Fn() -> Arc<Repository>) -> Vec<Running> {
    start_all_with(fleet, host_of, open, |_, _| ())
}

fn start_all_with(
    fleet: &Fleet,
    host_of: fn(usize) -> usize,
    open: impl Fn() -> Arc<Repository>,
    change: impl Fn(usize, &mut AgentOptions),
) -> Vec<Running> {
    for number in 0..VMS {
        fs::write(fleet.disk(&vm(number)), image(number)).unwrap();
    }
    let start = |(host, name): (usize, &&str)| {
        let vms: Vec<String> = (0..VMS).filter(|number| host_of(*number) == host).map(vm).collect();
        let plan = fleet.plan_of_disks(name, &vms);
        fleet.start_as(name, plan, open(), |options| change(host, options))
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

/// Bytes of the VMs without sharing, and with an exact index.
struct Bounds {
    none: f64,
    exact: f64,
}

impl Bounds {
    /// The same for all tests, since the disks are.
    fn get(fleet: &Fleet) -> &'static Bounds {
        static BOUNDS: OnceLock<Bounds> = OnceLock::new();
        let unshared = Layout::Fleet { popular_millionths: 0 };
        BOUNDS.get_or_init(|| Bounds {
            none: alone(fleet, unshared) as f64,
            exact: alone(fleet, Layout::Solo) as f64,
        })
    }

    /// The share of an exact index's savings that a job achieves.
    fn share(&self, fleet: &Fleet) -> f64 {
        (self.none - stored(fleet) as f64) / (self.none - self.exact)
    }
}

/// Symptom: in two or more rounds a job achieved .60 to .86 of the savings of an exact index, and nothing was
/// unresolved.
/// Cause: a chunk that was asked about in an early round was stored privately; when a later round made it
/// popular, the first copy stayed.
/// Fix: when all hosts have stored, each asks again about the frames of this job, and gives up the popular
/// ones.
#[test]
fn a_job_saves_as_much_as_an_exact_index_for_any_rounds_and_placement() {
    let by_kind: fn(usize) -> usize = |number| number % 3;
    let in_blocks: fn(usize) -> usize = |number| number / 2;
    let mostly_on_one: fn(usize) -> usize = |number| number.saturating_sub(3) / 2;
    for (rounds, placement) in [("1", by_kind), ("2", in_blocks), ("6", mostly_on_one), ("8", by_kind)] {
        let fleet = Fleet::with_fraction(1_000_000);
        let _agents = start_all(&fleet, placement, || Arc::clone(&fleet.repository));
        let report = fleet.job_in(rounds);
        assert!(report.is_complete(), "{report:?}");
        let share = Bounds::get(&fleet).share(&fleet);
        assert!(share >= 0.97, "{rounds} rounds: {share:.3} {report:?}");
        let settled = JobSettlement::of(&report);
        // In one round, only chunks that had no space at first.
        let moves_much = settled.moved_bytes > 1_000_000;
        assert_eq!((moves_much, settled.unsettled.len()), (rounds != "1", 0), "{settled:?}");
        let checked = fleet.repository.check(ReadData::All, &Silent, &CancelFlag::new()).unwrap();
        assert!(checked.is_clean(), "{:?}", checked.damages);
    }
}

/// Symptom: in one job of natural placement .90 to .92, and nothing was unresolved. Cause: a host that took
/// longer than the patience of the others asked late. Chunks that it shared with one of their VMs became
/// popular then, and their copy stayed. Fix: as above, in one round too.
#[test]
fn chunks_that_a_late_host_shares_with_others_are_stored_once() {
    let fleet = Fleet::with_fraction(1_000_000);
    let host_of: fn(usize) -> usize = |number| number.div_ceil(4);
    let _agents = start_all_with(
        &fleet,
        host_of,
        || Arc::clone(&fleet.repository),
        |host, options| {
            // Longer than the least patience of the others.
            options.read_limit = (host == 0).then_some(200 << 10);
        },
    );
    let report = fleet.job_in("1");
    assert!(report.is_complete(), "{report:?}");
    let settled = JobSettlement::of(&report);
    assert!(settled.unsettled.is_empty(), "{settled:?}");
    let share = Bounds::get(&fleet).share(&fleet);
    assert!(share >= 0.97, "{share:.3} {report:?}");
}

/// Hosts have keys that only back up: they settle nothing. The process that waits for the job counts with
/// such a key, and settles with one that may delete.
#[test]
fn vms_of_agents_whose_keys_may_not_delete_are_settled_by_the_process_that_waits_for_the_job() {
    let password = Unlock::Password(zeroize::Zeroizing::new("correct horse".into()));
    let fleet = Fleet::unlocked_by(password, 1_000_000);
    let _agents = start_all(&fleet, |number| number % 3, || fleet.open_as(Role::Backup));
    let mut report = fleet.job_in("2");
    assert!(report.is_complete(), "{report:?}");
    let unsettled = JobSettlement::of(&report);
    assert_eq!((unsettled.moved, unsettled.unsettled.len()), (0, VMS), "{unsettled:?}");

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
        settlement::settle(&fleet.open_as(role), report, &options, &CancelFlag::new(), &mut tell);
        assert!(told.iter().enumerate().all(|(at, one)| (one.1, one.2) == (at + 1, VMS)), "{told:?}");
        assert_eq!(told.len(), VMS);
        JobSettlement::of(report)
    };
    let before = stored(&fleet);
    let mut counted = report.clone();
    let counted = settle(Role::Backup, &mut counted);
    assert_eq!((counted.moved, counted.unsettled.len(), stored(&fleet)), (0, 0, before), "{counted:?}");
    assert!(counted.twice_bytes > 2 << 20, "{counted:?}");
    let settled = settle(Role::Delete, &mut report);
    assert_eq!((settled.twice, settled.unsettled.len()), (0, 0), "{settled:?}");
    // The VM that was to store a chunk as popular at the count may be asked about it again.
    assert!(settled.moved_bytes * 100 >= counted.twice_bytes * 95, "{settled:?} {counted:?}");
    let share = Bounds::get(&fleet).share(&fleet);
    assert!(share >= 0.97, "{share:.3} {settled:?}");
    let checked = fleet.repository.check(ReadData::All, &Silent, &CancelFlag::new()).unwrap();
    assert!(checked.is_clean(), "{:?}", checked.damages);
}

/// Symptom: a fleet with `--pds-fraction 30%` saved .77 of the savings of an exact index, without a message.
/// Cause: two VMs make a chunk popular only while less than half of the fraction is used, three until all of
/// it is.
/// Fix: the answer reports it, the job counts it, and the operator's page advises 100 % for a few dozen VMs.
#[test]
fn ids_beyond_the_fraction_are_counted() {
    let fleet = Fleet::with_fraction(300_000);
    let _agents = start_all(&fleet, |number| number % 3, || Arc::clone(&fleet.repository));
    let report = fleet.job_in("2");
    assert!(report.is_complete(), "{report:?}");
    let settled = JobSettlement::of(&report);
    let share = Bounds::get(&fleet).share(&fleet);
    assert!(share < 0.95 && settled.refused > 100, "{share:.3} {settled:?}");
}
