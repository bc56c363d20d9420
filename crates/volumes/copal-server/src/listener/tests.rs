use super::*;
use crate::Authority;
use copal_client::{CallError, Connection, client_tls, name_of_master, server_tls};
use copal_proto::messages::{Ping, Told};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

struct Echo;

impl Handler for Echo {
    async fn call(self: Arc<Self>, _: Peer, method: Method, message: Bytes) -> Result<Bytes, Refused> {
        match method {
            Method::Ping => Ok(Bytes::new()),
            Method::Ask => Ok(message),
            _ => Err(refused(Code::Denied, "not here")),
        }
    }
}

const SOON: Duration = Duration::from_secs(20);

async fn start(authority: &Authority) -> (String, Arc<Traffic>) {
    let identity = authority.identity("master.copal").unwrap();
    let listener = Listener::bind("127.0.0.1:0", server_tls(&identity).unwrap())
        .await
        .unwrap();
    let (address, traffic) = (listener.address().unwrap().to_string(), listener.traffic());
    tokio::spawn(listener.serve(Arc::new(Echo)));
    (address, traffic)
}

async fn connect(address: &str, authority: &Authority) -> Result<Connection, CallError> {
    let identity = authority.identity("client.copal").unwrap();
    Connection::open(address, name_of_master(), client_tls(&identity).unwrap()).await
}

#[tokio::test]
async fn many_calls_share_a_connection_and_refusals_come_as_such() {
    let authority = Authority::new("test").unwrap();
    let (address, _) = start(&authority).await;
    let connection = connect(&address, &authority).await.unwrap();
    let calls = (0..500).map(|number| {
        let connection = connection.clone();
        tokio::spawn(async move {
            let asked = Told {
                json: "x".repeat(number * 10),
            };
            let told: Told = connection.call(Method::Ask, &asked, SOON).await.unwrap();
            assert_eq!(told, asked);
        })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap();
    }
    let refused: Result<Told, _> = connection.call(Method::Put, &Ping {}, SOON).await;
    assert!(matches!(refused, Err(CallError::Failed(failure)) if failure.code == i32::from(Code::Denied)));
}

#[tokio::test]
async fn nobody_of_another_authority_gets_in_and_nobody_talks_to_one() {
    let (authority, other) = (Authority::new("ours").unwrap(), Authority::new("theirs").unwrap());
    let (address, _) = start(&authority).await;
    assert!(matches!(
        connect(&address, &other).await,
        Err(CallError::Unreachable { .. })
    ));
    // Who trusts the server, and whom the server does not trust, learns it by the first call at the latest.
    let mut identity = other.identity("client.copal").unwrap();
    identity.authority = authority.certificate().to_owned();
    let opened = Connection::open(&address, name_of_master(), client_tls(&identity).unwrap()).await;
    if let Ok(connection) = opened {
        let answer: Result<Told, _> = connection.call(Method::Ask, &Ping {}, SOON).await;
        assert!(matches!(answer, Err(CallError::Broken { .. })), "{answer:?}");
    }
}

#[tokio::test]
async fn garbage_ends_its_own_connection_and_no_other() {
    let authority = Authority::new("test").unwrap();
    let (address, traffic) = start(&authority).await;
    let good = connect(&address, &authority).await.unwrap();
    let mut bad = TcpStream::connect(&address).await.unwrap();
    bad.write_all(&[0xFF; 4096]).await.unwrap();
    let mut rest = Vec::new();
    // Closed by the server, perhaps with an alert.
    let _ = bad.read_to_end(&mut rest).await;
    let told: Result<Ping, _> = good.call(Method::Ping, &Ping {}, SOON).await;
    assert!(told.is_ok());
    while traffic.turned_away() == 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_request_is_signed_for_the_name_that_was_given_and_no_other() {
    let authority = Authority::new("test").unwrap();
    let key = rcgen::KeyPair::generate().unwrap();
    let wish = rcgen::CertificateParams::new(vec!["master.copal".to_owned()]).unwrap();
    let request = wish.serialize_request(&key).unwrap().pem().unwrap();
    let identity = copal_client::Identity {
        authority: authority.certificate().to_owned(),
        certificate: authority.sign(&request, "data7.copal").unwrap(),
        key: key.serialize_pem(),
    };
    let listener = Listener::bind("127.0.0.1:0", server_tls(&identity).unwrap())
        .await
        .unwrap();
    let address = listener.address().unwrap().to_string();
    tokio::spawn(listener.serve(Arc::new(Echo)));
    assert!(
        connect(&address, &authority).await.is_err(),
        "it is not the master"
    );
}
