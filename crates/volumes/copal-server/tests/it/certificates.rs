//! Certificates expire by the cluster's clock, removed clients lose all rights, and refusals name the reason.

use crate::harness::{Cluster, eventually};
use copal_proto::messages;
use copal_volume::{PutOptions, VolumeError, VolumeOptions, VolumeStore};
use std::time::Duration;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Symptom: a removed client kept its rights for ten more minutes. Cause: its permit was accepted until its
/// end. Fix: heartbeats report removed clients to data servers.
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

/// A machine whose clock is wrong by years can still connect and gets a refusal with a reason. A certificate
/// expires by the cluster's clock, and the refusal names the command to run.
#[test]
fn a_certificate_ends_by_the_clusters_clock_and_the_client_gets_advice() {
    let cluster = Cluster::start(3, 2);
    cluster.wait_for("healthy");
    let owner = cluster.client();
    let vid = owner.create_volume("", "mail", &VolumeOptions::default()).unwrap();
    let named = cluster.named_client("nightly", "mail", "read,create");
    assert_eq!(named.open_volume("mail").unwrap(), vid);
    // The clocks of all data servers advance by more than the lifetime of a certificate. The master's own
    // clock stays, and is outvoted.
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
