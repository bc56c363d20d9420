//! Forced accept: a group goes on from its last member by order.

use crate::harness::{Cluster, PATIENCE, eventually};
use bytes::Bytes;
use copal_proto::{administration::AcceptReport, messages};
use copal_volume::{PutOptions, ReadOptions, VolumeError, VolumeOptions, VolumeStore};
use std::time::Duration;

/// Time after which every bucket is sealed.
const LONG: Duration = Duration::from_secs(100);

fn order(
    cluster: &Cluster,
    group: u32,
    lose_since_ms: Option<u64>,
    dry_run: bool,
) -> Result<AcceptReport, String> {
    let client = cluster.client();
    let order = messages::ForceAccept { group, from: "data3".to_owned(), lose_since_ms, dry_run };
    let report = client.wait(client.cluster().administer(&order, PATIENCE));
    report.map_err(|error| error.to_string())
}

#[test]
fn a_force_accepted_group_continues_and_a_returning_member_adds_its_files() {
    let mut cluster = Cluster::start(3, 1);
    cluster.wait_for("healthy");
    let client = cluster.client();
    let vid = client.create_volume("", "mail", &VolumeOptions::default()).unwrap();
    let group = vid.birth_group();
    let put = |name: &'static [u8]| {
        let body = Bytes::from_static(b"body");
        client.put(vid, name, body, &PutOptions::default()).unwrap()
    };
    put(b"old");
    let refused = order(&cluster, group.0, None, true).unwrap_err();
    assert!(refused.contains("is in sync in group"), "{refused}");
    cluster.stop(2);
    cluster.wait_for("degraded");
    put(b"missed");
    cluster.stop(0);
    cluster.stop(1);
    cluster.run(2);
    cluster.wait_for("incomplete");
    // It reports its state a moment after its start.
    let mut found = None;
    eventually("it is known what is left", || match order(&cluster, group.0, None, true) {
        Ok(told) => {
            found = Some(told);
            true
        }
        Err(_) => false,
    });
    let found = found.unwrap();
    assert_eq!(found.away.len(), 2, "{found:?}");
    let since_ms = found.may_lack_since_ms;
    let refused = order(&cluster, group.0, None, false).unwrap_err();
    assert!(refused.contains("may be lost"), "{refused}");
    let refused = order(&cluster, group.0, Some(since_ms + 1), false).unwrap_err();
    assert!(refused.contains("may be lost"), "{refused}");
    let events = cluster.events();
    assert!(!events.contains("force_accept"), "nothing was ordered yet: {events}");
    let told = order(&cluster, group.0, Some(since_ms), false).unwrap();
    assert_eq!(told.whole, Some(true), "{told:?}");
    let events = cluster.events();
    assert!(events.contains("goes on from what data3 has, by order"), "{events}");
    cluster.wait_for("degraded");
    let read = |name: &[u8]| client.get(vid, name, 0..u64::MAX, &ReadOptions::default());
    assert_eq!(read(b"old").unwrap(), Bytes::from_static(b"body"));
    assert_eq!(read(b"missed").unwrap_err(), VolumeError::NotFound);
    // A member that returns resyncs first; then the operations that only it has are rolled forward.
    cluster.run(0);
    cluster.run(1);
    cluster.wait_for("healthy");
    put(b"new");
    cluster.clock.move_on(LONG);
    for at in 0..3 {
        let store = cluster.store_of(at);
        for name in [b"old".as_slice(), b"missed", b"new"] {
            eventually("all of it is everywhere", || store.stat(vid, name, None).is_ok());
        }
    }
    let refused = order(&cluster, group.0, Some(0), false).unwrap_err();
    assert!(refused.contains("is in sync in group"), "{refused}");
}
