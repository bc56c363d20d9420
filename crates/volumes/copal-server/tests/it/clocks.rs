//! Servers whose clock is wrong: writes go on, it is said, and what such a clock has done does not outlive it.

use crate::harness::{Cluster, eventually};
use bytes::Bytes;
use copal_volume::{PutOptions, ReadOptions, VolumeOptions, VolumeStore, group::GroupId};
use std::collections::BTreeMap;

const HOUR: i64 = 3_600_000;
const YEAR: i64 = 365 * 24 * HOUR;

/// Symptom: every put ended with 43 and every delete with 42 while one data server's clock was ahead by 90 s, and `status` said
/// healthy. Cause: each member judged operations, and sealed time, by its own clock. Fix: all go by the median of the clocks.
#[test]
fn writes_go_on_beside_a_server_whose_clock_is_wrong_and_it_is_said() {
    let cluster = Cluster::start(3, 4);
    cluster.wait_for("healthy");
    let client = cluster.client();
    let vid = client
        .create_volume("", "mail", &VolumeOptions::default())
        .unwrap();
    let body = Bytes::from_static(b"body");
    for (at, wrong_ms) in [90_000, YEAR, -HOUR].into_iter().enumerate() {
        cluster.servers[1].clock.be_wrong_by(wrong_ms);
        // Before anybody has noticed, and after.
        let name = format!("early{at}");
        let early = client
            .put(vid, name.as_bytes(), body.clone(), &PutOptions::default())
            .unwrap();
        let told = cluster.wait_until("shut out", |told| told["servers"][1]["shut_out"] == true);
        assert!(
            told["sentence"].as_str().unwrap().contains("the clock of data2"),
            "{told}"
        );
        assert_eq!(
            (
                &told["servers"][0]["clock_wrong"],
                &told["servers"][2]["clock_wrong"]
            ),
            (&false.into(), &false.into())
        );
        let name = format!("late{at}");
        client
            .put(vid, name.as_bytes(), body.clone(), &PutOptions::default())
            .unwrap();
        client
            .delete(vid, format!("early{at}").as_bytes(), early.fid)
            .unwrap();
        client
            .get(vid, name.as_bytes(), 0..4, &ReadOptions::STRICT)
            .unwrap();
        cluster.servers[1].clock.be_wrong_by(0);
        cluster.wait_for("healthy");
    }
    let events = cluster.ask("events", "0").to_string();
    assert!(events.contains("the clock of data2 is right again"), "{events}");
}

/// Symptom: a cluster whose members had sealed the future took no writes after all clocks were right again, and all servers were
/// started anew. Cause: seals on the disk were believed for ever. Fix: the next view ignores those from the future.
#[test]
fn a_cluster_that_has_sealed_the_future_takes_writes_after_its_next_start() {
    let mut cluster = Cluster::start(3, 2);
    cluster.wait_for("healthy");
    let client = cluster.client();
    let vid = client
        .create_volume("", "mail", &VolumeOptions::default())
        .unwrap();
    let put = |name: &str| {
        client.put(
            vid,
            name.as_bytes(),
            Bytes::from_static(b"body"),
            &PutOptions::default(),
        )
    };
    put("before").unwrap();
    for at in 0..3 {
        cluster.stop(at);
        cluster.servers[at].clock.be_wrong_by(YEAR);
        // As a release did that knew no cluster's clock.
        cluster.with_store_at_rest(at, |store| {
            store.close_due(&BTreeMap::new()).unwrap();
            let group = store.membership(vid.birth_group()).unwrap().unwrap();
            assert!(group.closing.below.0 > 365 * 24 * 360);
        });
        cluster.servers[at].clock.be_wrong_by(0);
    }
    for at in 0..3 {
        cluster.run(at);
    }
    eventually("writes are taken", || put("after").is_ok());
    for at in 0..3 {
        let store = cluster.store_of(at);
        let sealed = |group| store.membership(group).unwrap().unwrap().closing.below;
        let all = [vid.birth_group(), GroupId(1), GroupId(2)];
        let now_s = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap()
            .as_secs();
        assert!(all.into_iter().all(|group| sealed(group).0 < now_s / 10 + 10));
    }
}
