//! Negative controls of the model: known failures of other systems, weak points of the paper, and earlier
//! defects of this program. With the rule left out the search must find the loss, and with the rule nothing,
//! from the same beginning.

use super::backup::PeerAnswer;
use super::moves::ModelMove::{self, BacksUp, Checks, Forgets, GoesOn, Looks};
use super::prune::PruneMethod;
use super::search::search;
use super::setup::{ModelSetup, StepsLeft, WeakRule};
use crate::packs::pack::PackNumber;
use crate::rules::broken::Flaw;

const LIMIT: usize = 2_000_000;
/// Most searches with all rules have fewer states.
const TWIN_LIMIT: usize = 20_000;

fn must_fail(name: &str, setup: &ModelSetup) {
    let found = search(name, setup, LIMIT);
    let trace = found.violation.expect("the search finds the violation");
    println!("{trace}\n");
    let twin = ModelSetup { weak: None, flaws: &[], ..setup.clone() };
    let found = search(&format!("{name}, by all rules"), &twin, TWIN_LIMIT);
    if let Some(trace) = found.violation {
        panic!("{trace}");
    }
}

/// The moves of an undisturbed backup: it removes, looks, and stores if necessary.
pub(super) fn backup(disk: usize, stores: bool) -> Vec<ModelMove> {
    let mut moves = vec![BacksUp(0, 0, disk), GoesOn(0), GoesOn(0), Looks(0, PeerAnswer::New)];
    moves.extend(stores.then_some(GoesOn(0)));
    moves.push(GoesOn(0));
    moves
}

/// The moves of a backup that stores a popular chunk, its check by another host, and the forgetting of the
/// snapshot.
pub(super) fn popular_forgotten() -> Vec<ModelMove> {
    let mut moves = vec![BacksUp(0, 0, 0), GoesOn(0), GoesOn(0), Looks(0, PeerAnswer::StorePopular)];
    // It stores and enters the popular chunk, stores the rest, and publishes.
    moves.extend(vec![GoesOn(0); 4]);
    moves.extend([Checks(1, PackNumber(1)), Forgets(0, 0)]);
    // The space is freed too: until then its references count.
    moves.push(ModelMove::Prunes(0, 0, PruneMethod::Walk));
    moves.extend(vec![GoesOn(0); 7]);
    moves
}

/// Two snapshots that share a chunk; the first is forgotten.
pub(super) fn one_forgotten() -> Vec<ModelMove> {
    let first = backup(0, true).into_iter().chain(backup(1, true));
    first.chain([Forgets(0, 0)]).collect()
}

fn weak(weak: WeakRule, left: StepsLeft) -> ModelSetup {
    ModelSetup { weak: Some(weak), ..ModelSetup::new(left) }
}

/// A sweep that does not see the open session. The mark in the log would stop that session, so nothing would
/// be lost. Without the mark only open sessions protect a pack that is not entered yet.
fn sweep(weak: WeakRule) -> ModelSetup {
    let left = StepsLeft { backups: 1, popular: 1, sweeps: 1, ..StepsLeft::default() };
    ModelSetup { weak: Some(weak), ..flawed(&[Flaw::SweepsUnmarked], left) }
}

fn flawed(flaws: &'static [Flaw], left: StepsLeft) -> ModelSetup {
    ModelSetup { flaws, ..ModelSetup::new(left) }
}

/// PBS cb9814e331: a snapshot is made on the one that the walk reaches next, and that one is forgotten
/// before.
#[test]
fn a_neighbour_forgotten_during_a_walk_takes_chunks_of_the_next_snapshot() {
    let left = StepsLeft { backups: 2, forgets: 1, walks: 1, ..StepsLeft::default() };
    let setup = ModelSetup {
        flaws: &[Flaw::RemovesBesideSessions],
        before: backup(0, true),
        ..weak(WeakRule::NeighbourForgotten, left)
    };
    must_fail("neighbour forgotten", &setup);
}

/// The paper compares with neighbours first; a chunk may come back later.
#[test]
fn a_chunk_that_no_neighbour_has_may_be_in_another_snapshot() {
    let left = StepsLeft { backups: 3, forgets: 1, deletions: 1, ..StepsLeft::default() };
    must_fail("neighbours only", &weak(WeakRule::NeighboursOnly, left));
}

#[test]
fn a_snapshot_whose_vector_is_lost_still_refers_to_its_chunks() {
    let left = StepsLeft { backups: 2, forgets: 1, deletions: 1, vectors: 1, ..StepsLeft::default() };
    let setup = ModelSetup {
        // The disk changes back and forth, so places differ.
        disks: &[[1, 2], [2, 1]],
        ..weak(WeakRule::MissingVectorIsEmpty, left)
    };
    must_fail("missing vector is empty", &setup);
}

/// duplicacy#377: the first backup of a VM is in no log when logs are read, and its chunks exist when packs
/// are listed.
#[test]
fn a_first_backup_that_no_log_names_yet_loses_a_popular_chunk() {
    must_fail("first backup", &sweep(WeakRule::LogsBeforePacks));
}

/// PBS S3 series 2025-10/11: a listing does not show a new file yet.
#[test]
fn a_put_that_is_listed_late_ends_a_live_session() {
    must_fail("put seen late", &sweep(WeakRule::PlainLogs));
}

/// kopia behind an eventually consistent store: by the store's stamps a pack is older than any open session.
#[test]
fn a_store_clock_that_is_behind_makes_packs_of_a_session_look_old() {
    must_fail("time of the store", &sweep(WeakRule::TimeOfStore));
}

/// The same in the log: a store whose clock is behind stamps a snapshot with a time before that of its base.
#[test]
fn snapshots_are_ordered_by_the_log_and_not_by_the_stores_clock() {
    let left = StepsLeft { backups: 2, ..StepsLeft::default() };
    must_fail("order by stamps", &flawed(&[Flaw::TrustsStamps], left));
}

/// duplicacy#686: a deletion dies between chunks and snapshot.
#[test]
fn a_deletion_that_dies_between_chunks_and_snapshot_leaves_a_snapshot_without() {
    let left = StepsLeft { backups: 1, walks: 1, crashes: 1, ..StepsLeft::default() };
    must_fail("chunks before snapshot", &weak(WeakRule::ChunksBeforeSnapshot, left));
}

/// The paper's slow writer: its lease has expired, a repair has removed its chunks, and it publishes.
#[test]
fn a_slow_writer_that_publishes_after_it_was_ended_has_no_chunks() {
    let left = StepsLeft { backups: 1, repairs: 1, fences: 1, ..StepsLeft::default() };
    must_fail("slow writer", &flawed(&[Flaw::FencedPublishes], left));
}

#[test]
fn an_unchecked_popular_chunk_spoils_another_vm() {
    let left = StepsLeft { backups: 2, popular: 1, spoilt: 1, ..StepsLeft::default() };
    let setup = ModelSetup { vms: 2, ..flawed(&[Flaw::CountsUnchecked], left) };
    must_fail("popular before checked", &setup);
}

/// A malicious host: it stores other bytes under the id of a popular chunk and records that they are right.
#[test]
fn a_host_that_checks_its_own_packs_spoils_another_vm() {
    let left = StepsLeft { backups: 2, popular: 1, spoilt: 1, lies: 1, ..StepsLeft::default() };
    let setup = ModelSetup { vms: 2, ..flawed(&[Flaw::ChecksOwn], left) };
    must_fail("a host checks its own pack", &setup);
}

#[test]
fn a_frame_that_is_given_up_before_its_list_is_durable_is_not_found() {
    let left = StepsLeft { backups: 1, cleanups: 1, popular: 1, crashes: 1, ..StepsLeft::default() };
    must_fail("list not durable", &weak(WeakRule::ListNotDurable, left));
}

/// The paper: base chunks of a running backup are in no vector of an existing snapshot.
#[test]
fn a_dead_list_beside_a_session_takes_chunks_that_it_refers_to() {
    let left = StepsLeft { backups: 1, deletions: 1, ..StepsLeft::default() };
    let setup = ModelSetup {
        before: one_forgotten(),
        left: StepsLeft { backups: 3, forgets: 1, ..left },
        ..flawed(&[Flaw::RemovesBesideSessions], left)
    };
    must_fail("dead list beside a session", &setup);
}

/// BAK-23. Two walks know one frame of a chunk each: neither marks the frame that the other has just written.
#[test]
fn a_prune_beside_another_one_removes_its_rewritten_packs() {
    let left = StepsLeft { backups: 2, forgets: 1, walks: 2, ..StepsLeft::default() };
    let setup = ModelSetup { before: one_forgotten(), ..flawed(&[Flaw::RemovesBesideRemovals], left) };
    must_fail("prune beside prune", &setup);
}

/// BAK-23. A prune relies on a pack that a dead prune had listed for removal.
#[test]
fn a_prune_after_a_dead_one_relies_on_a_listed_pack() {
    let left = StepsLeft { backups: 2, forgets: 1, walks: 2, crashes: 1, ..StepsLeft::default() };
    let setup = ModelSetup { before: one_forgotten(), ..flawed(&[Flaw::CountsOnGoingPacks], left) };
    must_fail("prune behind a dead prune", &setup);
}

/// BAK-24. The writer enters a pack, another host checks it, and a third refers to it, while a sweep is about
/// to remove it.
#[test]
fn a_popular_pack_entered_late_is_referred_to_during_its_removal() {
    let left = StepsLeft { backups: 2, popular: 1, sweeps: 1, cleanups: 1, ..StepsLeft::default() };
    let setup = ModelSetup { before: backup(0, true), ..flawed(&[Flaw::SweepsUnmarked], left) };
    must_fail("popular pack entered late", &setup);
}

/// A delete reaches one server, which is down; the next backup finds the chunk on the others.
#[test]
fn a_pack_removed_without_a_list_is_lost_to_the_next_backup() {
    let left = StepsLeft { backups: 2, forgets: 1, walks: 1, crashes: 1, ..StepsLeft::default() };
    must_fail("removes unlisted", &weak(WeakRule::RemovesUnlisted, left));
}

#[test]
fn a_session_that_looks_before_it_removes_listed_packs_refers_to_them() {
    let left = StepsLeft { backups: 2, forgets: 1, walks: 1, crashes: 1, ..StepsLeft::default() };
    must_fail("looks first", &weak(WeakRule::LooksFirst, left));
}

#[test]
fn a_pack_removed_before_its_live_frames_are_copied_loses_them() {
    let left = StepsLeft { backups: 2, forgets: 1, walks: 1, ..StepsLeft::default() };
    must_fail("unlinks uncopied", &weak(WeakRule::UnlinksUncopied, left));
}

#[test]
fn a_repair_that_keeps_packs_of_a_dead_session_is_incomplete() {
    let left = StepsLeft { backups: 1, repairs: 1, fences: 1, crashes: 1, ..StepsLeft::default() };
    must_fail("orphans are kept", &weak(WeakRule::KeepsOrphans, left));
}

#[test]
fn popular_chunks_are_not_removed_with_the_vm_that_stored_them() {
    let left = StepsLeft { backups: 2, popular: 1, retirements: 1, ..StepsLeft::default() };
    let setup = ModelSetup { vms: 2, ..weak(WeakRule::RemovesShared, left) };
    must_fail("shared packs go with a machine", &setup);
}

/// A popular chunk that one VM needed.
fn unneeded(flaws: &'static [Flaw], left: StepsLeft) -> ModelSetup {
    ModelSetup {
        vms: 2,
        disks: &[[1, 2]],
        before: popular_forgotten(),
        left: StepsLeft {
            backups: left.backups + 1,
            forgets: left.forgets + 1,
            popular: 1,
            unneeded: 1,
            walks: left.walks + 1,
            ..left
        },
        ..flawed(flaws, left)
    }
}

/// BAK-27. A session opened after the condemnation, and its owner does not know of that.
#[test]
fn a_session_that_refers_to_a_condemned_pack_loses_it() {
    let left = StepsLeft { backups: 1, ..StepsLeft::default() };
    must_fail("refers to condemned", &unneeded(&[Flaw::RefersToCondemned], left));
}

/// BAK-27. A session looked before the condemnation, and publishes after the count.
#[test]
fn a_count_misses_the_references_of_an_open_session() {
    let left = StepsLeft { backups: 1, ..StepsLeft::default() };
    must_fail("counts beside sessions", &unneeded(&[Flaw::CountsBesideSessions], left));
}

/// BAK-27. A VM has stored a chunk for itself, and gave it up for the popular one.
#[test]
fn the_pack_of_a_moved_chunk_is_needed() {
    let left = StepsLeft { backups: 1, cleanups: 1, ..StepsLeft::default() };
    must_fail("counts without moved", &unneeded(&[Flaw::CountsWithoutMoved], left));
}

/// BAK-27. A clean-up has read the pack before it was condemned, and writes its record after the count.
#[test]
fn a_chunk_that_moves_to_a_condemned_pack_is_lost() {
    let left = StepsLeft { backups: 1, cleanups: 1, ..StepsLeft::default() };
    must_fail("moves to condemned", &unneeded(&[Flaw::MovesToCondemned], left));
}

/// BAK-27. The same, if no record in the VM's log makes the clean-up look again.
#[test]
fn a_count_without_a_record_is_missed_by_a_clean_up() {
    let left = StepsLeft { backups: 1, cleanups: 1, ..StepsLeft::default() };
    let setup = ModelSetup { weak: Some(WeakRule::CountsUnmarked), ..unneeded(&[], left) };
    must_fail("counts unmarked", &setup);
}

/// BAK-27. A removal has found no reference to the pack. Then a backup refers to it and publishes, and the
/// pack is condemned. A session that opens now has the reference from that base, and the base is forgotten
/// before the next count.
#[test]
fn a_forgotten_base_is_needed_by_its_session() {
    let mut before = popular_forgotten();
    before.extend([ModelMove::RemovesUnneeded(0), GoesOn(0)]);
    before.extend([BacksUp(1, 0, 0), GoesOn(1), GoesOn(1), Looks(1, PeerAnswer::Hit)]);
    // It publishes; then the Condemned record is in the log.
    before.extend([GoesOn(1), GoesOn(1), GoesOn(0)]);
    let left = StepsLeft { backups: 2, forgets: 1, ..StepsLeft::default() };
    let setup = ModelSetup { before, ..unneeded(&[Flaw::CountsPublishedOnly], left) };
    must_fail("counts published only", &setup);
}

/// A prune has recorded that no frame is dead. Before it deletes old lists, another prune records one.
#[test]
fn a_prune_that_deletes_all_lists_takes_the_one_in_force() {
    let left = StepsLeft { backups: 3, forgets: 2, walks: 1, deletions: 1, ..StepsLeft::default() };
    let setup = ModelSetup { before: one_forgotten(), ..weak(WeakRule::DropsAllLists, left) };
    must_fail("drops all lists", &setup);
}

/// A delete of a list comes about late, when another list has its name.
#[test]
fn a_list_whose_name_comes_back_is_deleted_late() {
    let left = StepsLeft { backups: 3, forgets: 2, walks: 2, deletions: 1, late: 1, ..StepsLeft::default() };
    let setup = ModelSetup { before: one_forgotten(), ..weak(WeakRule::ListNamesComeBack, left) };
    must_fail("names of lists come back", &setup);
}

/// A pack comes about again after its removal, a backup refers to it, and an earlier delete comes about.
#[test]
fn a_delete_that_means_a_name_takes_a_pack_that_came_again() {
    let left = StepsLeft { backups: 3, forgets: 1, walks: 1, late: 2, ..StepsLeft::default() };
    let setup = ModelSetup { before: one_forgotten(), ..weak(WeakRule::DeletesByName, left) };
    must_fail("deletes by name", &setup);
}
