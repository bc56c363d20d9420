//! Operators and masters of different releases, and refused requests of operators.

use crate::harness::{Cluster, PATIENCE};
use bytes::Bytes;
use copal_client::{
    CallError, ClientProfile, ClusterStore, Connection, LeaseError, administration::AdminRequest, client_tls,
    master_tls, name_of_master,
};
use copal_proto::{
    Method, UNKNOWN_CALL,
    messages::{self, AdministrationReply, Done, failure::Code},
};
use copal_server::{
    CLIENT_NAME, CallHandler, CallListener, CertificateAuthority, PeerIdentity, Status, encoded,
};
use std::sync::Arc;
use tokio::runtime::Runtime;

/// A master of an older release: it knows one request of operators, with another form of reply.
struct OlderMaster;

impl CallHandler for OlderMaster {
    async fn call(self: Arc<Self>, _: PeerIdentity, method: Method, _: Bytes) -> Result<Bytes, Status> {
        match method {
            Method::WatchMap => Ok(encoded(&messages::Map::default())),
            Method::ListDisks => {
                Ok(encoded(&AdministrationReply { json: r#"{"disks":[{"name":"data1"}]}"#.to_owned() }))
            }
            _ => Err(Status::new(Code::Invalid, UNKNOWN_CALL)),
        }
    }
}

impl OlderMaster {
    /// Serves on a runtime; returns a connected client.
    fn start(runtime: &Runtime) -> ClusterStore {
        let authority = CertificateAuthority::new("test").unwrap();
        let identity = authority.identity("master.copal").unwrap();
        let address = runtime.block_on(async {
            let listener = CallListener::bind("127.0.0.1:0", master_tls(&identity).unwrap()).await.unwrap();
            let address = listener.address().unwrap().to_string();
            tokio::spawn(listener.serve(Arc::new(OlderMaster)));
            address
        });
        let client = authority.identity(CLIENT_NAME).unwrap();
        let profile =
            ClientProfile::new([7; 16], vec![address], client.authority, client.certificate, client.key);
        ClusterStore::connect(&profile, PATIENCE).unwrap()
    }
}

/// The sentence about releases that a request fails with.
#[track_caller]
fn other_release<R: AdminRequest>(client: &ClusterStore, request: &R) -> String
where
    R::Reply: std::fmt::Debug,
{
    match client.wait(client.cluster().administer(request, PATIENCE)) {
        Err(CallError::OtherRelease(sentence)) => sentence,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_older_master_is_distinguished_from_one_that_refuses() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let client = OlderMaster::start(&runtime);
    let sentence = other_release(&client, &messages::ShowStatus {});
    let expected =
        "the master is of an older release than this program, and does not know the call ShowStatus";
    assert!(sentence.starts_with(expected), "{sentence}");
    let sentence = other_release(&client, &messages::ListDisks {});
    let expected = "the master answers in another release's form: missing field `disk`";
    assert!(sentence.starts_with(expected), "{sentence}");
    // A backup takes its writer lease by a new call, too.
    let refused = client.wait(client.cluster().take_lease("vms", "a process")).map(|_| ());
    assert!(matches!(refused, Err(LeaseError::Call(CallError::OtherRelease(_)))), "{refused:?}");
}

/// Earlier releases sent requests as text. Each caller gets a refusal with the reason, including a client
/// with few rights.
#[test]
fn a_request_in_words_is_answered_with_a_sentence_about_releases() {
    let cluster = Cluster::start(1, 1);
    let client = cluster.client();
    let named = cluster.named_profile("nightly", "vms", "read,create");
    let named = copal_client::TlsIdentity {
        authority: named.authority.clone(),
        certificate: named.certificate.clone(),
        key: named.key.clone(),
    };
    for tls in [cluster.client_tls(), client_tls(&named).unwrap()] {
        let opened = client.wait(Connection::open(&cluster.master_address, name_of_master(), tls));
        // `what` and `argument` of such a request.
        let request = messages::LoseServer { name: "status".to_owned() };
        let asked = client.wait(opened.unwrap().call::<Done>(Method::Ask, &request, PATIENCE));
        let Err(CallError::Failed(failure)) = asked else { panic!("{asked:?}") };
        assert_eq!(failure.code(), Code::Denied);
        let expected = "this command line is of an older release than the master";
        assert!(failure.text.starts_with(expected), "{}", failure.text);
    }
}

#[test]
fn an_order_that_says_nothing_is_refused() {
    let cluster = Cluster::start(1, 1);
    let client = cluster.client();
    let order = messages::MoveGroup { r#move: None, dry_run: false };
    let refused = client.wait(client.cluster().administer(&order, PATIENCE)).unwrap_err();
    assert!(refused.to_string().contains("an order without a move"), "{refused}");
    let opened =
        client.wait(Connection::open(&cluster.master_address, name_of_master(), cluster.client_tls()));
    let lease = messages::WriterLease { path: "vms".to_owned(), ..messages::WriterLease::default() };
    let asked = client.wait(opened.unwrap().call::<Done>(Method::WriterLease, &lease, PATIENCE));
    assert!(asked.as_ref().is_err_and(|error| error.to_string().contains("taken, renewed")), "{asked:?}");
}
