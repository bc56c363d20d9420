//! Tests of leases: a live holder keeps its sessions.

use super::removals::LateStore;
use super::{Flaw, with};
use crate::catalog::heartbeats::list_heartbeats;
use crate::catalog::log::LogName;
use crate::catalog::record::Record;
use crate::request::Layout;
use crate::request::open_session::Holder;
use crate::sessions::lease::watch::LeaseWatch;
use crate::world::*;
use crate::{CancelFlag, Error, IndexHome, InitOptions, Repository, Silent};
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

const SESSION: [u8; 16] = [5; 16];

fn fleet() -> (Repository, Repository, Uuid) {
    let store = LateStore::new();
    let options = InitOptions { layout: Layout::Fleet { popular_millionths: 0 }, ..insecure() };
    let first = Repository::init(Arc::new(store.clone()), IndexHome::Memory, &options).unwrap();
    let vm = first.parts().directory().find_or_add("web").unwrap();
    (first, store.open().behave_as_another_process(), vm.uuid)
}

fn open_as(repository: &Repository, vm: Uuid, record: &Record) {
    let next = repository.parts().vm_state(vm).unwrap().next_number;
    let appended = repository.parts().catalog().append(LogName::Vm(vm), next, record);
    appended.unwrap();
}

/// Whether a holder that lives for an hour keeps its session, and a dead one loses it ten minutes later.
fn holds() -> bool {
    let (first, second, vm) = fleet();
    let heartbeats = first.parts().locks().heartbeat_thread();
    let every = Duration::from_micros(200);
    let beating = heartbeats.begin_every(every, first.parts().catalog(), &Holder::default()).unwrap();
    let (base, holder) = (None, beating.holder());
    let session = SESSION;
    open_as(&first, vm, &Record::OpenHeld { session, base, holder });
    let newest = || {
        let heartbeats = list_heartbeats(second.parts().catalog().files()).unwrap();
        heartbeats.iter().map(|beat| beat.number).max().unwrap_or(0)
    };
    let mut watch = LeaseWatch::new();
    let mut is_open = |now| {
        let open = second.watch_vm("web", &mut watch, Duration::from_secs(now)).unwrap();
        open.iter().any(|open| open.session.0 == SESSION)
    };
    let mut kept = true;
    for look in 0..6 {
        kept &= is_open(look * 599);
        let seen = newest();
        while newest() == seen {
            std::thread::yield_now();
        }
    }
    kept &= is_open(3600);
    // The holder ends with its session open. Its clean end deletes the heartbeats, which counts as silence
    // too.
    drop(beating);
    kept &= is_open(3600) && is_open(4199);
    kept && !is_open(4200)
}

#[test]
fn a_holder_that_lives_keeps_its_session_and_a_silent_one_loses_it() {
    assert!(holds());
    assert!(!with(&[Flaw::FencesAtOnce], holds), "the flaw is not noticed");
}

/// A session of a program without heartbeats is left to an operator.
#[test]
fn a_session_without_a_holder_is_ended_only_by_an_operator() {
    let (first, second, vm) = fleet();
    open_as(&first, vm, &Record::Open { session: SESSION, base: None });
    let mut watch = LeaseWatch::new();
    for now in [0, 600, 1_000_000] {
        let now = Duration::from_secs(now);
        assert!(second.watch_leases(&mut watch, now).unwrap().is_empty());
        assert_eq!(second.watch_vm("web", &mut watch, now).unwrap().len(), 1);
    }
    let backup = || second.backup(request("web", &Disk::new(1 << 20), false), &Silent, &CancelFlag::new());
    let refused = backup().unwrap_err();
    assert!(matches!(refused, Error::SessionOpen { .. }));
    assert!(refused.to_string().contains("copal sessions fence web"), "{refused}");
    assert_eq!(second.fence_sessions("web").unwrap(), 1);
    backup().unwrap();
}

/// Symptom: no test would have noticed an observer that waits ten minutes although the holder's process has
/// died on this host.
#[test]
fn a_session_of_a_process_that_died_on_this_host_is_ended_at_the_first_look() {
    let (first, second, vm) = fleet();
    let (holder, file) = crate::sessions::lease::process::dead_holder();
    let (session, base) = (SESSION, None);
    open_as(&first, vm, &Record::OpenHeld { session, base, holder });
    let ended = second.watch_leases(&mut LeaseWatch::new(), Duration::ZERO).unwrap();
    std::fs::remove_file(file).unwrap();
    assert_eq!(ended.len(), 1);
    assert_eq!(first.parts().vm_state(vm).unwrap().holder_of(&SESSION), None);
}

/// Prevents this: behind a checkpoint a session has no known holder, so no observer ends it.
#[test]
fn a_checkpoint_keeps_the_holder_of_a_session() {
    let (first, second, vm) = fleet();
    let (session, base) = (SESSION, None);
    let holder = crate::request::open_session::HolderId([7; 16]);
    open_as(&first, vm, &Record::OpenHeld { session, base, holder });
    for _ in 0..80 {
        open_as(&first, vm, &Record::Deleted { snapshots: vec![] });
    }
    let state = second.parts().vm_state(vm).unwrap();
    assert_eq!(state.holder_of(&SESSION), Some(holder));
    let mut watch = LeaseWatch::new();
    let mut fenced = |now| second.watch_leases(&mut watch, Duration::from_secs(now)).unwrap().len();
    assert_eq!((fenced(0), fenced(600)), (0, 1));
    assert_eq!(first.parts().vm_state(vm).unwrap().holder_of(&SESSION), None);
}
