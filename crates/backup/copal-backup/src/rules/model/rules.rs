//! Searches with all rules: nothing is lost in any order of steps.

use super::controls::{backup, one_forgotten, popular_forgotten};
use super::search::{limit, search};
use super::setup::{ModelSetup, StepsLeft};

fn holds(name: &str, setup: &ModelSetup) {
    holds_within(name, setup, limit());
}

fn holds_within(name: &str, setup: &ModelSetup, limit: usize) {
    let found = search(name, setup, limit);
    if let Some(trace) = found.violation {
        panic!("{name}:\n{trace}");
    }
    assert!(found.was_published, "{name}: the search sees no second snapshot");
}

#[test]
fn backups_beside_deletions_and_walks() {
    let left = StepsLeft {
        backups: 3,
        forgets: 2,
        deletions: 1,
        walks: 1,
        fences: 1,
        crashes: 1,
        lost: 1,
        vectors: 1,
        ..StepsLeft::default()
    };
    holds("backups beside deletions and walks", &ModelSetup::new(left));
}

#[test]
fn prunes_beside_prunes() {
    let left = StepsLeft {
        backups: 3,
        forgets: 1,
        deletions: 1,
        walks: 2,
        repairs: 1,
        crashes: 2,
        ..StepsLeft::default()
    };
    holds("prunes beside prunes", &ModelSetup::new(left));
}

#[test]
fn repairs_after_dead_writers() {
    let left = StepsLeft {
        backups: 3,
        forgets: 1,
        repairs: 2,
        fences: 2,
        crashes: 1,
        lost: 1,
        ..StepsLeft::default()
    };
    holds("repairs after dead writers", &ModelSetup::new(left));
}

#[test]
fn popular_chunks_of_two_vms() {
    let left = StepsLeft {
        backups: 3,
        popular: 2,
        spoilt: 1,
        lies: 1,
        sweeps: 1,
        fences: 1,
        crashes: 1,
        lost: 1,
        ..StepsLeft::default()
    };
    let setup = ModelSetup { vms: 2, before: backup(0, true), ..ModelSetup::new(left) };
    holds("popular chunks of two VMs", &setup);
}

#[test]
fn cleanups_beside_all_other_operations() {
    let left = StepsLeft {
        backups: 3,
        forgets: 1,
        deletions: 1,
        walks: 1,
        cleanups: 2,
        sweeps: 1,
        popular: 1,
        crashes: 1,
        lost: 1,
        ..StepsLeft::default()
    };
    holds("clean-ups beside all other operations", &ModelSetup::new(left));
}

#[test]
fn removal_of_a_vm() {
    let left = StepsLeft {
        backups: 3,
        forgets: 1,
        deletions: 1,
        retirements: 1,
        sweeps: 1,
        popular: 1,
        fences: 1,
        crashes: 1,
        ..StepsLeft::default()
    };
    let setup = ModelSetup { vms: 2, before: backup(0, true), ..ModelSetup::new(left) };
    holds("removal of a VM", &setup);
}

#[test]
fn unneeded_popular_packs() {
    let left = StepsLeft {
        backups: 3,
        forgets: 2,
        deletions: 1,
        walks: 1,
        cleanups: 1,
        unneeded: 2,
        popular: 1,
        fences: 1,
        crashes: 1,
        lost: 1,
        ..StepsLeft::default()
    };
    let setup = ModelSetup { vms: 2, disks: &[[1, 2]], before: popular_forgotten(), ..ModelSetup::new(left) };
    holds("unneeded popular packs", &setup);
}

/// In an object store a request whose answer is lost may take effect at any later time, also after another try.
#[test]
fn creates_and_deletes_that_come_about_late() {
    let left = StepsLeft {
        backups: 4,
        forgets: 1,
        deletions: 1,
        walks: 1,
        fences: 1,
        crashes: 1,
        late: 1,
        ..StepsLeft::default()
    };
    let setup = ModelSetup { before: one_forgotten(), ..ModelSetup::new(left) };
    holds_within("creates and deletes that come about late", &setup, limit() / 2);
}

#[test]
fn repairs_beside_packs_that_come_late() {
    let left = StepsLeft {
        backups: 3,
        forgets: 2,
        walks: 1,
        repairs: 1,
        fences: 1,
        late: 2,
        ..StepsLeft::default()
    };
    holds_within("repairs beside packs that come late", &ModelSetup::new(left), limit() / 2);
}

#[test]
fn popular_packs_that_come_and_go_late() {
    let left = StepsLeft {
        backups: 3,
        forgets: 2,
        walks: 1,
        cleanups: 1,
        sweeps: 1,
        unneeded: 1,
        popular: 1,
        fences: 1,
        crashes: 1,
        late: 1,
        ..StepsLeft::default()
    };
    let setup = ModelSetup { vms: 2, disks: &[[1, 2]], before: popular_forgotten(), ..ModelSetup::new(left) };
    holds_within("popular packs that come and go late", &setup, limit() / 2);
}
