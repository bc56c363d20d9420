//! Certificates end by the cluster's clock, clients that are taken away may do nothing any more, and who is
//! told so reads why.

use crate::harness::{Cluster, eventually};
use copal_proto::messages;
use copal_volume::{PutOptions, VolumeError, VolumeOptions, VolumeStore};
use std::time::Duration;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Symptom: a client that was taken away did for ten minutes more what it had been permitted. Cause: its
/// permit was believed until its end. Fix: data servers hear with the next heartbeat who was taken away.
#[test]
fn a_client_that_is_taken_away_is_refused_by_data_servers_though_its_permit_is_good() {
    let cluster = Cluster::start(3, 2);
    cluster.wait_for("healthy");
    let owner = cluster.client();
    let vid = owner.create_volume("", "mail", &VolumeOptions::default()).unwrap();
    let named = cluster.named_client("nightly", "mail", "read,create");
    assert_eq!(named.open_volume("mail").unwrap(), vid);
    let put = |name: &str| {
        named.put(vid, name.as_bytes(), bytes::Bytes::from_static(b"body"), &PutOptions::default())
    };
    put("before").unwrap();
    cluster.administer(&messages::RemoveClient { name: "nightly".to_owned() });
    eventually("it is refused", || matches!(put("after"), Err(VolumeError::Denied { .. })));
}

/// A machine whose clock is wrong by years is reached and told; a certificate ends when the cluster's clock
/// says so, and the client is told by name what to do.
#[test]
fn a_certificate_ends_by_the_clusters_clock_and_the_client_is_told_what_to_do() {
    let cluster = Cluster::start(3, 2);
    cluster.wait_for("healthy");
    let owner = cluster.client();
    let vid = owner.create_volume("", "mail", &VolumeOptions::default()).unwrap();
    let named = cluster.named_client("nightly", "mail", "read,create");
    assert_eq!(named.open_volume("mail").unwrap(), vid);
    // Clocks of all data servers go on by more than a certificate is good for; the master's own stays, and is
    // overruled.
    cluster.clock.move_on(DAY * 400);
    eventually("its certificate has ended", || {
        let request = messages::ShowStatus {};
        let called = named.wait(named.cluster().administer(&request, Duration::from_secs(5)));
        called.is_err_and(|error| {
            let told = copal_client::expired_certificate(&error).map(str::to_owned);
            told.is_some_and(|told| told.contains("`copal client renew nightly`"))
        })
    });
}
