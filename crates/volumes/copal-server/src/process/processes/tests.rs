use super::*;
use crate::MasterServer;
use crate::data::member_scene::{EmptySpace, store};
use crate::net::handler::CallHandler;
use crate::net::peer::PeerIdentity;
use crate::net::status::Status;
use crate::net::validity::CertificateValidity;
use crate::process::renewal::{CHECK_INTERVAL, DailyWarning};
use crate::security::authority::CertificateAuthority;
use bytes::Bytes;
use copal_client::{
    ClientProfile, Cluster, Connection, client_tls, expired_certificate, machine, name_of_server, server_tls,
};
use copal_proto::{
    CallClass,
    messages::{self, Disk, Map, Ping, WatchMap, failure::Code},
};
use copal_volume::group::{DiskId, Incarnation, Term};
use prost::Message;
use std::time::Instant;

/// Symptom: a server whose masters cannot renew, being of an older release, warned each minute for ever.
/// Cause: each attempt warned. Fix: the first attempt warns, and then one a day.
#[test]
fn a_failure_that_repeats_each_minute_is_logged_once_a_day() {
    let begin = Instant::now();
    let mut warning = DailyWarning::default();
    let due = (0..3 * 24 * 60u32).filter(|minute| warning.is_due(begin + CHECK_INTERVAL * *minute));
    assert_eq!(due.collect::<Vec<_>>(), [0, 24 * 60, 2 * 24 * 60]);
    // After a success the next failure warns again.
    assert!(DailyWarning::default().is_due(begin + CHECK_INTERVAL));
}

/// Time when the older of two servers' certificates was made, ms since 1970; the cluster's clock is 400 days
/// later.
const MADE_MS: u64 = 1_900_000_000_000;
const DAYS_400: u64 = 400 * 24 * 3_600_000;
const LONG: Duration = Duration::from_secs(20);

/// A master with one map and no later one, or a data server.
struct Scripted(Map);

impl CallHandler for Scripted {
    async fn call(self: Arc<Self>, _: PeerIdentity, method: Method, message: Bytes) -> Result<Bytes, Status> {
        match method {
            Method::Ping => Ok(Bytes::new()),
            Method::WatchMap if WatchMap::decode(message.clone()).is_ok_and(|asked| asked.since == 0) => {
                Ok(self.0.encode_to_vec().into())
            }
            Method::WatchMap => std::future::pending().await,
            _ => Err(Status::new(Code::Unavailable, "not here")),
        }
    }
}

fn serve(runtime: &Runtime, identity: &TlsIdentity, map: Map) -> String {
    let tls = server_tls(identity).unwrap();
    let listener = runtime.block_on(CallListener::bind("127.0.0.1:0", tls)).unwrap();
    let address = listener.address().unwrap().to_string();
    runtime.spawn(listener.serve(Arc::new(Scripted(map))));
    address
}

/// Symptom: clients and data servers could call servers with expired certificates, and no test noticed: only
/// the verifier itself was tested. Fix: both kinds of process call such a server here, once they know the
/// cluster's clock.
#[test]
fn clients_and_data_servers_judge_certificates_by_the_clusters_clock() {
    let (authority, runtime) = (CertificateAuthority::new("test").unwrap(), runtime().unwrap());
    let servers = [(1, MADE_MS), (2, MADE_MS + DAYS_400)].map(|(disk, made_ms)| {
        let uuid = [disk as u8; 16];
        let name = name_of_server(&uuid);
        let identity = authority.identity_at(&name.to_str(), made_ms).unwrap();
        let address = serve(&runtime, &identity, Map::default());
        let row = Disk {
            disk,
            server: format!("data{disk}"),
            address,
            server_uuid: Bytes::copy_from_slice(&uuid),
            version: 1,
        };
        (name, row)
    });
    let map = Map {
        version: 1,
        term: 1,
        disks: servers.each_ref().map(|(_, row)| row.clone()).to_vec(),
        now_ms: MADE_MS + DAYS_400,
        ..Map::default()
    };
    let masters = vec![serve(&runtime, &authority.identity(MASTER_NAME).unwrap(), map.clone())];
    let refusal = format!("the certificate of {} ended", servers[0].0.to_str());

    let own = authority.identity("client.copal").unwrap();
    let profile = ClientProfile::new([7; 16], masters, own.authority, own.certificate, own.key);
    runtime.block_on(async {
        let cluster = Cluster::connect(&profile, LONG).await.unwrap();
        let end = machine::now() + LONG;
        let called = cluster.call::<Ping>(DiskId(1), Method::Ping, &Ping {}, end).await;
        assert!(called.unwrap_err().to_string().contains(&refusal));
        cluster.call::<Ping>(DiskId(2), Method::Ping, &Ping {}, end).await.unwrap();
    });

    // Without a master: only the test sets its map, and nothing is written to its file.
    let mut home = ServerHome::draw("data3", "127.0.0.1:0", None).unwrap();
    let own = authority.identity(&name_of_server(&home.server_uuid()).to_str()).unwrap();
    home.record_join([7; 16], Vec::new(), &own);
    let store = store();
    let identity = MemberIdentity {
        cluster: home.cluster(),
        server: home.server_uuid(),
        disk: home.disk_uuid(),
        incarnation: Incarnation(0),
        term: Term(0),
    };
    store.assign(&identity).unwrap();
    let identity = store.boot(1).unwrap();
    let process =
        DataProcess::start(store, identity, &home, Path::new("unused"), Box::new(EmptySpace), 1 << 30, "")
            .unwrap();
    process.server.host.map.apply(&map);
    let call = |(name, row): &(_, Disk)| {
        let name = Clone::clone(name);
        runtime.block_on(process.server.host.connections.connect(&row.address, name, CallClass::Recovery))
    };
    assert!(call(&servers[0]).is_err_and(|error| error.to_string().contains(&refusal)));
    assert!(call(&servers[1]).is_ok());
    // It judges the certificates of its callers by the same clock.
    for (made_ms, has_ended) in [(MADE_MS, true), (MADE_MS + DAYS_400, false)] {
        let caller = client_tls(&authority.identity_at("client.copal", made_ms).unwrap()).unwrap();
        let own = name_of_server(&home.server_uuid());
        let called = runtime.block_on(async {
            let connection = Connection::open(process.address(), own, caller).await.unwrap();
            connection.call::<Ping>(Method::Ping, &Ping {}, LONG).await
        });
        let is_refused = called.as_ref().err().and_then(expired_certificate).is_some();
        assert_eq!((is_refused, called.is_ok()), (has_ended, !has_ended), "{called:?}");
    }
    process.stop();
}

/// A master by whose clock all certificates have expired unless renewed.
struct Later {
    authority: CertificateAuthority,
    name: String,
}

impl CallHandler for Later {
    fn clock_ms(&self) -> Option<u64> {
        Some(MADE_MS + DAYS_400)
    }

    async fn call(self: Arc<Self>, _: PeerIdentity, method: Method, message: Bytes) -> Result<Bytes, Status> {
        let now_ms = MADE_MS + DAYS_400;
        match method {
            Method::Renew => {
                let asked = messages::Renew::decode(message).unwrap();
                let certificate = self.authority.sign(&asked.signing_request, &self.name, now_ms).unwrap();
                Ok(messages::Renewed { certificate }.encode_to_vec().into())
            }
            _ => Err(Status::new(Code::Unavailable, "not here")),
        }
    }
}

/// Symptom: a server that was down until its certificate expired stayed down: no log gave the reason, and it
/// got no new one.
/// Cause: it renewed by the cluster's clock, which it learns from the reply to a heartbeat, and heartbeats
/// were refused.
/// Fix: it renews when a heartbeat is refused for an expired certificate.
#[test]
fn a_server_that_was_away_until_its_certificate_had_ended_gets_another() {
    let (authority, runtime) = (CertificateAuthority::new("test").unwrap(), runtime().unwrap());
    let master = authority.identity(MASTER_NAME).unwrap();
    let mut home = ServerHome::draw("data1", "127.0.0.1:0", None).unwrap();
    let name = name_of_server(&home.server_uuid()).to_str().into_owned();
    let own = authority.identity_at(&name, MADE_MS).unwrap();
    let listener = CallListener::bind("127.0.0.1:0", server_tls(&master).unwrap());
    let listener = runtime.block_on(listener).unwrap();
    let address = listener.address().unwrap().to_string();
    runtime.spawn(listener.serve(Arc::new(Later { authority, name })));
    home.record_join([7; 16], vec![address], &own);
    let directory = tempfile::tempdir().unwrap();
    home.write(directory.path()).unwrap();
    let store = store();
    let identity = MemberIdentity {
        cluster: home.cluster(),
        server: home.server_uuid(),
        disk: home.disk_uuid(),
        incarnation: Incarnation(0),
        term: Term(0),
    };
    store.assign(&identity).unwrap();
    let identity = store.boot(1).unwrap();
    let room = Box::new(EmptySpace);
    let process = DataProcess::start(store, identity, &home, directory.path(), room, 1 << 30, "").unwrap();
    let began = Instant::now();
    let renewed = loop {
        let kept = ServerHome::read(directory.path()).unwrap().identity();
        if kept.certificate != own.certificate {
            break kept;
        }
        assert!(began.elapsed() < LONG, "it was not renewed");
        runtime.block_on(async { tokio::time::sleep(Duration::from_millis(20)).await });
    };
    let validity = CertificateValidity::of_pem(&renewed.certificate).unwrap();
    assert!(!validity.has_ended(MADE_MS + DAYS_400));
    process.stop();
}

/// Symptom: a master whose clock was beyond the end of all certificates refused every data server, told
/// clients that theirs had expired, and never learned that it was wrong. Cause: it judged certificates by its
/// own clock before it had seen another. Fix: it judges them only after the first clock of a data server.
#[test]
fn a_master_without_reported_clocks_ends_no_certificate() {
    let mut meta = copal_master::SqliteStore::in_memory().unwrap();
    let pool = copal_master::PoolConfig { replicas: 3, min_ack: 2, groups: 2 };
    copal_master::Master::create_cluster(&mut meta, [7; 16], pool).unwrap();
    let master = copal_master::Master::open(Box::new(meta), MasterOptions::default()).unwrap();
    let authority = CertificateAuthority::new("test").unwrap();
    let own = authority.identity(MASTER_NAME).unwrap();
    let connections = ConnectionPool::new(client_tls(&own).unwrap());
    let server = MasterServer::new(master, authority, "127.0.0.1:1".to_owned(), connections);
    assert_eq!(server.clock_ms(), None);
}
