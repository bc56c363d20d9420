//! Servers with wrong clocks: writes go on, the status names them, and their seals do not outlive the wrong
//! clock.

use crate::harness::{Cluster, eventually};
use bytes::Bytes;
use copal_codec::crc32c;
use copal_data::{BodySource, GroupOperation, MemberStore, NewHead};
use copal_volume::{
    Clock, FileId, OpId, PutOptions, ReadOptions, SystemClock, VolumeId, VolumeOptions, VolumeStore,
    group::GroupId,
};
use std::collections::BTreeMap;

const HOUR: i64 = 3_600_000;
const YEAR: i64 = 365 * 24 * HOUR;

/// Symptom: every put ended with exit code 43 and every delete with 42 while one data server's clock was
/// ahead by 90 s, and `status` reported a healthy cluster. Cause: each member judged operations and sealed
/// buckets by its own clock. Fix: all members use the median of the clocks.
#[test]
fn writes_continue_beside_a_server_whose_clock_is_wrong_and_it_is_reported() {
    let cluster = Cluster::start(3, 4);
    cluster.wait_for("healthy");
    let client = cluster.client();
    let vid = client.create_volume("", "mail", &VolumeOptions::default()).unwrap();
    let body = Bytes::from_static(b"body");
    for (at, wrong_ms) in [90_000, YEAR, -HOUR].into_iter().enumerate() {
        cluster.servers[1].clock.be_wrong_by(wrong_ms);
        // Before the wrong clock is noticed, and after.
        let name = format!("early{at}");
        let early = client.put(vid, name.as_bytes(), body.clone(), &PutOptions::default()).unwrap();
        let told = cluster.wait_until("shut out", |status| status.servers[1].shut_out);
        assert!(told.sentence.contains("the clock of data2"), "{told:?}");
        assert!(!told.servers[0].clock_wrong && !told.servers[2].clock_wrong, "{told:?}");
        let name = format!("late{at}");
        client.put(vid, name.as_bytes(), body.clone(), &PutOptions::default()).unwrap();
        client.delete(vid, format!("early{at}").as_bytes(), early.fid).unwrap();
        client.get(vid, name.as_bytes(), 0..4, &ReadOptions::STRICT).unwrap();
        cluster.servers[1].clock.be_wrong_by(0);
        cluster.wait_for("healthy");
    }
    let events = cluster.events();
    assert!(events.contains("the clock of data2 is right again"), "{events}");
}

/// Symptoms: strict reads of a client with a fast clock showed creates that were refused later; and a client
/// that had drawn ids while the cluster's clock was ahead drew only refused ids afterwards.
/// Cause: the age of a create was judged by the client's own clock, and ids never go back.
/// Fix: ages are judged by the cluster's clock, and ids far ahead of it are drawn again. Here the clocks of
/// all servers are set, so the client's own is the wrong one.
#[test]
fn a_client_goes_by_the_clusters_clock_and_not_by_its_own() {
    let cluster = Cluster::start(3, 1);
    cluster.wait_for("healthy");
    let client = cluster.client().with_deadline(std::time::Duration::from_secs(5));
    let vid = client.create_volume("", "mail", &VolumeOptions::default()).unwrap();
    let set = |ms: i64| {
        for server in &cluster.servers {
            server.clock.be_wrong_by(ms);
        }
        eventually("the client goes by the clock of the servers", || {
            let own_ms = SystemClock.now_ms() as i64;
            (client.cluster().map().now_ms() as i64 - own_ms - ms).abs() < 30_000
        });
    };
    let body = Bytes::from_static(b"body");
    let put = |name: &str| client.put(vid, name.as_bytes(), body.clone(), &PutOptions::default());
    set(HOUR);
    eventually("servers go by it as well", || put("drawn an hour ahead").is_ok());
    set(-HOUR);
    eventually("ids are drawn by the clock of now", || put("drawn now").is_ok());
    // A third member is up and not in sync: it has two files under one name, and neither can be deleted yet.
    let (store, group) = (cluster.store_of(2), vid.birth_group());
    put("name").unwrap();
    store.note_damage(group).unwrap();
    apply(store, group, &create_of(vid, "name", 4, client.cluster().map().now_ms()));
    // Until that member has the file, it may still refuse it.
    for number in 5..10 {
        let begun = create_of(vid, "begun", number, client.cluster().map().now_ms());
        for at in 0..2 {
            apply(cluster.store_of(at), group, &begun);
        }
        let shown = client.stat(vid, b"begun", &ReadOptions::STRICT).unwrap();
        assert!(store.stat(vid, b"begun", None).is_ok(), "it was shown too early");
        client.delete(vid, b"begun", shown.fid).unwrap();
    }
}

/// The create of a file by a client that draws its ids now.
fn create_of(vid: VolumeId, name: &'static str, number: u64, now_ms: u64) -> GroupOperation {
    let body = Bytes::from_static(b"body");
    GroupOperation::Create {
        vid,
        name: Bytes::from_static(name.as_bytes()),
        head: NewHead {
            fid: FileId::new(now_ms, 1, number),
            op: OpId(FileId::new(now_ms, 2, number).0),
            size: body.len() as u64,
            crc32c: crc32c(0, &body),
            metadata: Bytes::new(),
        },
        body: BodySource::Attached(body),
    }
}

fn apply(store: &MemberStore, group: GroupId, operation: &GroupOperation) {
    eventually("the member takes it", || {
        let epoch = store.membership(group).unwrap().unwrap().epoch;
        store.apply(group, epoch, operation.clone()).unwrap().is_ok()
    });
}

/// Symptom: a cluster whose members had sealed buckets in the future took no writes after all clocks were
/// right again and all servers had been restarted. Cause: seals on disk were trusted for ever. Fix: the next
/// view ignores seals from the future.
#[test]
fn a_cluster_that_has_sealed_the_future_takes_writes_after_its_next_start() {
    let mut cluster = Cluster::start(3, 2);
    cluster.wait_for("healthy");
    let client = cluster.client();
    let vid = client.create_volume("", "mail", &VolumeOptions::default()).unwrap();
    let put =
        |name: &str| client.put(vid, name.as_bytes(), Bytes::from_static(b"body"), &PutOptions::default());
    put("before").unwrap();
    for at in 0..3 {
        cluster.stop(at);
        cluster.servers[at].clock.be_wrong_by(YEAR);
        // As an earlier release did, which knew no cluster clock.
        cluster.with_store_at_rest(at, |store| {
            store.seal_due(&BTreeMap::new()).unwrap();
            let group = store.membership(vid.birth_group()).unwrap().unwrap();
            assert!(group.seal.below.0 > 365 * 24 * 360);
        });
        cluster.servers[at].clock.be_wrong_by(0);
    }
    for at in 0..3 {
        cluster.run(at);
    }
    eventually("writes are taken", || put("after").is_ok());
    for at in 0..3 {
        let store = cluster.store_of(at);
        let sealed = |group| store.membership(group).unwrap().unwrap().seal.below;
        let all = [vid.birth_group(), GroupId(1), GroupId(2)];
        let now_s = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        assert!(all.into_iter().all(|group| sealed(group).0 < now_s / 10 + 10));
    }
}
