use super::*;
use crate::net::{
    connection::codec,
    machine::{Machine, Stream, within},
    tls::name_of_master,
};
use bytes::Bytes;
use copal_proto::{Method, WireFrame, messages::Ping};
use futures_util::{SinkExt, StreamExt, future::BoxFuture, future::join_all};
use std::{
    collections::BTreeSet,
    future::Future,
    io,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
};
use tokio::{sync::Notify, time::sleep};
use tokio_rustls::rustls::{RootCertStore, crypto::ring, version::TLS13};
use tokio_util::codec::Framed;

const MINUTE: Duration = Duration::from_secs(60);

/// A machine whose network leads to one server. The server answers each call, except on silent connections.
struct OneServer {
    me: Weak<OneServer>,
    processors: usize,
    /// Connections that were opened, and those that are open now.
    opened: AtomicUsize,
    open: AtomicUsize,
    /// Connections on which nothing is read or answered, by number.
    silent: Mutex<BTreeSet<usize>>,
    changed: Notify,
    /// Refuses further connections.
    is_crowded: AtomicBool,
}

impl OneServer {
    async fn serve(self: Arc<Self>, number: usize, stream: Stream) {
        let mut framed = Framed::new(stream, codec());
        while let Some(Ok(bytes)) = framed.next().await {
            self.until(|| !self.silent.lock().contains(&number)).await;
            let frame = WireFrame::decode(bytes.freeze()).unwrap();
            let reply = WireFrame { is_reply: true, left_ms: None, message: Bytes::new(), ..frame };
            framed.send(reply.encode()).await.unwrap();
        }
        self.open.fetch_sub(1, Ordering::SeqCst);
        self.changed.notify_waiters();
    }

    async fn until(&self, mut is_so: impl FnMut() -> bool) {
        loop {
            let changed = self.changed.notified();
            if is_so() {
                return;
            }
            changed.await;
        }
    }

    /// Sets which connections are silent.
    fn silence(&self, numbers: impl IntoIterator<Item = usize>) {
        *self.silent.lock() = numbers.into_iter().collect();
        self.changed.notify_waiters();
    }

    fn opened(&self) -> usize {
        self.opened.load(Ordering::SeqCst)
    }

    fn open(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }
}

impl Machine for OneServer {
    fn wall_ms(&self) -> u64 {
        0
    }

    fn task(&self, task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()> {
        let me: Arc<dyn Machine> = self.me.upgrade().unwrap();
        Box::pin(within(me, task))
    }

    fn blocking_turn(&self) -> BoxFuture<'static, ()> {
        Box::pin(async {})
    }

    fn queue_blocking(&self, work: Box<dyn FnOnce() + Send>) {
        work();
    }

    fn connect(&self, _: &str, _: ServerName<'static>) -> BoxFuture<'static, io::Result<Stream>> {
        let me = self.me.upgrade().unwrap();
        Box::pin(async move {
            if me.is_crowded.load(Ordering::SeqCst) {
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            let (ours, theirs) = tokio::io::duplex(1 << 16);
            let number = me.opened.fetch_add(1, Ordering::SeqCst) + 1;
            me.open.fetch_add(1, Ordering::SeqCst);
            me.changed.notify_waiters();
            tokio::spawn(Arc::clone(&me).serve(number, Box::new(theirs)));
            Ok(Box::new(ours) as Stream)
        })
    }

    fn draw(&self) -> u64 {
        7
    }

    fn processors(&self) -> usize {
        self.processors
    }
}

/// A pool on a machine with this many processors.
struct Scene {
    server: Arc<OneServer>,
    pool: ConnectionPool,
    class: CallClass,
}

impl Scene {
    /// Runs a test on a clock that jumps to the next timer whenever no task can run.
    fn run<T: Future<Output = ()>>(processors: usize, class: CallClass, test: impl FnOnce(Arc<Scene>) -> T) {
        let server = Arc::new_cyclic(|me| OneServer {
            me: Weak::clone(me),
            processors,
            opened: AtomicUsize::new(0),
            open: AtomicUsize::new(0),
            silent: Mutex::default(),
            changed: Notify::new(),
            is_crowded: AtomicBool::new(false),
        });
        let tls = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&TLS13])
            .unwrap()
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        let pool = ConnectionPool::new(Arc::new(tls));
        let scene = Arc::new(Scene { server: Arc::clone(&server), pool, class });
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(within(server, test(scene)));
    }

    async fn call(&self) -> Result<(), CallError> {
        let connection = self.pool.connect("server:1", name_of_master(), self.class).await?;
        connection.call::<Ping>(Method::Ping, &Ping {}, MINUTE * 5).await.map(|_| ())
    }

    /// Starts calls as tasks, one after the other.
    async fn start(self: &Arc<Self>, count: usize) -> Vec<tokio::task::JoinHandle<()>> {
        let mut calls = Vec::new();
        for _ in 0..count {
            let (scene, machine) = (Arc::clone(self), Arc::clone(&self.server) as _);
            calls.push(tokio::spawn(within(machine, async move { scene.call().await.unwrap() })));
            // Each call is under way before the next one chooses its connection.
            sleep(Duration::from_millis(1)).await;
        }
        calls
    }
}

async fn all_end(calls: Vec<tokio::task::JoinHandle<()>>) {
    join_all(calls).await.into_iter().for_each(|ended| ended.unwrap());
}

#[test]
fn a_caller_with_one_call_at_a_time_has_one_connection() {
    Scene::run(8, CallClass::Bulk, |scene| async move {
        for _ in 0..100 {
            scene.call().await.unwrap();
        }
        assert_eq!(scene.server.opened(), 1);
    });
}

/// Symptom: all calls of a process to a server passed one connection, and so one task and one processor on each
/// side.
/// Cause: the pool had one connection for each server and class of calls.
/// Fix: further connections are opened while four calls are under way on each, up to one for each processor.
#[test]
fn calls_under_way_have_as_many_connections_as_processors() {
    for (processors, connections) in [(1, 1), (3, 3), (64, MOST_CONNECTIONS)] {
        Scene::run(processors, CallClass::Small, |scene| async move {
            scene.server.silence(1..=64);
            let calls = scene.start(CALLS_PER_CONNECTION * 2 * connections).await;
            assert_eq!(scene.server.opened(), connections, "{processors} processors");
            scene.server.silence([]);
            all_end(calls).await;
        });
    }
}

#[test]
fn calls_of_masters_and_copies_share_one_connection() {
    for class in [CallClass::Control, CallClass::Recovery] {
        Scene::run(8, class, |scene| async move {
            scene.server.silence([1]);
            let calls = scene.start(100).await;
            assert_eq!(scene.server.opened(), 1);
            scene.server.silence([]);
            all_end(calls).await;
        });
    }
}

/// Symptom: a connection on which nothing arrived any more delayed all calls to that server.
#[test]
fn calls_on_other_connections_are_answered_while_one_is_blocked() {
    Scene::run(2, CallClass::Small, |scene| async move {
        scene.server.silence([1]);
        // The last one finds the connection crowded, and another one is opened.
        let blocked = scene.start(CALLS_PER_CONNECTION + 1).await;
        for _ in 0..100 {
            scene.call().await.unwrap();
        }
        assert!(blocked.iter().all(|call| !call.is_finished()));
        assert_eq!(scene.server.opened(), 2);
        scene.server.silence([]);
        all_end(blocked).await;
    });
}

#[test]
fn a_further_connection_without_calls_is_closed_and_the_first_one_stays() {
    Scene::run(8, CallClass::Bulk, |scene| async move {
        scene.server.silence(1..=64);
        let calls = scene.start(CALLS_PER_CONNECTION * 3).await;
        assert_eq!(scene.server.open(), 3);
        // Calls under way keep their connections.
        sleep(IDLE_TIME * 3).await;
        assert_eq!(scene.server.open(), 3);
        scene.server.silence([]);
        all_end(calls).await;
        sleep(IDLE_TIME * 3).await;
        assert_eq!(scene.server.open(), 1);
        scene.call().await.unwrap();
        assert_eq!(scene.server.opened(), 3, "the first one stayed");
    });
}

#[test]
fn calls_share_the_open_connections_while_no_further_one_can_be_opened() {
    Scene::run(8, CallClass::Small, |scene| async move {
        scene.call().await.unwrap();
        scene.server.is_crowded.store(true, Ordering::SeqCst);
        scene.server.silence([1]);
        let calls = scene.start(CALLS_PER_CONNECTION * 2).await;
        scene.server.is_crowded.store(false, Ordering::SeqCst);
        sleep(OPEN_PAUSE * 2).await;
        assert_eq!(scene.server.opened(), 1, "no task tries again without a call");
        let more = scene.start(1).await;
        assert_eq!(scene.server.opened(), 2);
        scene.server.silence([]);
        all_end(calls).await;
        all_end(more).await;
    });
}

#[test]
fn connections_end_with_their_pool() {
    Scene::run(8, CallClass::Small, |scene| async move {
        scene.server.silence(1..=64);
        let calls = scene.start(CALLS_PER_CONNECTION * 2).await;
        scene.server.silence([]);
        all_end(calls).await;
        let server = Arc::clone(&scene.server);
        assert_eq!(server.open(), 2);
        drop(scene);
        sleep(Duration::from_millis(10)).await;
        assert_eq!(server.open(), 0);
    });
}
