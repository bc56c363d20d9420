use super::*;
use crate::{
    monitoring::{OfMaster, Pages},
    traffic::Traffic,
};
use copal_client::client_tls;
use copal_master::{Pool, SqliteStore};

/// A candidate whose cluster has no server yet.
fn candidate() -> Arc<Candidate> {
    let authority = Authority::new("test").unwrap();
    let identity = authority.identity("master.copal").unwrap();
    let open = || -> Result<Box<dyn MetaStore>, MetaError> {
        let mut meta = SqliteStore::in_memory()?;
        let pool = Pool {
            replicas: 3,
            min_ack: 2,
            groups: 1,
        };
        meta.found([7; 16], pool)?;
        Ok(Box::new(meta))
    };
    Candidate::new(
        Box::new(open),
        MasterOptions::default(),
        authority,
        "127.0.0.1:1".to_owned(),
        Connections::new(client_tls(&identity).unwrap()),
    )
    .unwrap()
}

/// The value of a sample.
fn value(page: &str, sample: &str) -> Option<f64> {
    let line = page.lines().find_map(|line| line.strip_prefix(sample));
    line.and_then(|rest| rest.strip_prefix(' ')?.parse().ok())
}

#[tokio::test]
async fn a_monitor_sees_the_age_of_a_lease_that_ends_and_of_no_other() {
    let candidate = candidate();
    let pages = OfMaster {
        candidate: Arc::clone(&candidate),
        traffic: Arc::new(Traffic::default()),
    };
    let told = || {
        let page = pages.metrics();
        (
            value(&page, "copal_master_lease_age_seconds"),
            value(&page, "copal_master_lease_left_seconds"),
        )
    };
    assert_eq!(told(), (None, None), "it does not lead");
    assert!(candidate.try_to_lead().await.unwrap());
    assert_eq!(told(), (None, None), "a file that is this master's alone");
    // As over a database that others share.
    let lease = |asked| candidate.reigning.write().as_mut().unwrap().lease = Some(HeldLease::of(asked));
    let now = machine::now();
    lease(now);
    let (Some(age), Some(left)) = told() else {
        panic!("nothing is told of the lease");
    };
    assert!(age >= 0.0 && left <= 8.0 && left > 0.0, "{age} {left}");
    lease(now - Duration::from_secs(5));
    let (Some(age), Some(left)) = told() else {
        panic!("nothing is told of the lease");
    };
    assert!(age >= 5.0 && left <= 3.0, "{age} {left}");
    // It stops two seconds before the lease ends.
    lease(now - Duration::from_secs(8));
    assert_eq!(value(&pages.metrics(), "copal_master_leads"), Some(0.0));
    assert_eq!(told(), (None, None), "it leads no more");
}
