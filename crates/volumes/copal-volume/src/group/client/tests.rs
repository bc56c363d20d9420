use super::*;
use crate::group::GroupId;

const N: Role = Role::Normal;
const R: Role = Role::Recovering;
const F: Role = Role::Failed;

fn view(epoch: u64, roles: &[Role]) -> View {
    View {
        group: GroupId(1),
        epoch: Epoch(epoch),
        members: (1..).map(DiskId).zip(roles.iter().copied()).collect(),
        replicas: 3,
        min_ack: 2,
    }
}

fn sent(actions: &[OperationAction]) -> Vec<(u32, CallKind)> {
    let sends = actions.iter().filter_map(|action| match action {
        OperationAction::Send { disk, call, .. } => Some((disk.0, *call)),
        _ => None,
    });
    sends.collect()
}

fn answer(disk: u32, epoch: u64, call: CallKind, answer: MemberAnswer) -> OperationEvent {
    OperationEvent::Answered { disk: DiskId(disk), epoch: Epoch(epoch), call, answer }
}

fn ok(disk: u32, epoch: u64, role: Role) -> OperationEvent {
    answer(disk, epoch, CallKind::Create, MemberAnswer::Ok { role })
}

fn outcome(actions: &[OperationAction]) -> Option<OperationOutcome> {
    actions.iter().find_map(|action| match action {
        OperationAction::Finish(outcome) => Some(outcome.clone()),
        _ => None,
    })
}

#[test]
fn it_holds_when_all_that_are_up_have_answered_in_one_epoch() {
    let (mut op, actions) = ClientOp::create(view(5, &[N, N, N]));
    let create = CallKind::Create;
    assert_eq!(sent(&actions), [(1, create), (2, create), (3, create)]);
    assert!(op.step(ok(1, 5, N)).is_empty());
    assert!(op.step(ok(3, 5, N)).is_empty(), "two are enough to keep it, and not to end it");
    assert_eq!(outcome(&op.step(ok(2, 5, N))), Some(OperationOutcome::Complete));
}

#[test]
fn a_member_that_went_away_is_waited_for_until_the_view_says_so() {
    let (mut op, _) = ClientOp::create(view(5, &[N, N, N]));
    op.step(ok(1, 5, N));
    op.step(ok(2, 5, N));
    let unreachable = OperationEvent::Unreachable { disk: DiskId(3), call: CallKind::Create };
    assert!(op.step(unreachable).contains(&OperationAction::Suspect(DiskId(3))));
    // The old answers do not count in the new view: members of it may not know the operation.
    let actions = op.step(OperationEvent::View(view(6, &[N, N, F])));
    assert_eq!(sent(&actions), [(1, CallKind::Confirm), (2, CallKind::Confirm)]);
    let confirmed = |disk| answer(disk, 6, CallKind::Confirm, MemberAnswer::Ok { role: N });
    assert!(op.step(confirmed(1)).is_empty());
    assert_eq!(outcome(&op.step(confirmed(2))), Some(OperationOutcome::Complete));
}

#[test]
fn an_answer_of_an_older_epoch_is_no_answer() {
    let (mut op, _) = ClientOp::create(view(5, &[N, N, F]));
    op.step(ok(1, 5, N));
    op.step(OperationEvent::View(view(6, &[N, N, R])));
    assert_eq!(sent(&op.step(ok(2, 5, N))), [(2, CallKind::Confirm)]);
    op.step(ok(3, 6, R));
    op.step(answer(1, 6, CallKind::Confirm, MemberAnswer::Ok { role: N }));
    assert_eq!(
        outcome(&op.step(answer(2, 6, CallKind::Confirm, MemberAnswer::Ok { role: N }))),
        Some(OperationOutcome::Complete)
    );
}

#[test]
fn without_an_in_sync_member_nothing_completes() {
    let (mut op, _) = ClientOp::create(view(5, &[R, R, F]));
    op.step(ok(1, 5, R));
    assert_eq!(outcome(&op.step(ok(2, 5, R))), None);
    // The member learns that it is in sync before the master does.
    assert_eq!(outcome(&op.step(ok(2, 5, N))), Some(OperationOutcome::Complete));
}

#[test]
fn a_taken_name_is_reported_once_no_member_can_bring_the_file_back() {
    let (mut op, _) = ClientOp::create(view(5, &[N, N, N]));
    op.step(ok(1, 5, N));
    let fid = FileId::new(1, 2, 3);
    let actions = op.step(answer(2, 5, CallKind::Create, MemberAnswer::Exists { fid }));
    let undo = CallKind::UndoCreate;
    assert_eq!(sent(&actions), [(1, undo), (2, undo), (3, undo)]);
    let undone = |disk| answer(disk, 5, CallKind::UndoCreate, MemberAnswer::Ok { role: N });
    assert_eq!(outcome(&op.step(undone(1))), None);
    assert_eq!(outcome(&op.step(undone(2))), None);
    let exists = OperationOutcome::Refused(OperationRefusal::Exists { fid });
    assert_eq!(outcome(&op.step(undone(3))), Some(exists));
}

#[test]
fn a_create_that_cannot_be_undone_is_unknown() {
    let (mut op, _) = ClientOp::create(view(5, &[N, F, F]));
    op.step(ok(1, 5, N));
    let actions = op.step(OperationEvent::Deadline);
    assert_eq!(sent(&actions), [(1, CallKind::UndoCreate)]);
    let lost = OperationEvent::Unreachable { disk: DiskId(1), call: CallKind::UndoCreate };
    assert!(matches!(op.step(lost)[..], [OperationAction::SendLater { .. }]));
    assert_eq!(outcome(&op.step(OperationEvent::GiveUp)), Some(OperationOutcome::Unknown));
}

#[test]
fn too_few_members_leave_nothing_behind() {
    let (mut op, _) = ClientOp::create(view(5, &[N, F, F]));
    op.step(ok(1, 5, N));
    op.step(OperationEvent::Deadline);
    let degraded = OperationOutcome::Refused(OperationRefusal::Degraded { have: 1, need: 2 });
    let actions = op.step(answer(1, 5, CallKind::UndoCreate, MemberAnswer::Ok { role: N }));
    assert_eq!(outcome(&actions), Some(degraded));
    let (mut op, actions) = ClientOp::create(view(5, &[F, F, F]));
    assert!(actions.is_empty());
    let none = OperationOutcome::Refused(OperationRefusal::Degraded { have: 0, need: 2 });
    assert_eq!(outcome(&op.step(OperationEvent::Deadline)), Some(none));
}

#[test]
fn a_member_that_asks_for_the_bytes_gets_them() {
    let (mut op, _) = ClientOp::create(view(5, &[N, N, F]));
    op.step(ok(1, 5, N));
    op.step(ok(2, 5, N));
    let (mut op, _) = ClientOp::create(view(5, &[N, N, N]));
    op.step(ok(1, 5, N));
    op.step(OperationEvent::View(view(6, &[N, N, F])));
    let actions = op.step(answer(1, 6, CallKind::Confirm, MemberAnswer::Missing));
    assert_eq!(sent(&actions), [(1, CallKind::Create)], "its disk was replaced meanwhile");
}

#[test]
fn a_late_answer_to_a_failed_create_is_undone_as_well() {
    let (mut op, _) = ClientOp::create(view(5, &[N, N, F]));
    let too_old = answer(1, 5, CallKind::Create, MemberAnswer::TooOld);
    assert_eq!(sent(&op.step(too_old)), [(1, CallKind::UndoCreate), (2, CallKind::UndoCreate)]);
    // The answer to the create arrives after that to the delete.
    assert!(op.step(ok(2, 5, N)).is_empty());
    let undone = |disk| answer(disk, 5, CallKind::UndoCreate, MemberAnswer::Ok { role: N });
    assert_eq!(outcome(&op.step(undone(1))), None);
    assert_eq!(outcome(&op.step(undone(2))), Some(OperationOutcome::Refused(OperationRefusal::TooOld)));
}

/// Symptom: each create that full disks refused left a delete and a journal row on each of them, until these
/// had filled the reserve. Cause: the first refusal started the delete before the other members had answered
/// that they have nothing.
/// Fix: a create without space is deleted only if some member has it, or may have it.
#[test]
fn a_create_that_all_refuse_for_lack_of_space_leaves_no_row() {
    let no_space = |disk| answer(disk, 5, CallKind::Create, MemberAnswer::NoSpace);
    let begin = || {
        let (mut op, _) = ClientOp::create(view(5, &[N, N, N]));
        assert!(op.step(no_space(1)).is_empty());
        op
    };
    let refused = Some(OperationOutcome::Refused(OperationRefusal::NoSpace));
    let mut op = begin();
    assert!(op.step(no_space(3)).is_empty());
    let all = op.step(no_space(2));
    assert_eq!((outcome(&all), sent(&all).len()), (refused.clone(), 0));
    // A member that has it, may have it, or is another process now is a reason to delete it.
    let everywhere = [(1, CallKind::UndoCreate), (2, CallKind::UndoCreate), (3, CallKind::UndoCreate)];
    let unreachable = OperationEvent::Unreachable { disk: DiskId(2), call: CallKind::Create };
    let reasons =
        [ok(2, 5, N), OperationEvent::Deadline, OperationEvent::View(view(6, &[N, N, N])), unreachable];
    for reason in reasons {
        let mut op = begin();
        let actions = op.step(reason.clone());
        assert_eq!(sent(&actions), everywhere, "{reason:?}");
        let epoch = op.view().epoch.0;
        let undone = |disk| answer(disk, epoch, CallKind::UndoCreate, MemberAnswer::Ok { role: N });
        assert_eq!(outcome(&op.step(undone(1))), None);
        assert_eq!(outcome(&op.step(undone(2))), None);
        assert_eq!(outcome(&op.step(undone(3))), refused);
    }
    // One member has it already: all get the delete at once.
    let (mut op, _) = ClientOp::create(view(5, &[N, N, N]));
    op.step(ok(2, 5, N));
    assert_eq!(sent(&op.step(no_space(1))), everywhere);
}

#[test]
fn a_delete_that_some_may_have_is_unknown_at_the_deadline() {
    let (mut op, actions) = ClientOp::delete(view(5, &[N, N, F]));
    assert_eq!(sent(&actions), [(1, CallKind::Delete), (2, CallKind::Delete)]);
    let deleted = |disk| answer(disk, 5, CallKind::Delete, MemberAnswer::Ok { role: N });
    op.step(deleted(1));
    let mut late = op.clone();
    assert_eq!(outcome(&late.step(OperationEvent::Deadline)), Some(OperationOutcome::Unknown));
    assert_eq!(outcome(&op.step(deleted(2))), Some(OperationOutcome::Complete));
}

/// Symptom: a delete that one member had accepted and another found too old was reported as one that never
/// happens. Cause: every refusal except the deadline counted as final. Fix: an operation that a member has
/// accepted spreads, so its outcome is unknown.
#[test]
fn a_delete_that_one_member_accepted_is_not_final_by_anothers_refusal() {
    let (mut op, _) = ClientOp::delete(view(5, &[N, N, F]));
    op.step(answer(1, 5, CallKind::Delete, MemberAnswer::Ok { role: N }));
    let mut gone = op.clone();
    let too_old = op.step(answer(2, 5, CallKind::Delete, MemberAnswer::TooOld));
    assert_eq!(outcome(&too_old), Some(OperationOutcome::Unknown));
    let removed = gone.step(answer(2, 5, CallKind::Delete, MemberAnswer::VolumeGone));
    assert_eq!(outcome(&removed), Some(OperationOutcome::Refused(OperationRefusal::VolumeGone)));
}

/// Symptom: a create was refused for good, but existed on a member that had returned meanwhile. Cause: it was
/// deleted where it had been sent, and this member had copied it from one of those before. Fix: after a
/// change of the view all members that are up delete it, like any delete.
#[test]
fn a_failed_create_is_undone_on_members_that_may_have_copied_it() {
    let (mut op, _) = ClientOp::create(view(5, &[F, N, N]));
    op.step(ok(2, 5, N));
    let actions = op.step(OperationEvent::Deadline);
    assert_eq!(sent(&actions), [(2, CallKind::UndoCreate), (3, CallKind::UndoCreate)]);
    let actions = op.step(OperationEvent::View(view(6, &[R, N, N])));
    let undo = CallKind::UndoCreate;
    assert_eq!(sent(&actions), [(1, undo), (2, undo), (3, undo)]);
    let undone = |disk, epoch, role| answer(disk, epoch, undo, MemberAnswer::Ok { role });
    let actions = op.step(undone(2, 5, N));
    assert_eq!(sent(&actions), [(2, undo)], "an answer of an older epoch");
    op.step(undone(2, 6, N));
    assert!(op.step(undone(3, 6, N)).is_empty());
    let degraded = OperationOutcome::Refused(OperationRefusal::Degraded { have: 1, need: 2 });
    assert_eq!(outcome(&op.step(undone(1, 6, R))), Some(degraded));
}

/// After a change of the view, as many members must delete the file as an operation needs. Otherwise a member
/// that is down may bring it back alone.
#[test]
fn an_undo_over_a_change_of_the_view_needs_as_many_members_as_a_file() {
    let (mut op, _) = ClientOp::create(view(5, &[N, N, F]));
    op.step(ok(1, 5, N));
    op.step(OperationEvent::View(view(6, &[N, F, F])));
    assert_eq!(sent(&op.step(OperationEvent::Deadline)), [(1, CallKind::UndoCreate)]);
    let undone = |disk, epoch| answer(disk, epoch, CallKind::UndoCreate, MemberAnswer::Ok { role: N });
    assert!(op.step(undone(1, 6)).is_empty());
    let actions = op.step(OperationEvent::View(view(7, &[N, N, F])));
    assert_eq!(sent(&actions), [(1, CallKind::UndoCreate), (2, CallKind::UndoCreate)]);
    op.step(undone(2, 7));
    let degraded = OperationOutcome::Refused(OperationRefusal::Degraded { have: 0, need: 2 });
    assert_eq!(outcome(&op.step(undone(1, 7))), Some(degraded));
}

/// Symptom: a create was refused, and its slow first call was accepted later. Cause: one refusal counted for
/// all calls. Fix: a member that was called twice deletes the file.
#[test]
fn a_member_that_was_called_twice_deletes_the_file_it_refused_once() {
    let (mut op, _) = ClientOp::create(view(5, &[N, N, F]));
    let unreachable = OperationEvent::Unreachable { disk: DiskId(2), call: CallKind::Create };
    op.step(unreachable);
    let fid = FileId::new(1, 2, 3);
    let actions = op.step(answer(2, 5, CallKind::Create, MemberAnswer::Exists { fid }));
    assert_eq!(sent(&actions), [(1, CallKind::UndoCreate), (2, CallKind::UndoCreate)]);
}

/// Symptom: a create was refused for good, but existed on a member that had refused it. Cause: the member had
/// sealed the create's bucket, and copied the create from another one before the delete arrived. Fix: all
/// members that are up delete it.
#[test]
fn a_member_that_refused_a_create_of_another_undoes_it_as_well() {
    let (mut op, _) = ClientOp::create(view(5, &[F, N, N]));
    op.step(ok(2, 5, N));
    let actions = op.step(answer(3, 5, CallKind::Create, MemberAnswer::TooOld));
    assert_eq!(sent(&actions), [(2, CallKind::UndoCreate), (3, CallKind::UndoCreate)]);
    // A create that no member has accepted needs no delete.
    let (mut untaken, _) = ClientOp::create(view(5, &[F, F, N]));
    let too_old = untaken.step(answer(3, 5, CallKind::Create, MemberAnswer::TooOld));
    assert_eq!(outcome(&too_old), Some(OperationOutcome::Refused(OperationRefusal::TooOld)));
}

/// Symptom: a create that no member had received was reported as one with an unknown outcome. Cause: every
/// called member counted as one that may have it. Fix: before the deadline the caller reports the members to
/// which it has sent any call.
#[test]
fn an_operation_sent_to_no_member_did_not_happen() {
    let reached = |disks: &[u32]| disks.iter().map(|disk| DiskId(*disk)).collect();
    for start in [ClientOp::create, ClientOp::delete] {
        let (mut op, _) = start(view(5, &[N, N, N]));
        op.step(OperationEvent::Unreachable { disk: DiskId(1), call: CallKind::Create });
        op.only_reached(&reached(&[]));
        let degraded = OperationOutcome::Refused(OperationRefusal::Degraded { have: 0, need: 2 });
        assert_eq!(outcome(&op.step(OperationEvent::Deadline)), Some(degraded));
        let (mut op, _) = start(view(5, &[N, N, N]));
        op.only_reached(&reached(&[2]));
        op.step(OperationEvent::Deadline);
        let ended = op.step(OperationEvent::GiveUp);
        assert!(matches!(outcome(&ended), None | Some(OperationOutcome::Unknown)), "{ended:?}");
    }
}

#[test]
fn an_id_that_another_file_has_ends_a_create_and_a_delete() {
    let other = |disk, call| answer(disk, 5, call, MemberAnswer::OtherFile);
    let (mut op, _) = ClientOp::delete(view(5, &[N, N, N]));
    let refused = Some(OperationOutcome::Refused(OperationRefusal::OtherFile));
    assert_eq!(outcome(&op.step(other(1, CallKind::Delete))), refused);
    // Each member answers that it does not have the create, or deletes it.
    let (mut op, _) = ClientOp::create(view(5, &[N, N, N]));
    op.step(ok(1, 5, N));
    assert_eq!(outcome(&op.step(other(2, CallKind::Create))), None);
    op.step(other(2, CallKind::UndoCreate));
    op.step(answer(1, 5, CallKind::UndoCreate, MemberAnswer::Ok { role: N }));
    assert_eq!(outcome(&op.step(other(3, CallKind::UndoCreate))), refused);
}
