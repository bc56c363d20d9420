//! The same histories on files of a host: kills, and power losses that keep any subset of unsynced bytes and
//! names.
//!
//! The lives run one after another on the recording simulated directory (`hostfs::sim_directory`); the last
//! one is cut at every event. Negative controls omit each sync on its own.
//!
//! `COPAL_CRASH_SEEDS` and `COPAL_CRASH_FROM` as in `crashes`.

use super::{
    check::{check, outcome},
    number,
    script::{HistoryPlan, HistoryRunner, Random},
    stores::SimWorld,
};
use crate::{
    BackendKind, MkfsOptions, OpenOptions, Store, StoreOpenError,
    backend::hostfs::{
        HostFiles,
        sim_directory::{IgnoredSync, SimContents, SimDirectory},
    },
    flaw::BrokenRule,
    format::superblock::BACKEND_HOSTFS,
    open::{self, OpenOverrides, StoreBackend},
    state::entropy::EntropySource,
};
use copal_device::Device;
use std::sync::Arc;

/// Histories in `make test`.
const SEEDS: u64 = 300;
/// States tried at each cut.
const DRAWS: u64 = 4;

fn make(sim: &SimDirectory) -> Result<(), StoreOpenError> {
    let files: Arc<dyn Device> = HostFiles::on(Box::new(sim.clone()), false);
    let options = MkfsOptions { journal_bytes: Some(16 * 4096), ..MkfsOptions::default() };
    open::mkfs::mkfs(&files, &options, &mut EntropySource::Seed(Random::new(1)), BACKEND_HOSTFS)
}

fn open(sim: &SimDirectory, tuning: OpenOverrides) -> Result<Store, StoreOpenError> {
    let files = HostFiles::on(Box::new(sim.clone()), false);
    let (inner, report) = open::open(StoreBackend::Files(files), &OpenOptions::default(), tuning)?;
    if let Some(stream) = report.damaged_streams.first() {
        let what = format!("stream {} after a crash", stream.0);
        return Err(StoreOpenError::Damaged { what });
    }
    Ok(Store { inner })
}

/// A new store with everything synced.
fn empty() -> SimContents {
    let sim = SimDirectory::new(SimContents::default(), IgnoredSync::No);
    make(&sim).unwrap();
    sim.survivors(sim.step(), &mut || true)
}

/// A subset for a draw: nothing, everything, or each part with some chance.
fn keep(draw: u64, random: &mut Random) -> impl FnMut() -> bool + use<> {
    let chance = match draw {
        0 => 0,
        1 => 16,
        _ => 1 + random.below(15),
    };
    let mut own = Random::new(random.below(1 << 40));
    move || own.below(16) < chance
}

/// Runs one history; returns the number of tried states, or the first violation.
fn run(seed: u64, ignored: IgnoredSync) -> Result<usize, String> {
    let plan = HistoryPlan {
        seed,
        broken: BrokenRule::default(),
        states: 0,
        busy: false,
        backend: BackendKind::Hostfs,
    };
    let random = Random::new(seed.wrapping_mul(0x1234_5677).wrapping_add(991));
    let sim = SimDirectory::new(empty(), ignored);
    let tuning = OpenOverrides {
        entropy: EntropySource::Seed(Random::new(seed + 7)),
        stream_extent_pages: Some(3),
        short_chain_pages: true,
        ..OpenOverrides::default()
    };
    let store = open(&sim, tuning).map_err(|error| format!("first open: {error}"))?;
    let mut runner = HistoryRunner::new(&plan, random, SimWorld::Files(sim.clone()), store);
    let mut sim = sim;
    let lives = 1 + runner.random.below(3);
    for life in 0..lives {
        for _ in 0..3 + runner.random.below(12) {
            runner.action();
        }
        runner.poll();
        if life + 1 == lives {
            break;
        }
        let step = runner.world.step();
        runner.forget_awaited();
        // A kill loses nothing, but unsynced data stays unsynced: the simulation continues with its history.
        let is_kill = runner.random.one_in(2);
        if !is_kill {
            let draw = runner.random.below(5);
            let mut keep = keep(draw, &mut runner.random);
            sim = SimDirectory::new(sim.survivors(step, &mut keep), ignored);
        }
        let tuning = runner.tuning();
        let store = open(&sim, tuning).map_err(|error| format!("after a crash: {error}"))?;
        runner.world = SimWorld::Files(sim.clone());
        runner.continue_with(store, step, !is_kill)?;
    }
    enumerate(&mut runner, &sim)
}

/// Power losses at every event of the last life, each followed by another one right after the recovery.
fn enumerate(runner: &mut HistoryRunner<'_>, sim: &SimDirectory) -> Result<usize, String> {
    let mut tried = 0;
    let last = sim.step();
    for step in runner.start..=last {
        // After a write the subsets are the same as before the sync that follows it.
        if step < last && !sim.is_sync(step) && !runner.random.one_in(4) {
            continue;
        }
        for draw in 0..DRAWS {
            let mut keep = keep(draw, &mut runner.random);
            let survivors = sim.survivors(step, &mut keep);
            let what = |violation: String| format!("{violation}; power loss at {step}, draw {draw}");
            let survivor = SimDirectory::new(survivors, IgnoredSync::No);
            let tuning = runner.tuning();
            let store = open(&survivor, tuning).map_err(|error| what(error.to_string()))?;
            let first = outcome(&store);
            check(&store, &first, &runner.model, step, true).map_err(what)?;
            drop(store);
            // A second power loss: the changes of recovery are durable, or are repeated with the same result.
            let end = survivor.step();
            let draw_again = runner.random.below(4);
            let mut keep = super::files::keep(draw_again, &mut runner.random);
            let again = SimDirectory::new(survivor.survivors(end, &mut keep), IgnoredSync::No);
            let tuning = runner.tuning();
            let store = open(&again, tuning).map_err(|error| what(format!("OBJ-30: {error}")))?;
            if outcome(&store) != first {
                return Err(what("OBJ-30: another outcome the second time".into()));
            }
            tried += 1;
        }
    }
    Ok(tried)
}

#[test]
fn no_power_loss_takes_acknowledged_data_from_files() {
    let first = number("COPAL_CRASH_FROM", 0);
    let mut states = 0;
    for seed in first..first + number("COPAL_CRASH_SEEDS", SEEDS) {
        match run(seed, IgnoredSync::No) {
            Ok(tried) => states += tried,
            Err(violation) => panic!("seed {seed}: {violation}"),
        }
    }
    assert!(states > 1000, "only {states} states were tried");
}

fn is_caught(ignored: IgnoredSync) -> bool {
    (0..200).any(|seed| !matches!(std::panic::catch_unwind(|| run(seed, ignored)), Ok(Ok(_))))
}

#[test]
fn files_that_are_not_synced_are_caught() {
    assert!(is_caught(IgnoredSync::Data));
}

#[test]
fn names_of_objects_that_are_not_synced_are_caught() {
    assert!(is_caught(IgnoredSync::Objects));
}

/// Whether every power loss inside or after `mkfs` leaves no store, or the complete store once `mkfs` has
/// returned.
fn making_survives(ignored: IgnoredSync) -> bool {
    let sim = SimDirectory::new(SimContents::default(), ignored);
    make(&sim).unwrap();
    let mut random = Random::new(5);
    let last = sim.step();
    (0..=last).all(|step| {
        (0..DRAWS).all(|draw| {
            let mut keep = keep(draw, &mut random);
            let survivor = SimDirectory::new(sim.survivors(step, &mut keep), IgnoredSync::No);
            match open(&survivor, OpenOverrides::default()) {
                Ok(_) => true,
                Err(StoreOpenError::NotAStore | StoreOpenError::Damaged { .. }) => step < last,
                Err(error) => panic!("step {step}: {error}"),
            }
        })
    })
}

#[test]
fn a_store_of_files_exists_once_it_was_made() {
    assert!(making_survives(IgnoredSync::No));
    assert!(!making_survives(IgnoredSync::Store), "the name of `store` has to be synced");
    assert!(!making_survives(IgnoredSync::Data));
}
