//! `init` in a store that no host holds for itself: several begin at once, and others are killed.

use crate::fleet_store::{FleetStore, fleet_store_or, is_elsewhere};
use copal_backup::*;
use copal_volume::{MemoryStore, StoreLimits};
use std::sync::{Arc, Barrier};
use zeroize::Zeroizing;

fn shared_store() -> FleetStore {
    fleet_store_or(|| {
        let limits = StoreLimits { leases: false, ..StoreLimits::default() };
        MemoryStore::new().into_replicated().with_limits(limits)
    })
}

fn options(password: &str) -> InitOptions {
    let unlock = Unlock::Password(Zeroizing::new(password.into()));
    InitOptions {
        argon2_memory_kib: 64,
        layout: Layout::Fleet { popular_millionths: 40_000 },
        ..InitOptions::new(unlock)
    }
}

fn begin(store: impl copal_volume::VolumeStore + 'static, password: &str) -> Result<Repository> {
    Repository::init(Arc::new(store), IndexHome::Memory, &options(password))
}

/// Symptom: two hosts began one repository at once, and both could report success. The backups of one of them were then
/// hidden behind the domain of the other. Or one host removed the catalog that the other had just finished. Cause: `init`
/// relied on a lease, which an object store does not give. Fix: one volume elects the domain, and nothing is removed.
#[test]
fn of_hosts_that_begin_at_once_one_makes_the_repository() {
    for _ in 0..if is_elsewhere() { 3 } else { 40 } {
        let store = shared_store();
        let hosts = Barrier::new(4);
        let made = std::thread::scope(|scope| {
            let begun: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        hosts.wait();
                        begin(store.another_host(), "right").map(|repository| repository.info().domain)
                    })
                })
                .collect();
            begun.into_iter().map(|host| host.join().unwrap()).collect::<Vec<_>>()
        });
        let won: Vec<_> = made.iter().filter_map(|made| made.as_ref().ok()).collect();
        assert_eq!(won.len(), 1, "{made:?}");
        assert!(
            made.iter().flat_map(|made| made.as_ref().err()).all(|error| error.code() == "repository_exists")
        );
        let opened = Repository::open(Arc::new(store), IndexHome::Memory, &options("right").unlock).unwrap();
        assert_eq!(opened.info().domain, *won[0]);
    }
}

/// An init that was killed at any step is continued by the next one with the same password.
#[test]
fn an_init_continues_one_that_was_killed() {
    let mut continued = 0;
    for steps in 0..8 {
        let store = shared_store();
        if begin(store.host_for(steps), "right").is_ok() {
            break;
        }
        match begin(store.another_host(), "right") {
            Ok(_) => continued += 1,
            // Killed behind its last step.
            Err(error) => assert_eq!(error.code(), "repository_exists", "{steps} steps"),
        }
        Repository::open(Arc::new(store), IndexHome::Memory, &options("right").unlock).unwrap();
    }
    assert!(continued >= 3, "only {continued} were continued");
}

#[test]
fn an_init_with_another_password_leaves_a_killed_one_alone() {
    let store = shared_store();
    assert!(begin(store.host_for(3), "right").is_err());
    let other = begin(store.clone(), "other").map(drop).unwrap_err();
    assert_eq!(other.code(), "wrong_password");
    begin(store, "right").unwrap();
}
