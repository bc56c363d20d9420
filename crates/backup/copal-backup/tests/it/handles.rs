//! Several handles of one repository in one process.

use crate::world::*;
use copal_backup::*;
use std::sync::Mutex;

/// Runs something through another handle when an operation reaches a stage.
struct Meanwhile<F> {
    at: Stage,
    what: Mutex<Option<F>>,
}

impl<F: FnOnce() + Send> Meanwhile<F> {
    fn new(at: Stage, what: F) -> Meanwhile<F> {
        Meanwhile { at, what: Mutex::new(Some(what)) }
    }
}

impl<F: FnOnce() + Send> Progress for Meanwhile<F> {
    fn stage(&self, stage: Stage, _: &str, _: u64) {
        if stage == self.at
            && let Some(what) = self.what.lock().unwrap().take()
        {
            what();
        }
    }
}

fn noise(seed: u64, size: usize) -> Disk {
    let mut disk = Disk::new(size);
    Random::new(seed).text(&mut disk.bytes);
    disk
}

/// Symptom: a prune through one handle removed packs that a backup through another, published meanwhile,
/// referred to. Cause: the lock between readers and removers of packs belonged to the handle. Fix: it belongs
/// to the repository, and all handles of the process share it.
#[test]
fn a_prune_by_another_handle_removes_no_pack_of_a_backup() {
    let store = embedded_store();
    let disk = noise(7, 6 << 20);
    let repository = init(&store);
    let first = back_up(&repository, "web", &disk, false).snapshot;
    repository.forget(&[first]).unwrap();
    let mut met = None;
    let meanwhile = Meanwhile::new(Stage::Sweep, || {
        met = Some(try_back_up(&open(&store), "db", &disk, false));
    });
    repository.prune(&thorough(), &meanwhile, &CancelFlag::new()).unwrap();
    let error = met.expect("the prune swept").unwrap_err();
    assert_eq!(error.exit_code(), 11, "{error}");
    // And in the other order.
    let mut met = None;
    let meanwhile = Meanwhile::new(Stage::Publish, || {
        met = Some(open(&store).prune(&thorough(), &Silent, &CancelFlag::new()));
    });
    let request = request("db", &disk, false);
    let second = repository.backup(request, &meanwhile, &CancelFlag::new()).unwrap();
    assert_eq!(met.expect("the backup published").unwrap_err().exit_code(), 11);
    assert!(restore(&open(&store), second.snapshot) == disk.bytes);
}

/// Symptom: a handle that was open while another one pruned referred to removed packs. Cause: it never looked
/// up again which packs exist. Fix: a handle brings its index up to date after another one has added or
/// removed packs.
#[test]
fn a_handle_notices_changes_by_another_one() {
    let store = embedded_store();
    let disk = noise(9, 3 << 20);
    let one = init(&store);
    let other = open(&store);
    let first = back_up(&one, "web", &disk, false);
    let shared = back_up(&other, "db", &disk, false);
    assert_eq!(shared.counts.new_chunks, 0, "the other handle knows the new packs");
    one.forget(&[first.snapshot, shared.snapshot]).unwrap();
    prune(&one);
    let again = back_up(&other, "db", &disk, false);
    assert!(again.counts.new_chunks > 0, "and that the packs are removed");
    assert!(restore(&one, again.snapshot) == disk.bytes);
    assert!(restore(&other, again.snapshot) == disk.bytes);
    assert!(check(&one).is_clean());
}

/// A VM has one writer across all handles: a second one would end the session of the first.
#[test]
fn one_vm_has_one_writer_through_all_handles() {
    let store = embedded_store();
    let disk = noise(10, 1 << 20);
    let one = init(&store);
    let other = open(&store);
    let mut met = None;
    let meanwhile = Meanwhile::new(Stage::Publish, || {
        met = Some(try_back_up(&other, "web", &disk, false).map(|summary| summary.snapshot));
    });
    let request = request("web", &disk, false);
    let summary = one.backup(request, &meanwhile, &CancelFlag::new()).unwrap();
    assert_eq!(met.expect("the backup published").unwrap_err().exit_code(), 11);
    assert!(restore(&other, summary.snapshot) == disk.bytes);
}
