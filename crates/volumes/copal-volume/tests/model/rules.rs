//! Copal's rules hold in every order of events.

use crate::{
    moves::ModelMove::{
        BecomesInSync, CopiesFrom, IsMarkedDown, MemberLearnsView, PersistsInSync, Returns, Start,
    },
    search::{limit, search},
    setup::{ClientWork, SearchSetup},
};
use ClientWork::{Create, Delete};

fn must_hold(name: &str, setup: &SearchSetup) -> bool {
    let found = search(name, setup, limit());
    if let Some(trace) = found.violation {
        panic!("{name}:\n{trace}");
    }
    assert!(found.was_complete, "{name}: no create ever held");
    found.is_exhaustive
}

#[test]
fn one_create_and_one_failure() {
    let setup = SearchSetup { failures: 1, ..SearchSetup::new(&[Create(0)]) };
    let found = search("a create, a failure", &setup, 4_000_000);
    assert_eq!(found.violation, None);
    assert!(found.is_exhaustive && found.was_complete);
}

#[test]
fn members_become_equal_once_all_buckets_are_sealed() {
    let setup = SearchSetup { seals: 1, checks_equal: true, ..SearchSetup::new(&[Create(0), Create(1)]) };
    must_hold("two creates, clients die", &setup);
    let setup = SearchSetup { seals: 2, checks_equal: true, ..SearchSetup::new(&[Create(0), Delete(0)]) };
    must_hold("a create and a delete, clients die", &setup);
}

#[test]
fn a_create_that_is_abandoned() {
    let setup = SearchSetup { failures: 1, deadlines: 1, ..SearchSetup::new(&[Create(0)]) };
    must_hold("given up, a failure", &setup);
    let setup = SearchSetup { seals: 1, deadlines: 1, lost_answers: 1, ..SearchSetup::new(&[Create(0)]) };
    must_hold("given up, closed, an answer lost", &setup);
    let setup = SearchSetup {
        failures: 1,
        seals: 1,
        deadlines: 1,
        lost_answers: 1,
        ..SearchSetup::new(&[Create(0)])
    };
    must_hold("given up, closed, a failure, an answer lost", &setup);
}

#[test]
fn two_creators_of_one_name() {
    let setup = SearchSetup::new(&[Create(0), Create(1)]);
    must_hold("two creates", &setup);
    let setup = SearchSetup { failures: 1, seals: 1, ..SearchSetup::new(&[Create(0), Create(1)]) };
    must_hold("two creates, a failure", &setup);
}

#[test]
fn a_name_that_is_used_again() {
    let setup = SearchSetup::new(&[Create(0), Delete(0), Create(1)]);
    must_hold("create, delete, create", &setup);
    let setup = SearchSetup { failures: 1, seals: 1, ..SearchSetup::new(&[Create(0), Delete(0), Create(1)]) };
    must_hold("create, delete, create, a failure", &setup);
}

#[test]
fn a_second_failure_and_a_new_disk() {
    let setup = SearchSetup { failures: 2, ..SearchSetup::new(&[Create(0)]) };
    must_hold("a create, two failures", &setup);
    let setup =
        SearchSetup { failures: 2, replacements: 1, seals: 1, ..SearchSetup::new(&[Create(0), Delete(0)]) };
    must_hold("create and delete, two failures, a new disk", &setup);
}

#[test]
fn all_members_start_again() {
    let setup = SearchSetup { restarts: 3, ..SearchSetup::new(&[Create(0)]) };
    must_hold("a create, three restarts", &setup);
    let setup = SearchSetup { restarts: 3, seals: 1, ..SearchSetup::new(&[Create(1), Create(0)]) };
    must_hold("two creates, three restarts", &setup);
}

/// The only in-sync member fails after another one completed its resync; the master's view does not have that
/// yet.
#[test]
fn no_in_sync_member_is_left() {
    let setup = SearchSetup {
        failures: 4,
        before: vec![
            IsMarkedDown(0),
            IsMarkedDown(1),
            Returns(0),
            MemberLearnsView(0),
            MemberLearnsView(2),
            CopiesFrom(0, 2),
            PersistsInSync(0),
            BecomesInSync(0),
            IsMarkedDown(2),
            Returns(1),
            Start(0),
        ],
        ..SearchSetup::new(&[Create(0)])
    };
    must_hold("no whole member is left", &setup);
    let setup = SearchSetup {
        failures: 3,
        before: vec![Start(0), IsMarkedDown(0), IsMarkedDown(1), IsMarkedDown(2)],
        ..SearchSetup::new(&[Create(0)])
    };
    must_hold("all are away", &setup);
}
