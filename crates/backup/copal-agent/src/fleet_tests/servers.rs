//! Servers: peers without the secret or of another release, many connections, peers that break rules or read
//! nothing, and stopping.

use super::{twin::Twin, *};
use crate::fleet::control;
use crate::fleet::messages::{AnswerMessage, AskMessage, Instance, MarkerMessage, VERSION};
use copal_client::{AGENT_NAME, CallError, Connection, TlsCredentials, name_of_agent};
use copal_proto::{
    Method,
    messages::{self, failure::Code},
};
use copal_server::CertificateAuthority;
use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
    time::Instant,
};

/// A peer with its own instance, which sends messages of a test.
struct Peer {
    connection: Connection,
    instance: Instance,
    /// Number of the newest page.
    received: AtomicU64,
}

impl Peer {
    fn call<T: prost::Message + Default>(
        &self,
        method: Method,
        message: &impl prost::Message,
    ) -> Result<T, CallError> {
        network().wait(self.connection.call(method, message, HANG))
    }

    fn ask(&self, batch: u64, ids: usize) {
        let ask = AskMessage {
            job: JOB,
            round: 0,
            vm: 0,
            batch,
            partition_bits: 0,
            partition: 0,
            ids: vec![[0; 16]; ids],
        };
        let messages::AgentAccepted {} =
            self.call(Method::AgentAsk, &ask.to_message(&self.instance)).unwrap();
    }

    fn mark(&self) {
        let marker = MarkerMessage { job: JOB, round: 0, participants: 1, patience_ms: 0 };
        let messages::AgentAccepted {} =
            self.call(Method::AgentMark, &marker.to_message(&self.instance)).unwrap();
    }

    /// The batches that are answered next, each with the number of its answers.
    fn take(&self) -> Vec<(u64, usize)> {
        let received = self.received.load(Ordering::Acquire);
        let take = messages::AgentTake { instance: self.instance.to_vec().into(), received };
        let page: messages::AgentAnswers = self.call(Method::AgentTake, &take).unwrap();
        self.received.store(page.page, Ordering::Release);
        page.answers.iter().map(|answers| (answers.batch, answers.codes.len())).collect()
    }
}

fn connect(server: &Server, instance: u8) -> Peer {
    let network = network();
    let (connection, name) = network.wait(network.connect(&server.address().to_string(), "peer")).unwrap();
    assert_eq!(name, "h1");
    Peer { connection, instance: [instance; 16], received: AtomicU64::new(0) }
}

fn open_connections(server: &Server) -> u64 {
    server.traffic().connections().1
}

#[test]
fn a_peer_without_the_secret_is_refused_and_members_are_served() {
    let twin = Arc::new(Twin::default());
    let server = serve("h1", twin.clone());
    let address = server.address().to_string();
    let other = FleetNetwork::new(&[1; 32]).unwrap();
    let refused = other.wait(other.connect(&address, "peer")).err().unwrap().to_string();
    assert!(refused.contains(&address) && refused.contains("another domain"), "{refused}");
    // A peer that trusts every certificate still fails: it has none of this authority.
    let of_this = CertificateAuthority::derived(&[42; 32], "Copal fleet").unwrap();
    let of_other = CertificateAuthority::derived(&[1; 32], "Copal fleet").unwrap();
    let mut identity = of_other.lasting_identity(AGENT_NAME).unwrap();
    identity.authority = of_this.certificate().to_owned();
    let tls = TlsCredentials::new(&identity).unwrap().client_tls().unwrap();
    let refused = other.wait(async {
        let connection = Connection::open(&address, name_of_agent(), tls).await?;
        let hello = messages::AgentHello { version: VERSION, name: "peer".to_owned() };
        connection.call::<messages::AgentHello>(Method::AgentHello, &hello, HANG).await
    });
    assert!(matches!(refused, Err(CallError::Broken { .. } | CallError::Unreachable { .. })), "{refused:?}");
    let mut scan = TcpStream::connect(&address).unwrap();
    scan.write_all(&[b'G'; 48]).unwrap();
    let mut heard = Vec::new();
    let _ = scan.read_to_end(&mut heard);
    until("three peers that are turned away", || server.traffic().refused_connections() >= 3);
    assert_eq!((twin.taken(), twin.marked()), (0, 0));
    connect(&server, 1);
}

/// An agent of before 2026-12 ends the handshake, and an agent of a later version refuses; both are reported.
#[test]
fn an_agent_of_another_release_is_refused_with_a_sentence() {
    let network = network();
    let server = serve("h1", Arc::new(Twin::default()));
    let tls = network.credentials().client_tls().unwrap();
    let refused = network.wait(async {
        let connection = Connection::open(&server.address().to_string(), name_of_agent(), tls).await?;
        let hello = messages::AgentHello { version: VERSION + 1, name: "peer".to_owned() };
        connection.call::<messages::AgentHello>(Method::AgentHello, &hello, HANG).await
    });
    let Err(CallError::Failed(failure)) = refused else { panic!("{refused:?}") };
    assert!(failure.text.contains("run one release on all hosts"), "{}", failure.text);
    let old = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = old.local_addr().unwrap().to_string();
    let ends = std::thread::spawn(move || {
        // The server reads the bytes of an invalid handshake, and closes the connection.
        for _ in 0..5 {
            let (mut stream, _) = old.accept().unwrap();
            stream.read_exact(&mut [0; 48]).unwrap();
        }
    });
    let refused = network.wait(network.connect(&address, "peer")).err().unwrap().to_string();
    ends.join().unwrap();
    assert!(refused.contains(&address) && refused.contains("one release"), "{refused}");
}

/// Symptom: 100 silent connections, from any host, shut out all members until they timed out.
/// Cause: peers without proof of the secret used the slots of members.
/// Fix: such connections have their own slots, and the oldest is closed for a new one.
#[test]
fn silent_connections_shut_no_member_out() {
    let server = serve("h1", Arc::new(Twin::default()));
    let address = server.address();
    let mut silent = Vec::new();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let flood = scope.spawn(|| {
            while !stop.load(Ordering::Acquire) && silent.len() < 300 {
                silent.extend(TcpStream::connect(address));
            }
        });
        // Before, during and after the silent connections.
        for instance in 0..5 {
            connect(&server, instance);
        }
        until("the flood", || flood.is_finished());
        stop.store(true, Ordering::Release);
    });
    for instance in 5..10 {
        connect(&server, instance);
    }
    until("some that are turned away", || server.traffic().refused_connections() > 0);
    let reply: Value = control::call(&address.to_string(), &network(), &7, HANG).unwrap();
    assert_eq!(reply, json!({ "echo": 7 }));
}

/// Symptom: each kept job kept its connections, so that after some days no connection slots were left for
/// agents that were not restarted.
/// Cause: an asker ended its connections when it was dropped, and a job keeps the asker for its report.
/// Fix: an asker is ended with the job; its counts stay.
#[test]
fn an_asker_that_has_ended_keeps_its_counts_and_no_connection() {
    let twin = Arc::new(Twin::default());
    let server = serve("h1", twin.clone());
    let asker = asker(options(&[member("h1", &server)], 1), PATIENT);
    let ticket = send(&asker, 1, 0..100);
    asker.end_round();
    assert!(asker.receive(ticket) == all_known(0..100));
    assert_eq!(open_connections(&server), 1);
    asker.end();
    until("the end of the connection", || open_connections(&server) == 0);
    assert!(asker.traffic().sent_bytes() > 1600);
    asker.end();
}

/// An asker without other participants marks only the members that it asked, so that it connects to no
/// others.
#[test]
fn a_lone_asker_connects_only_to_the_members_it_asks() {
    let twins: Vec<Arc<Twin>> = (0..8).map(|_| Arc::default()).collect();
    let named = twins.iter().enumerate();
    let servers: Vec<Server> = named.map(|(at, twin)| serve(&format!("h{at}"), twin.clone())).collect();
    let members: Vec<FleetMember> =
        servers.iter().enumerate().map(|(at, server)| member(&format!("h{at}"), server)).collect();
    let asker = asker(options(&members, 1), PATIENT);
    let ticket = send(&asker, 1, 0..1);
    asker.end_round();
    assert!(asker.receive(ticket) == all_known(0..1));
    assert_eq!(servers.iter().map(open_connections).sum::<u64>(), 1);
}

#[test]
fn messages_out_of_their_bounds_are_refused_and_others_served() {
    let server = serve("h1", Arc::new(Twin::default()));
    let (good, bad) = (connect(&server, 1), connect(&server, 2));
    let ask = |change: &dyn Fn(&mut messages::AgentAsk)| {
        let ask = AskMessage {
            job: JOB,
            round: 0,
            vm: 0,
            batch: 0,
            partition_bits: 3,
            partition: 0,
            ids: Vec::new(),
        };
        let mut message = ask.to_message(&[2; 16]);
        change(&mut message);
        let refused = bad.call::<messages::AgentAccepted>(Method::AgentAsk, &message);
        let Err(CallError::Failed(failure)) = refused else { panic!("{refused:?}") };
        failure.code()
    };
    assert_eq!(ask(&|ask| ask.partition = 8), Code::Invalid);
    assert_eq!(ask(&|ask| ask.ids = vec![0; 15].into()), Code::Invalid);
    assert_eq!(ask(&|ask| ask.instance = vec![0; 15].into()), Code::Invalid);
    for method in [Method::Put, Method::Ask, Method::Heartbeat] {
        let refused = bad.call::<messages::AgentAccepted>(method, &messages::AgentAccepted {});
        let Err(CallError::Failed(failure)) = refused else { panic!("{refused:?}") };
        assert_eq!(failure.code(), Code::Invalid);
    }
    good.ask(5, 2);
    good.mark();
    assert_eq!(good.take(), [(5, 2)]);
}

/// Symptom: answers were lost, and the part waited for its deadline. Cause: the call of an ended connection
/// still waited at the server and took them. Fix: the newest call takes them, and an unreceived page is sent
/// again.
#[test]
fn answers_are_taken_over_the_newest_connection_of_their_asker() {
    let server = serve("h1", Arc::new(Twin::default()));
    let (old, new) = (connect(&server, 1), connect(&server, 1));
    old.ask(5, 2);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| old.take());
        std::thread::park_timeout(Duration::from_millis(50));
        let takes = scope.spawn(|| new.take());
        // The older call ends without answers as soon as there is a newer one.
        assert_eq!(waits.join().unwrap(), []);
        old.mark();
        assert_eq!(takes.join().unwrap(), [(5, 2)]);
    });
    // This call has not received the page yet.
    assert_eq!(old.take(), [(5, 2)]);
    assert_eq!(old.received.load(Ordering::Acquire), 1);
}

/// Replies to all askers with far more than they asked for.
#[derive(Default)]
struct Flood {
    due: AtomicUsize,
    compared: AtomicUsize,
}

const FLOOD: usize = 3000;

impl BatchDetector for Flood {
    fn take(&self, _: &AskMessage, _: [u8; 16]) -> Result<(), String> {
        self.due.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    fn mark(&self, _: &MarkerMessage, _: [u8; 16]) {}

    fn due(&self, _: Instant) -> Option<u32> {
        (self.due.load(Ordering::Acquire) == 2).then_some(0)
    }

    fn compare(&self, _: u32, reply: &mut dyn FnMut([u8; 16], AnswerMessage)) -> io::Result<()> {
        self.due.store(0, Ordering::Release);
        for batch in 0..FLOOD {
            for host in [1, 2] {
                let answers = AnswerMessage {
                    job: JOB,
                    round: 0,
                    batch: batch as u64,
                    partition: 0,
                    generation: 0,
                    codes: vec![0; 4000],
                };
                reply([host; 16], answers);
            }
            self.compared.fetch_add(1, Ordering::AcqRel);
        }
        Ok(())
    }
}

#[test]
fn a_peer_that_takes_nothing_loses_its_answers_and_the_other_gets_all() {
    let flood = Arc::new(Flood::default());
    let options = ServerOptions { outbox_patience: Duration::from_secs(3), ..server_options("h1") };
    let server = serve_with(options, flood.clone());
    let (lazy, eager) = (connect(&server, 1), connect(&server, 2));
    lazy.ask(0, 1);
    eager.ask(0, 1);
    let mut taken = Vec::new();
    while taken.len() < FLOOD {
        taken.extend(eager.take().into_iter().map(|(batch, _)| batch));
    }
    assert!(taken.into_iter().eq(0..FLOOD as u64));
    assert_eq!(server.counts().slow, 1);
    assert!(server.counts().undeliverable > 0);
    // The asker learns of the loss, so that it asks again.
    let take = messages::AgentTake { instance: lazy.instance.to_vec().into(), received: 0 };
    let refused = lazy.call::<messages::AgentAnswers>(Method::AgentTake, &take);
    assert!(
        matches!(&refused, Err(CallError::Failed(failure)) if failure.text.contains("dropped")),
        "{refused:?}"
    );
}

#[test]
fn it_stops_with_connections_open_and_answers_waiting() {
    let flood = Arc::new(Flood::default());
    let options = ServerOptions { outbox_patience: HANG, ..server_options("h1") };
    let stop = Arc::new(AtomicBool::new(false));
    let server = Server::start(options, flood.clone(), Arc::new(Echo), Arc::clone(&stop)).unwrap();
    let peers = [1, 2].map(|instance| connect(&server, instance));
    let half_open = TcpStream::connect(server.address()).unwrap();
    peers.iter().for_each(|peer| peer.ask(0, 1));
    until("comparing", || flood.compared.load(Ordering::Acquire) > 0);
    let began = Instant::now();
    stop.store(true, Ordering::Release);
    server.wait();
    assert!(began.elapsed() < HANG / 2, "it waited for a peer");
    drop((half_open, peers));
}

#[test]
fn an_address_that_is_taken_is_named() {
    let server = serve("h1", Arc::new(Twin::default()));
    let options = ServerOptions::new(&server.address().to_string(), "h2", network());
    let error =
        Server::start(options, Arc::new(Twin::default()), Arc::new(Echo), Arc::new(AtomicBool::new(false)))
            .unwrap_err();
    assert!(error.to_string().contains(&server.address().to_string()), "{error}");
}
