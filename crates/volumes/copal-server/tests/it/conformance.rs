//! A cluster with three real servers passes the conformance suite of volume stores.

use crate::harness::Cluster;
use copal_volume::{VolumeStore, conformance};
use std::sync::atomic::{AtomicUsize, Ordering};

#[test]
fn a_cluster_keeps_every_promise_of_a_volume_store() {
    let cluster = Cluster::start(3, 8);
    cluster.wait_for("healthy");
    let client = cluster.client();
    let count = AtomicUsize::new(0);
    // Each case has its own root.
    conformance::run(&|| {
        let path = format!("case{}", count.fetch_add(1, Ordering::Relaxed));
        let store = client.rooted(&path).unwrap();
        store.make_root().unwrap();
        Box::new(store) as Box<dyn VolumeStore>
    });
}
