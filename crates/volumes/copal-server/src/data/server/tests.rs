//! Staging of uploaded pieces, and reads during a repair.

use super::*;
use crate::data::member_scene::{EPOCH, GROUP, MemberScene, NOW, fid, reply, vid};
use copal_proto::incarnation_prefix;

async fn scene() -> MemberScene {
    let known = |method, _| {
        assert_eq!(method, Method::Known);
        reply(&messages::KnownReply { known: true })
    };
    MemberScene::new((Role::Normal, Role::Normal), known).await
}

/// Stages a piece as `caller`. Returns the code of a refusal.
async fn stage(scene: &MemberScene, caller: &CallerPermit, fid: FileId, index: u32) -> Option<Code> {
    let bytes = Bytes::from_static(b"piece");
    let request = messages::PutPiece {
        group: GROUP.0,
        epoch: EPOCH.0,
        volume: vid().0,
        fid: Some(of_id(fid.0)),
        index,
        crc32c: crc32c(0, &bytes),
        bytes,
    };
    let staged = Arc::clone(&scene.data).stage(caller, request).await;
    staged.err().map(|refused| refused.code())
}

/// Symptom: a data server could stage a piece for a caller whose permit had expired since the call was
/// admitted, and no test noticed: only the store was tested. Fix: this test; the permit is checked again
/// where the piece is written.
#[tokio::test]
async fn a_piece_is_staged_only_while_its_callers_permit_lasts() {
    let scene = scene().await;
    for (index, until_ms, is_good) in [(0, NOW - 1, false), (1, NOW + 3_600_000, true)] {
        let caller =
            CallerPermit { permit: Some(messages::Permit { until_ms, ..messages::Permit::default() }) };
        let code = stage(&scene, &caller, fid(1, NOW), index).await;
        assert_eq!(code, (!is_good).then_some(Code::Denied));
        let there = scene.data.host.store.staged_piece(vid(), fid(1, NOW), index);
        assert_eq!(there.is_ok(), is_good, "{there:?}");
    }
}

/// No earlier test checked that a data server names its caller as the sender of a piece: only the store was
/// tested.
#[tokio::test]
async fn a_piece_belongs_to_the_upload_of_its_caller() {
    let scene = scene().await;
    let own = |number: u64| u64::from(incarnation_prefix("web")) << 32 | number;
    let named = |incarnation| CallerPermit {
        permit: Some(messages::Permit {
            client: "web".to_owned(),
            incarnation,
            until_ms: NOW + 3_600_000,
            ..messages::Permit::default()
        }),
    };
    let (first, second) = (FileId::new(NOW, 1, own(1)), FileId::new(NOW, 2, own(1)));
    // Busy: the upload of another client of the same name, or of one with all rights, may still be completed.
    for (caller, fid, code) in [
        (named(own(1)), first, None),
        (named(own(2)), first, Some(Code::Busy)),
        (CallerPermit::default(), first, Some(Code::Busy)),
        (CallerPermit::default(), second, None),
        (named(own(1)), second, Some(Code::Denied)),
        (named(own(1)), first, None),
    ] {
        assert_eq!(stage(&scene, &caller, fid, 0).await, code, "{caller:?}, {fid}");
    }
}

/// Symptom: a member in sync could answer "not found" for an acknowledged file: a repair dropped its damaged
/// rows between the look at the role and the read. Cause: the role was read before the rows only. Fix: after the
/// read, the member counts as in sync only if no repair began meanwhile.
#[tokio::test]
async fn a_miss_during_a_repair_is_not_authoritative() {
    let scene = scene().await;
    let read = |is_repaired: bool| {
        let host = Arc::clone(&scene.host);
        let read = move |store: &MemberStore| {
            if is_repaired {
                host.damage.begin_repair(GROUP);
                store.note_damage(GROUP)?;
                host.damage.end_repair(GROUP);
            }
            store.stat(vid(), b"a", None)
        };
        scene.data.read_in_epoch((GROUP.0, EPOCH.0), vid(), read)
    };
    assert_eq!(read(false).await.unwrap_err().code(), Code::NotFound);
    assert_eq!(read(true).await.unwrap_err().code(), Code::NotAuthoritative);
    // It was in role R from the beginning.
    assert_eq!(read(false).await.unwrap_err().code(), Code::NotAuthoritative);
}
