use super::*;
use crate::{
    authority::Authority,
    listener::{Handler, Peer, Refused, refused},
    member_scene::{Empty, store},
};
use bytes::Bytes;
use copal_client::{Cluster, Connection, Profile, client_tls, ended_certificate, name_of_server, server_tls};
use copal_proto::{
    Class,
    messages::{Disk, Map, Ping, WatchMap},
};
use copal_volume::group::{DiskId, Incarnation, Term};
use prost::Message;

/// Symptom: a server whose masters are of an older release, which knows no renewal, warned each minute for ever.
/// Cause: each try warned. Fix: the first does, and then one a day.
#[test]
fn what_goes_wrong_each_minute_is_warned_of_once_a_day() {
    let begin = Instant::now();
    let mut warning = DailyWarning::default();
    let due = (0..3 * 24 * 60u32).filter(|minute| warning.is_due(begin + LOOK * *minute));
    assert_eq!(due.collect::<Vec<_>>(), [0, 24 * 60, 2 * 24 * 60]);
    // Behind a success it is said again.
    assert!(DailyWarning::default().is_due(begin + LOOK));
}

/// When the certificate of the older of two servers was made, ms since 1970; the cluster's clock is 400 days behind it.
const MADE_MS: u64 = 1_900_000_000_000;
const DAYS_400: u64 = 400 * 24 * 3_600_000;
const LONG: Duration = Duration::from_secs(20);

/// A master that tells one map and nothing after it, or a data server that is called.
struct Scripted(Map);

impl Handler for Scripted {
    async fn call(self: Arc<Self>, _: Peer, method: Method, message: Bytes) -> Result<Bytes, Refused> {
        match method {
            Method::Ping => Ok(Bytes::new()),
            Method::WatchMap if WatchMap::decode(message.clone()).is_ok_and(|asked| asked.since == 0) => {
                Ok(self.0.encode_to_vec().into())
            }
            Method::WatchMap => std::future::pending().await,
            _ => Err(refused(Code::Unavailable, "not here")),
        }
    }
}

fn serve(runtime: &Runtime, identity: &Identity, map: Map) -> String {
    let tls = server_tls(identity).unwrap();
    let listener = runtime.block_on(Listener::bind("127.0.0.1:0", tls)).unwrap();
    let address = listener.address().unwrap().to_string();
    runtime.spawn(listener.serve(Arc::new(Scripted(map))));
    address
}

/// Symptom: clients and data servers could call servers whose certificate had ended, and no test noticed: only the verifier itself
/// was tested. Fix: both kinds of process are started here and call such a server, once they know the cluster's clock.
#[test]
fn clients_and_data_servers_judge_certificates_by_the_clusters_clock() {
    let (authority, runtime) = (Authority::new("test").unwrap(), runtime().unwrap());
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
    let masters = vec![serve(
        &runtime,
        &authority.identity(MASTER_NAME).unwrap(),
        map.clone(),
    )];
    let refusal = format!("the certificate of {} ended", servers[0].0.to_str());

    let own = authority.identity("client.copal").unwrap();
    let profile = Profile::new([7; 16], masters, own.authority, own.certificate, own.key);
    runtime.block_on(async {
        let cluster = Cluster::connect(&profile, LONG).await.unwrap();
        let end = machine::now() + LONG;
        let called = cluster.call::<Ping>(DiskId(1), Method::Ping, &Ping {}, end).await;
        assert!(called.unwrap_err().to_string().contains(&refusal));
        cluster
            .call::<Ping>(DiskId(2), Method::Ping, &Ping {}, end)
            .await
            .unwrap();
    });

    // Without a master: nobody but the test tells it the map, and nothing of it is written down.
    let mut home = ServerHome::draw("data3", "127.0.0.1:0", None).unwrap();
    let own = authority
        .identity(&name_of_server(&home.server_uuid()).to_str())
        .unwrap();
    home.joined([7; 16], Vec::new(), &own);
    let store = store();
    let identity = MemberIdentity {
        cluster: home.cluster(),
        server: home.server_uuid(),
        disk: home.disk_uuid(),
        incarnation: Incarnation(0),
        term: Term(0),
    };
    store.found(&identity).unwrap();
    let identity = store.boot(1).unwrap();
    let process = DataProcess::start(
        store,
        identity,
        &home,
        Path::new("unused"),
        Box::new(Empty),
        1 << 30,
        "",
    )
    .unwrap();
    process.server.map.apply(&map);
    let call = |(name, row): &(_, Disk)| {
        let name = Clone::clone(name);
        runtime.block_on(process.server.connections.to(&row.address, name, Class::Recovery))
    };
    assert!(call(&servers[0]).is_err_and(|error| error.to_string().contains(&refusal)));
    assert!(call(&servers[1]).is_ok());
    // It judges its own callers by the same clock.
    for (made_ms, has_ended) in [(MADE_MS, true), (MADE_MS + DAYS_400, false)] {
        let caller = client_tls(&authority.identity_at("client.copal", made_ms).unwrap()).unwrap();
        let own = name_of_server(&home.server_uuid());
        let called = runtime.block_on(async {
            let connection = Connection::open(process.address(), own, caller).await.unwrap();
            connection.call::<Ping>(Method::Ping, &Ping {}, LONG).await
        });
        let is_refused = called.as_ref().err().and_then(ended_certificate).is_some();
        assert_eq!(
            (is_refused, called.is_ok()),
            (has_ended, !has_ended),
            "{called:?}"
        );
    }
    process.stop();
}
