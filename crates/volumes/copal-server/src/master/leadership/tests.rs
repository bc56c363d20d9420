use super::*;
use crate::monitoring::tests::{normalised, traffic};
use crate::monitoring::{MasterMetrics, MonitorPages};
use crate::net::listener::CallListener;
use crate::net::traffic::TrafficCounters;
use copal_client::{client_tls, name_of_server, server_tls};
use copal_master::{PoolConfig, ServerRow, ServerState, SqliteStore};
use copal_volume::group::Incarnation;
use prost::Message;

/// A candidate of a cluster with these servers.
fn candidate(
    authority: CertificateAuthority,
    servers: Vec<ServerRow>,
    options: MasterOptions,
) -> Arc<MasterCandidate> {
    let identity = authority.identity("master.copal").unwrap();
    let open = move || -> Result<Box<dyn MetaStore>, MetaError> {
        let mut meta = SqliteStore::in_memory()?;
        let pool = PoolConfig { replicas: 3, min_ack: 2, groups: 1 };
        meta.create_cluster([7; 16], pool)?;
        meta.lead(LeaseHolder([1; 24]))?;
        for server in &servers {
            meta.add_server(server)?;
        }
        Ok(Box::new(meta))
    };
    MasterCandidate::new(
        Box::new(open),
        options,
        authority,
        "127.0.0.1:1".to_owned(),
        ConnectionPool::new(client_tls(&identity).unwrap()),
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
    let candidate =
        candidate(CertificateAuthority::new("test").unwrap(), Vec::new(), MasterOptions::default());
    let pages =
        MasterMetrics { candidate: Arc::clone(&candidate), traffic: Arc::new(TrafficCounters::default()) };
    let told = || {
        let page = pages.metrics().unwrap();
        (value(&page, "copal_master_lease_age_seconds"), value(&page, "copal_master_lease_left_seconds"))
    };
    assert_eq!(told(), (None, None), "it does not lead");
    assert!(candidate.try_to_lead().await.unwrap());
    assert_eq!(told(), (None, None), "a file that is this master's alone");
    // As with a shared database.
    let lease = |asked| candidate.current_term.write().as_mut().unwrap().lease = Some(HeldLease::of(asked));
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
    assert_eq!(value(&pages.metrics().unwrap(), "copal_master_leads"), Some(0.0));
    assert_eq!(told(), (None, None), "it leads no more");
}

const HOUR_MS: u64 = 3_600_000;

/// A data server whose clock is an hour behind this machine's, and which has seen no map.
struct Behind;

impl CallHandler for Behind {
    async fn call(self: Arc<Self>, _: PeerIdentity, method: Method, _: Bytes) -> Result<Bytes, Status> {
        assert_eq!(method, Method::WhatSeen);
        let seen =
            messages::SeenReply { clock_ms: machine::wall_ms() - HOUR_MS, ..messages::SeenReply::default() };
        Ok(seen.encode_to_vec().into())
    }
}

async fn server_behind(authority: &CertificateAuthority, number: u8) -> ServerRow {
    let server_uuid = [number; 16];
    let name = name_of_server(&server_uuid);
    let tls = server_tls(&authority.identity(&name.to_str()).unwrap()).unwrap();
    let listener = CallListener::bind("127.0.0.1:0", tls).await.unwrap();
    let address = listener.address().unwrap().to_string();
    tokio::spawn(listener.serve(Arc::new(Behind)));
    ServerRow {
        disk: 0,
        name: format!("data{number}"),
        address,
        server_uuid,
        disk_uuid: server_uuid,
        state: ServerState::Normal,
        version: 0,
        incarnation: Incarnation(0),
        is_draining: false,
        failed_since_ms: 0,
        capacity_bytes: 1 << 40,
        zone: String::new(),
        rack: String::new(),
    }
}

/// Symptom: after `--after-restore` a master used its own clock until the first heartbeats. With a clock an
/// hour ahead it refused certificates and permits that had not expired. For other terms no test would have
/// noticed.
/// Cause: the reported clocks were dropped. Fix: each term uses the median before its first answer.
#[tokio::test]
async fn a_new_leader_goes_by_the_median_of_clocks_before_it_answers() {
    for after_restore in [false, true] {
        let authority = CertificateAuthority::new("test").unwrap();
        let mut servers = Vec::new();
        for number in 1..=3 {
            servers.push(server_behind(&authority, number).await);
        }
        let options = MasterOptions { after_restore, ..MasterOptions::default() };
        let candidate = candidate(authority, servers, options);
        assert_eq!(candidate.clock_ms(), None, "it does not lead");
        assert!(candidate.try_to_lead().await.unwrap());
        let behind_ms = machine::wall_ms() - candidate.clock_ms().unwrap();
        assert!(behind_ms > HOUR_MS / 2, "{behind_ms} ms, after a restore: {after_restore}");
    }
}

/// Names of a master whose values depend on the time.
const OF_MASTER: [&str; 5] = [
    "copal_master_clock_off_seconds",
    "copal_master_lease_age_seconds",
    "copal_master_lease_left_seconds",
    "copal_server_clock_off_seconds",
    "copal_server_heartbeat_age_seconds",
];

#[tokio::test]
async fn the_page_of_a_master_stays() {
    let authority = CertificateAuthority::new("test").unwrap();
    let mut servers = Vec::new();
    for number in 1..=3 {
        servers.push(server_behind(&authority, number).await);
    }
    servers[1].state = ServerState::Failed;
    servers[2].name = "odd \"name\"\\".to_owned();
    let candidate = candidate(authority, servers, MasterOptions::default());
    let pages = MasterMetrics { candidate: Arc::clone(&candidate), traffic: traffic() };
    let page = normalised(&pages.metrics().unwrap(), &OF_MASTER);
    assert_eq!(page, include_str!("tests/follower.txt"), "{page}");
    assert!(candidate.try_to_lead().await.unwrap());
    candidate.current_term.write().as_mut().unwrap().lease = Some(HeldLease::of(machine::now()));
    let page = normalised(&pages.metrics().unwrap(), &OF_MASTER);
    assert_eq!(page, include_str!("tests/leader.txt"), "{page}");
}
