//! Operations with 1, 3 and 16 workers: the same reports, and an end after a cancellation or an error.

use crate::mortal_store::MortalStore;
use crate::world::*;
use copal_backup::*;
use copal_data::LocalStore;
use std::sync::{Arc, Mutex};

const MIB: usize = 1 << 20;
const WORKERS: [usize; 3] = [1, 3, 16];

fn opened(store: &MortalStore, workers: usize) -> Repository {
    let store = Arc::new(store.clone());
    Repository::open(store, IndexHome::Memory, &Unlock::Insecure).unwrap().with_workers(workers)
}

/// A disk of random bytes, and text that compresses, backed up three times: the last snapshot lies in all packs.
fn filled(layout: Layout) -> (LocalStore, Vec<SnapshotId>, Disk) {
    let store = embedded_store();
    let repository = init_as(&store, layout);
    let mut disk = Disk::new(24 * MIB);
    let mut random = Random::new(7);
    random.fill(&mut disk.bytes[..21 * MIB]);
    let text = |at: usize| (at / 40_000 + at % 100) as u8;
    (21 * MIB..24 * MIB).for_each(|at| disk.bytes[at] = text(at));
    let mut made = vec![back_up(&repository, "web", &disk, false).snapshot];
    for _ in 0..2 {
        disk.changed.clear();
        for _ in 0..60 {
            let mut data = vec![0; 30_000];
            random.fill(&mut data);
            disk.write(random.index(disk.bytes.len() - data.len()), &data);
        }
        made.push(back_up(&repository, "web", &disk, true).snapshot);
    }
    (store, made, disk)
}

fn has_chunks(volume: &str) -> bool {
    volume.starts_with("pds-") || volume.contains(".c")
}

/// The same store with damages in header, frames and footer of packs, and in a recipe. One byte cannot be read.
fn damaged(store: &LocalStore) -> MortalStore {
    let damaged = embedded_store();
    let (mut packs, mut recipes) = (0, 0);
    let mut unreadable = None;
    copy_into(store, &damaged, |volume, name, body| {
        let size = body.len();
        if name.len() != 16 || volume.starts_with("cat-") {
            return true;
        }
        if !has_chunks(volume) {
            recipes += 1;
            if recipes == 1 {
                body[size / 2] ^= 0x40;
            }
            return true;
        }
        packs += 1;
        let places: Vec<usize> = match packs {
            // A header, and frames all over the pack.
            1 => (0..60).map(|part| 10 + part * (size / 61)).collect(),
            // The frame that two blocks share, and a frame of the next run.
            2 => vec![(256 << 10) - 1, 256 << 10, (512 << 10) - 1, (512 << 10) + 70_000],
            // A footer.
            3 => vec![size - 300],
            _ => vec![size / 2],
        };
        places.into_iter().filter(|at| *at < size).for_each(|at| body[at] ^= 0x40);
        if packs == 2 {
            unreadable = Some((name.to_vec(), size as u64 / 3));
        }
        true
    });
    assert!(packs >= 4 && recipes >= 2, "{packs} {recipes}");
    let store = MortalStore::new(damaged, i64::MAX);
    let (name, at) = unreadable.unwrap();
    store.break_byte(&name, at);
    store
}

/// All fields of a report, in order.
fn facts(report: &CheckReport) -> String {
    let mut report = report.clone();
    let mut verified: Vec<_> = report.verified_packs.drain().collect();
    verified.sort_unstable();
    format!("{report:?} {verified:?}")
}

/// Stages and steps in order.
#[derive(Default)]
struct StepLog {
    steps: Mutex<Vec<String>>,
    done: Mutex<u64>,
}

impl Progress for StepLog {
    fn stage(&self, stage: Stage, what: &str, total: u64) {
        self.steps.lock().unwrap().push(format!("{stage:?} {what} {total}"));
    }
    fn advance(&self, delta: u64) {
        self.steps.lock().unwrap().push(delta.to_string());
        *self.done.lock().unwrap() += delta;
    }
}

#[test]
fn a_check_finds_the_same_with_any_number_of_workers() {
    for layout in [Layout::Solo] {
        let (store, _, _) = filled(layout);
        for (store, is_clean) in [(MortalStore::new(store.clone(), i64::MAX), true), (damaged(&store), false)]
        {
            for slice in [ReadData::All, ReadData::No, ReadData::Slice { index: 1, of: 2 }] {
                let check = |workers| {
                    let steps = StepLog::default();
                    let repository = opened(&store, workers);
                    let report = repository.check(slice, &steps, &CancelFlag::new()).unwrap();
                    let lost = format!("{:?}", repository.lost_frames());
                    (facts(&report), steps.steps.into_inner().unwrap(), lost, report)
                };
                let (first, steps, lost, report) = check(1);
                assert_eq!(report.is_clean(), is_clean, "{first}");
                if !is_clean && matches!(slice, ReadData::All) {
                    assert!(report.damages.len() > 30, "{first}");
                }
                let is_whole = matches!(slice, ReadData::All);
                for workers in WORKERS.into_iter().filter(|&workers| is_whole || workers == 16) {
                    let other = check(workers);
                    assert_eq!((&other.0, &other.1, &other.2), (&first, &steps, &lost), "{workers} workers");
                }
            }
        }
    }
}

#[test]
fn a_verification_and_a_restore_find_the_same_with_any_number_of_workers() {
    for layout in [Layout::Solo] {
        let (store, made, disk) = filled(layout);
        for (store, is_clean) in [(MortalStore::new(store.clone(), i64::MAX), true), (damaged(&store), false)]
        {
            let mut first: Option<(Vec<String>, String, u64)> = None;
            for workers in WORKERS {
                let steps = StepLog::default();
                let verify = |snapshot: &SnapshotId| {
                    let repository = opened(&store, workers);
                    let report = repository.verify(*snapshot, &steps, &CancelFlag::new()).unwrap();
                    assert_eq!(report.is_clean(), is_clean, "{report:?}");
                    facts(&report)
                };
                let reports: Vec<String> = made[1..].iter().map(verify).collect();
                let target = MemoryTarget::default();
                let request = RestoreRequest::new(made[2]);
                let restored =
                    opened(&store, workers).restore(&request, &target, &Silent, &CancelFlag::new());
                let outcome = match restored {
                    Ok(_) => String::new(),
                    Err(error) => error.to_string(),
                };
                let bytes = if outcome.is_empty() { target.bytes() } else { Vec::new() };
                assert_eq!(is_clean, bytes == disk.bytes, "{outcome}");
                let all = (reports, outcome, steps.done.into_inner().unwrap());
                assert!(first.get_or_insert_with(|| all.clone()) == &all, "{workers}: {all:?}");
            }
        }
    }
}

/// A prune that rewrites leaves complete snapshots and the same index.
#[test]
fn a_prune_and_a_repair_do_the_same_with_any_number_of_workers() {
    for layout in LAYOUTS {
        let (store, made, disk) = filled(layout);
        let mut first: Option<String> = None;
        let workers = WORKERS.into_iter().filter(|&workers| layout == Layout::Solo || workers != 3);
        for workers in workers {
            let store = MortalStore::new(copy(&store), i64::MAX);
            let repository = opened(&store, workers);
            repository.forget(&made[..2]).unwrap();
            let pruned = repository.prune(&thorough(), &Silent, &CancelFlag::new()).unwrap();
            assert!(pruned.rewritten_packs >= 2, "{pruned:?}");
            assert_eq!(restore(&repository, made[2]), disk.bytes);
            let again = opened(&store, workers);
            let repaired = again.repair_index(&Silent, &CancelFlag::new()).unwrap();
            assert!(check(&again).is_clean());
            let all = format!("{pruned:?} {repaired:?}");
            assert_eq!(first.get_or_insert_with(|| all.clone()), &all, "{workers} workers");
        }
    }
}

type NamedOperation<'a> = (&'a str, &'a dyn Fn(&Repository, &CancelFlag) -> Result<()>);

#[test]
fn a_cancellation_or_an_error_in_the_middle_ends_the_operation() {
    let (store, made, _) = filled(Layout::Solo);
    let target = MemoryTarget::default();
    let operations: [NamedOperation<'_>; 4] = [
        ("check", &|repository, cancel| repository.check(ReadData::All, &Silent, cancel).map(drop)),
        ("verify", &|repository, cancel| repository.verify(made[2], &Silent, cancel).map(drop)),
        ("restore", &|repository, cancel| {
            repository.restore(&RestoreRequest::new(made[2]), &target, &Silent, cancel).map(drop)
        }),
        ("prune", &|repository, cancel| {
            repository.forget(&made[..2])?;
            repository.prune(&thorough(), &Silent, cancel).map(drop)
        }),
    ];
    for (name, operation) in operations {
        for workers in WORKERS {
            for answers in [1, 9] {
                // Only a prune changes the store.
                let store = if name == "prune" { copy(&store) } else { store.clone() };
                let cancelled = MortalStore::new(store.clone(), i64::MAX);
                let repository = opened(&cancelled, workers);
                let cancel = CancelFlag::new();
                let flag = cancel.clone();
                cancelled.after_answers(answers, move || flag.cancel());
                let ended = operation(&repository, &cancel);
                assert!(matches!(ended, Err(Error::Cancelled { .. })), "{name}, {workers}: {ended:?}");

                let killed = MortalStore::new(store, i64::MAX);
                let repository = opened(&killed, workers);
                let victim = killed.clone();
                killed.after_answers(answers, move || victim.kill());
                let ended = operation(&repository, &CancelFlag::new());
                let is_right = matches!(&ended, Err(error) if !error.is_corruption());
                assert!(is_right && !matches!(ended, Err(Error::Cancelled { .. })), "{name}: {ended:?}");
            }
        }
    }
}
