//! Repositories in an object store that were opened with the lists of that moment.

use crate::fleet_store::again_with_keys;
use crate::world::*;
use copal_backup::*;
use copal_remote::{ObjectCache, RemoteOptions, RemoteStore, RemoteUrl};
use copal_testkit::ObjectServer;
use std::sync::Arc;
use std::time::Duration;

/// A bucket, and clients of hosts.
struct Bucket {
    server: ObjectServer,
    url: RemoteUrl,
}

impl Bucket {
    fn new() -> Bucket {
        let server = ObjectServer::start();
        server.create_bucket("b");
        let address = format!("s3://b/p?endpoint={}&region=us-east-1", server.url());
        Bucket { server, url: RemoteUrl::parse(&address).unwrap().unwrap() }
    }

    fn host(&self) -> RemoteStore {
        RemoteStore::new(&self.url, &RemoteOptions::default()).unwrap()
    }

    /// Opens the repository on another host as a command does that reads once.
    fn command(&self) -> Repository {
        let found = Repository::find(Arc::new(self.host())).unwrap().unwrap();
        found.with_held_lists().open(IndexHome::Memory, &Unlock::Insecure).unwrap()
    }
}

fn text(seed: u64) -> Disk {
    let mut disk = Disk::new(2 << 20);
    Random::new(seed).text(&mut disk.bytes);
    disk
}

fn snapshots(repository: &Repository) -> usize {
    repository.list(None).unwrap().snapshots.len()
}

/// Symptom: `copal backup --wait` of a VM that another host backs up would wait for ever. Cause: the lists of its start
/// answered each look at the sessions of the VM. Fix: a look at sessions asks the store.
#[test]
fn a_command_that_waits_sees_the_work_of_others() {
    if again_with_keys("held_lists::a_command_that_waits_sees_the_work_of_others") {
        return;
    }
    let bucket = Bucket::new();
    let other = init_as(&bucket.host(), FLEET);
    back_up(&other, "web", &text(1), false);
    let (waiting, reading, writing) = (bucket.command(), bucket.command(), bucket.command());
    back_up(&other, "web", &text(2), true);
    for repository in [&waiting, &reading, &writing] {
        assert_eq!(snapshots(repository), 1, "the state of its start");
    }
    waiting.watch_vm("web", &mut LeaseWatch::new(), Duration::ZERO).unwrap();
    assert_eq!(snapshots(&waiting), 2);
    reading.look_again();
    assert_eq!(snapshots(&reading), 2);
    back_up(&writing, "web", &text(3), true);
    assert_eq!((snapshots(&writing), snapshots(&other)), (3, 3));
    assert!(check(&writing).is_clean());
}

/// A command that lists all snapshots asks for the names of the catalog once, for any number of VMs.
#[test]
fn one_list_serves_the_logs_of_all_vms() {
    if again_with_keys("held_lists::one_list_serves_the_logs_of_all_vms") {
        return;
    }
    let bucket = Bucket::new();
    let other = init_as(&bucket.host(), FLEET);
    for vm in ["a", "b", "c", "d", "e"] {
        back_up(&other, vm, &text(1), false);
    }
    let command = bucket.command();
    bucket.server.take_requests();
    assert_eq!(snapshots(&command), 5);
    let lists = bucket.server.count(|request| request.query.contains("list-type"));
    assert_eq!(lists, 0, "{:?}", bucket.server.requests());
    // One that looks again misses a freed snapshot, and shows no damage.
    let stale = bucket.command();
    let first = other.list(Some("a")).unwrap().snapshots[0].id;
    other.forget(&[first]).unwrap();
    other.delete(&Silent, &CancelFlag::new()).unwrap();
    stale.look_again();
    let listing = stale.list(None).unwrap();
    assert!(listing.damaged.is_empty() && listing.snapshots.iter().all(|one| one.damage.is_none()));
    assert_eq!(listing.snapshots.len(), 4);
}

/// A host without a cache lists all snapshots by few requests, however many there are, once a prune has run.
#[test]
fn a_prune_bundles_the_manifests_for_hosts_without_a_cache() {
    if again_with_keys("held_lists::a_prune_bundles_the_manifests_for_hosts_without_a_cache") {
        return;
    }
    let bucket = Bucket::new();
    let scratch = tempfile::tempdir().unwrap();
    let host = |name: &str| {
        let host = bucket.host();
        host.use_cache(ObjectCache::open(&scratch.path().join(name), 64 << 20).unwrap());
        host
    };
    let repository = init_as(&host("first"), FLEET);
    let mut disk = Disk::new(64 << 10);
    let (vms, days) = (8, 12);
    for day in 0..days {
        for vm in 0..vms {
            Random::new(day * vms + vm).text(&mut disk.bytes);
            back_up(&repository, &format!("vm{vm}"), &disk, false);
        }
    }
    let listed_by = |name: &str| {
        bucket.server.take_requests();
        let found = Repository::find(Arc::new(host(name))).unwrap().unwrap();
        let opened = found.with_held_lists().open(IndexHome::Memory, &Unlock::Insecure).unwrap();
        assert_eq!(snapshots(&opened) as u64, vms * days);
        bucket.server.take_requests().len() as u64
    };
    let before = listed_by("second");
    assert!(before > vms * days, "{before} requests");
    prune(&repository);
    let after = listed_by("third");
    assert!(after < 80, "{after} requests, {before} without a bundle");
    // Each later backup adds its own few.
    back_up(&repository, "vm0", &disk, false);
    assert!(check(&repository).is_clean());
}
