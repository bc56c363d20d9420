//! The search must find known faults: the paper's own mechanisms, and Copal's with one rule left out each.
//! From the same beginnings it must find nothing with all rules.

use crate::{
    moves::ModelMove::{
        self, Arrives, BecomesInSync, ClaimsInSync, ClientLearnsView, CopiesFrom, IsMarkedDown, IsReplaced,
        MemberLearnsView, PersistsInSync, Returns, Seals, Start,
    },
    search::{limit, search},
    setup::{ClientWork, ResyncRule, SearchSetup, WeakRule},
    state::CallMessage,
};
use ClientWork::Create;
use copal_volume::group::{CallKind, DiskId, Epoch};

const LIMIT: usize = 3_000_000;

fn must_fail(name: &str, invariant: &str, setup: &SearchSetup) {
    let found = search(name, setup, LIMIT);
    let trace = found.violation.expect("the search finds what is wrong");
    println!("{trace}\n");
    let last = trace.lines().next_back().unwrap_or_default();
    assert!(last.starts_with(invariant), "found another: {last}");
    let twin =
        SearchSetup { weak: None, sync: ResyncRule::Containment, min_ack: setup.min_ack, ..setup.clone() };
    let found = search(&format!("{name}, by all rules"), &twin, limit() / 2);
    if let Some(trace) = found.violation {
        panic!("{trace}");
    }
}

/// A create arrives at a disk.
fn create(client: usize, disk: u32, epoch: u64) -> ModelMove {
    Arrives(CallMessage { client, disk: DiskId(disk), epoch: Epoch(epoch), call: CallKind::Create })
}

/// CE1: one copy acknowledges after two failures, and its log is not passed on.
#[test]
fn the_papers_log_of_missed_operations_loses_a_file() {
    let setup = SearchSetup {
        failures: 2,
        min_ack: 1,
        sync: ResyncRule::MissedLog { cache: false },
        before: vec![Start(0), IsMarkedDown(0), IsMarkedDown(1)],
        ..SearchSetup::new(&[Create(0)])
    };
    must_fail("CE1, missed log", "I1", &setup);
}

/// CE2: a member that answers a repeated call from memory does not log it for the member that failed
/// meanwhile.
#[test]
fn the_papers_cache_of_answers_loses_a_file() {
    let setup = SearchSetup {
        failures: 1,
        sync: ResyncRule::MissedLog { cache: true },
        ..SearchSetup::new(&[Create(0)])
    };
    must_fail("CE2, cache of answers", "I1", &setup);
}

/// CE3: a client dies between two members.
#[test]
fn the_papers_members_differ_for_ever_after_a_client_died() {
    let setup = SearchSetup {
        seals: 1,
        sync: ResyncRule::MissedLog { cache: false },
        checks_equal: true,
        ..SearchSetup::new(&[Create(0)])
    };
    must_fail("CE3, client dies", "I2", &setup);
}

/// The first file is on the first member alone, which was down and accepts both.
fn two_files_at_one_member() -> Vec<ModelMove> {
    vec![
        Start(0),
        Start(1),
        create(0, 1, 1),
        IsMarkedDown(0),
        Returns(0),
        ClientLearnsView(1),
        create(1, 1, 3),
    ]
}

/// CE4: the member chooses one of the two while the other is being acknowledged.
#[test]
fn a_name_settled_before_its_seal_loses_a_file() {
    let setup = SearchSetup {
        failures: 1,
        weak: Some(WeakRule::SettleBeforeSeal),
        before: two_files_at_one_member(),
        ..SearchSetup::new(&[Create(0), Create(1)])
    };
    must_fail("CE4, settled early", "I1", &setup);
}

/// The member is up again, and the master does not know. A create completes without it in the view of its
/// request, which is later than its missed epoch. Found by the simulator, seed 586.
#[test]
fn a_member_that_asks_while_it_is_down_becomes_in_sync_without_a_file() {
    let setup = SearchSetup {
        failures: 2,
        weak: Some(WeakRule::CopiesWhileDown),
        before: vec![IsMarkedDown(0), IsMarkedDown(1), Returns(1)],
        ..SearchSetup::new(&[Create(0)])
    };
    must_fail("asked while away", "I1", &setup);
}

/// CE5: the member chooses one of the two, and a client is told that the other is complete.
#[test]
fn a_confirmation_after_the_seal_loses_a_file() {
    let setup = SearchSetup {
        failures: 1,
        seals: 1,
        weak: Some(WeakRule::ConfirmAfterSeal),
        before: two_files_at_one_member()
            .into_iter()
            .chain([create(1, 2, 3), MemberLearnsView(2), Seals(0), Seals(1)])
            .collect(),
        ..SearchSetup::new(&[Create(0), Create(1)])
    };
    must_fail("CE5, confirmed late", "I1", &setup);
}

#[test]
fn a_donor_of_an_older_view_lacks_a_file() {
    let setup =
        SearchSetup { failures: 1, weak: Some(WeakRule::DonorBehind), ..SearchSetup::new(&[Create(0)]) };
    must_fail("donor behind", "I1", &setup);
}

#[test]
fn a_member_with_two_files_of_a_name_hides_one() {
    let setup = SearchSetup {
        failures: 1,
        weak: Some(WeakRule::InSyncWithTwoFiles),
        before: two_files_at_one_member(),
        ..SearchSetup::new(&[Create(0), Create(1)])
    };
    must_fail("whole with two of a name", "I1", &setup);
}

#[test]
fn a_member_without_its_missed_operations_lacks_a_file() {
    let setup =
        SearchSetup { failures: 1, weak: Some(WeakRule::MissedNotSent), ..SearchSetup::new(&[Create(0)]) };
    must_fail("missed and not told", "I1", &setup);
}

/// Symptom: a member that was down while operations completed was in sync when it returned, without them.
/// Cause: the last in-sync member failed while no operation could complete, so it had missed nothing. Then
/// another member ended its resync in the same view, and operations could complete.
/// Fix: with the record that a member is in sync, the master records the members that are down.
#[test]
fn a_member_that_is_down_when_another_ends_its_resync_lacks_a_file() {
    let setup = SearchSetup {
        failures: 3,
        weak: Some(WeakRule::ReportRecordsNoMiss),
        before: vec![
            IsMarkedDown(0),
            Returns(0),
            IsMarkedDown(1),
            Returns(1),
            MemberLearnsView(0),
            MemberLearnsView(2),
            CopiesFrom(0, 2),
            IsMarkedDown(2),
            MemberLearnsView(0),
            PersistsInSync(0),
        ],
        ..SearchSetup::new(&[Create(0)])
    };
    must_fail("down at the end of another's resync", "I1", &setup);
}

/// The first file is on the first member alone, the second is acknowledged without it, and both are sealed.
#[test]
fn an_in_sync_member_that_yields_to_one_that_is_not_loses_a_file() {
    let setup = SearchSetup {
        failures: 1,
        seals: 1,
        weak: Some(WeakRule::InSyncYieldsToAny),
        before: vec![
            Start(0),
            Start(1),
            create(0, 1, 1),
            IsMarkedDown(0),
            ClientLearnsView(1),
            create(1, 2, 2),
            create(1, 3, 2),
            Returns(0),
        ],
        ..SearchSetup::new(&[Create(0), Create(1)])
    };
    must_fail("yields to any", "I1", &setup);
}

/// A new member accepts, from its client, a file whose sealed create was deleted before the member joined.
#[test]
fn the_seal_of_a_donor_is_copied() {
    let setup = SearchSetup {
        failures: 4,
        replacements: 1,
        seals: 1,
        min_ack: 1,
        weak: Some(WeakRule::SealNotCopied),
        before: two_files_at_one_member()
            .into_iter()
            .chain([MemberLearnsView(1), MemberLearnsView(2)])
            .chain([Seals(0), Seals(1), Seals(2)])
            .chain([
                CopiesFrom(0, 1),
                ModelMove::Settles(0, 0),
                PersistsInSync(0),
                BecomesInSync(0),
                ClaimsInSync(0),
            ])
            .chain([IsMarkedDown(1), IsReplaced(1)])
            .chain([
                MemberLearnsView(1),
                MemberLearnsView(2),
                CopiesFrom(1, 2),
                PersistsInSync(1),
                BecomesInSync(1),
            ])
            .chain([IsMarkedDown(0), IsMarkedDown(2)])
            .collect(),
        ..SearchSetup::new(&[Create(0), Create(1)])
    };
    must_fail("closing not taken over", "I1", &setup);
}
