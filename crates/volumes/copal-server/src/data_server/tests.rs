//! Pieces that clients upload.

use super::*;
use crate::member_scene::{EPOCH, GROUP, MemberScene, NOW, fid, told, vid};

/// Symptom: a data server could stage a piece for a caller whose permit had ended since the call was let through, and no test
/// noticed: only the store was tested so. Fix: this; the permit is looked at again where the piece is written.
#[tokio::test]
async fn a_piece_is_staged_only_while_its_callers_permit_lasts() {
    let known = |method, _| {
        assert_eq!(method, Method::Known);
        told(&messages::KnownReply { known: true })
    };
    let scene = MemberScene::new((Role::Normal, Role::Normal), known).await;
    let bytes = Bytes::from_static(b"piece");
    for (index, until_ms, is_good) in [(0, NOW - 1, false), (1, NOW + 3_600_000, true)] {
        let caller = Caller {
            permit: Some(messages::Permit {
                until_ms,
                ..messages::Permit::default()
            }),
        };
        let request = messages::PutPiece {
            group: GROUP.0,
            epoch: EPOCH.0,
            volume: vid().0,
            fid: Some(of_id(fid(1, NOW).0)),
            index,
            crc32c: crc32c(0, &bytes),
            bytes: bytes.clone(),
        };
        let staged = Arc::clone(&scene.data).stage(&caller, request).await;
        let code = staged.as_ref().err().map(|refused| refused.code());
        assert_eq!(code, (!is_good).then_some(Code::Denied), "{staged:?}");
        let there = scene.data.store.staged_piece(vid(), fid(1, NOW), index);
        assert_eq!(there.is_ok(), is_good, "{there:?}");
    }
}
