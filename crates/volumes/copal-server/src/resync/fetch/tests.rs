//! A donor whose bytes do not match the file's head: nothing is accepted.

use super::*;
use crate::data::member_scene::{MemberScene, NOW, fid, head, reply, vid};
use copal_volume::group::Role;
use prost::Message;

/// A part of a file as a donor sends it: its first byte, the file's head, the bytes.
type Part = (u64, messages::FileHead, Bytes);

async fn fetch(parts: Vec<Part>) -> Result<Option<GroupOperation>, FetchError> {
    let script = move |method, message: Bytes| {
        assert_eq!(method, Method::SyncFetch);
        let asked = messages::SyncFetch::decode(message).unwrap();
        let part = parts.iter().find(|(start, ..)| *start == asked.start);
        let (_, head, bytes) = part.ok_or_else(|| Status::new(Code::NotFound, "it was deleted"))?.clone();
        reply(&messages::SyncFetched { head: Some(head), bytes })
    };
    let scene = MemberScene::new((Role::Recovering, Role::Normal), script).await;
    let (source, name) = (scene.source().await, Bytes::from_static(b"a"));
    fetch_file(&scene.host, &source, vid(), &name, fid(1, NOW), true).await
}

fn is_corrupt(fetched: &Result<Option<GroupOperation>, FetchError>) -> bool {
    matches!(fetched, Err(FetchError::Local(refused)) if refused.code() == Code::Corrupt)
}

/// Symptom: a member could accept wrong bytes, and no test noticed: the checksum of a fetched file was
/// verified nowhere else. Fix: this test.
#[tokio::test]
async fn a_donors_bytes_are_compared_with_the_sum_in_the_head() {
    let body = Bytes::from(vec![7; PIECE_BYTES + 1000]);
    let (small, large) = (head(1, &body[..1000], NOW), head(1, &body, NOW));
    let at = PIECE_BYTES as u64;
    let right = fetch(vec![(0, small.clone(), body.slice(..1000))]).await;
    assert!(matches!(
        right,
        Ok(Some(GroupOperation::CopyCreate { body: BodySource::Attached(here), .. })) if here == body[..1000]
    ));
    let right = fetch(vec![
        (0, large.clone(), body.slice(..PIECE_BYTES)),
        (at, large.clone(), body.slice(PIECE_BYTES..)),
    ])
    .await;
    assert!(matches!(right, Ok(Some(GroupOperation::CopyCreate { body: BodySource::Staged, .. }))));
    let other = |len: usize| {
        let mut other = vec![7; len];
        other[len / 2] ^= 1;
        Bytes::from(other)
    };
    let wrong: [(&str, Vec<Part>); 7] = [
        ("one bit of a small file", vec![(0, small.clone(), other(1000))]),
        ("a file of another id", vec![(0, head(2, &body[..1000], NOW), body.slice(..1000))]),
        ("too few bytes", vec![(0, small.clone(), body.slice(..999))]),
        ("too many bytes", vec![(0, small, body.slice(..1001))]),
        (
            "one bit of the first piece",
            vec![(0, large.clone(), other(PIECE_BYTES)), (at, large.clone(), body.slice(PIECE_BYTES..))],
        ),
        (
            "one bit of the last piece",
            vec![(0, large.clone(), body.slice(..PIECE_BYTES)), (at, large.clone(), other(1000))],
        ),
        (
            "a piece that ends early",
            vec![(0, large.clone(), body.slice(..1000)), (1000, large, body.slice(1000..))],
        ),
    ];
    for (what, parts) in wrong {
        let fetched = fetch(parts).await;
        assert!(is_corrupt(&fetched), "{what}: {fetched:?}");
    }
    assert!(matches!(fetch(Vec::new()).await, Ok(None)), "it was deleted meanwhile");
}
