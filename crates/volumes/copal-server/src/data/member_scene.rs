//! Test scene: a data server and a scripted peer, which plays another member and the master.
//!
//! Used for answers that no current member gives, or that occur only at one moment.

use crate::CertificateAuthority;
use crate::data::server::DataServer;
use crate::net::handler::CallHandler;
use crate::net::listener::CallListener;
use crate::net::peer::PeerIdentity;
use crate::net::status::Status;
use crate::replica::host::{DataOptions, ReplicaHost, StoreSpace};
use crate::resync::fetch::FetchSource;
use bytes::Bytes;
use copal_client::{ConnectionPool, Masters, client_tls, name_of_server, server_tls};
use copal_data::{BodySource, GroupOperation, MemberIdentity, MemberStore, NewHead};
use copal_device::{Device, MemoryDevice};
use copal_proto::{
    CallClass, Method,
    messages::{self, FileHead},
    of_id, of_view,
};
use copal_volume::{
    FileId, ManualClock, OpId, VolumeId,
    group::{DiskId, Epoch, GroupId, Incarnation, Role, Term, View},
};
use parking_lot::Mutex;
use prost::Message;
use std::sync::{Arc, atomic::Ordering};

pub(crate) const GROUP: GroupId = GroupId(3);
/// The view that the server has entered.
pub(crate) const EPOCH: Epoch = Epoch(5);
/// The time by all clocks.
pub(crate) const NOW: u64 = 1_000_000_000;
/// The server's own disk, and that of the other member.
pub(crate) const OWN: DiskId = DiskId(1);
pub(crate) const OTHER: DiskId = DiskId(2);
const OTHER_SERVER: [u8; 16] = [9; 16];

type Script = dyn Fn(Method, Bytes) -> Result<Bytes, Status> + Send + Sync;

/// A handler that answers by a script and records the calls.
struct ScriptedPeer {
    script: Box<Script>,
    asked: Mutex<Vec<Method>>,
}

impl CallHandler for ScriptedPeer {
    async fn call(self: Arc<Self>, _: PeerIdentity, method: Method, message: Bytes) -> Result<Bytes, Status> {
        self.asked.lock().push(method);
        (self.script)(method, message)
    }
}

/// An empty disk.
pub(crate) struct EmptySpace;

impl StoreSpace for EmptySpace {
    fn bytes(&self) -> (u64, u64) {
        (0, 1 << 40)
    }
}

pub(crate) struct MemberScene {
    pub(crate) data: Arc<DataServer>,
    pub(crate) host: Arc<ReplicaHost>,
    peer: Arc<ScriptedPeer>,
    address: String,
}

impl MemberScene {
    /// A server that has entered a view of two members in these roles.
    pub(crate) async fn new(
        (own, other): (Role, Role),
        script: impl Fn(Method, Bytes) -> Result<Bytes, Status> + Send + Sync + 'static,
    ) -> MemberScene {
        let authority = CertificateAuthority::new("test").unwrap();
        let peer = Arc::new(ScriptedPeer { script: Box::new(script), asked: Mutex::default() });
        let mut addresses = Vec::new();
        let other_name = name_of_server(&OTHER_SERVER).to_str().into_owned();
        for name in [other_name.as_str(), "master.copal"] {
            let tls = server_tls(&authority.identity(name).unwrap()).unwrap();
            let listener = CallListener::bind("127.0.0.1:0", tls).await.unwrap();
            addresses.push(listener.address().unwrap().to_string());
            tokio::spawn(listener.serve(Arc::clone(&peer)));
        }
        let identity = MemberIdentity {
            cluster: [7; 16],
            server: [1; 16],
            disk: [1; 16],
            incarnation: Incarnation(0),
            term: Term(0),
        };
        let store = store();
        store.assign(&identity).unwrap();
        let identity = store.boot(1).unwrap();
        let own_name = name_of_server(&identity.server).to_str().into_owned();
        let tls = client_tls(&authority.identity(&own_name).unwrap()).unwrap();
        let connections = ConnectionPool::new(tls);
        let options = DataOptions {
            address: "127.0.0.1:1".to_owned(),
            authority: authority.certificate().to_owned(),
            recovery_bytes_per_s: 1 << 30,
            place: Default::default(),
            medium: String::new(),
        };
        let masters = Masters::new(&addresses[1..], connections.clone());
        let data =
            DataServer::new(store, identity, options, Box::new(EmptySpace), masters, connections).unwrap();
        let host = Arc::clone(&data.host);
        host.disk.store(OWN.0.into(), Ordering::Relaxed);
        let scene = MemberScene { data, host, peer, address: addresses.remove(0) };
        scene.learn(EPOCH, (own, other), Epoch(0));
        scene.host.store.enter_view(GROUP, EPOCH, own).unwrap();
        scene.host.entered_version.store(1, Ordering::Release);
        scene
    }

    /// Gives the server a view without entering it. `missed`: the newest epoch in which operations completed
    /// without it.
    pub(crate) fn learn(&self, epoch: Epoch, roles: (Role, Role), missed: Epoch) {
        self.host.map.apply(&self.map(epoch, roles, missed));
    }

    /// A master's map with this view.
    pub(crate) fn map(&self, epoch: Epoch, (own, other): (Role, Role), missed: Epoch) -> messages::Map {
        let view =
            View { group: GROUP, epoch, members: vec![(OWN, own), (OTHER, other)], replicas: 2, min_ack: 1 };
        let mut view = of_view(&view);
        view.members[0].missed = missed.0;
        let other = messages::Disk {
            disk: OTHER.0,
            server: "data2".to_owned(),
            address: self.address.clone(),
            server_uuid: Bytes::copy_from_slice(&OTHER_SERVER),
            version: 1,
        };
        messages::Map {
            version: epoch.0,
            term: 1,
            views: vec![view],
            disks: vec![other],
            now_ms: NOW,
            ..messages::Map::default()
        }
    }

    /// Whether the peer received such a call.
    pub(crate) fn was_asked(&self, method: Method) -> bool {
        self.peer.asked.lock().contains(&method)
    }

    /// The other member as a source of files.
    pub(crate) async fn source(&self) -> FetchSource {
        let name = name_of_server(&OTHER_SERVER);
        let connection = self.host.connections.connect(&self.address, name, CallClass::Recovery);
        FetchSource { connection: connection.await.unwrap(), snapshot: 1 }
    }

    /// Stores a file, with its create in the journal.
    pub(crate) fn put(&self, number: u64, name: &'static str, created_ms: u64) {
        let body = Bytes::from_static(b"body");
        let head = head(number, &body, created_ms);
        let create = GroupOperation::CopyCreate {
            vid: vid(),
            name: Bytes::from_static(name.as_bytes()),
            head: NewHead {
                fid: fid(number, created_ms),
                op: op(number, created_ms),
                size: head.size,
                crc32c: head.crc32c,
                metadata: Bytes::new(),
            },
            body: BodySource::Attached(body),
            is_journalled: true,
        };
        self.host.store.apply(GROUP, EPOCH, create).unwrap().unwrap();
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.host.store.stat(vid(), name.as_bytes(), None).is_ok()
    }
}

/// The store of a member that belongs to no cluster yet.
pub(crate) fn store() -> MemberStore {
    let device: Arc<dyn Device> = MemoryDevice::new(128 << 20);
    copal_object::Store::mkfs(&device, &copal_object::MkfsOptions::default()).unwrap();
    let (objects, _) = copal_object::Store::open(device, &copal_object::OpenOptions::default()).unwrap();
    let options = copal_kv::Options { memory_bytes: 16 << 20, ..copal_kv::Options::default() };
    let kv = copal_kv::Store::open(objects, options).unwrap();
    MemberStore::open(kv, Arc::new(ManualClock::new(NOW))).unwrap()
}

pub(crate) fn vid() -> VolumeId {
    VolumeId::in_group(GROUP, 1)
}

pub(crate) fn fid(number: u64, created_ms: u64) -> FileId {
    FileId::new(created_ms, 0, number)
}

pub(crate) fn op(number: u64, created_ms: u64) -> OpId {
    OpId(FileId::new(created_ms, 1, number).0)
}

/// A file's head as a member sends it.
pub(crate) fn head(number: u64, body: &[u8], created_ms: u64) -> FileHead {
    FileHead {
        fid: Some(of_id(fid(number, created_ms).0)),
        op: Some(of_id(op(number, created_ms).0)),
        size: body.len() as u64,
        crc32c: copal_codec::crc32c(0, body),
        metadata: Bytes::new(),
    }
}

/// A journal record: a create or a delete.
pub(crate) fn record(
    number: u64,
    name: &'static str,
    created_ms: u64,
    create: bool,
) -> messages::JournalRecord {
    messages::JournalRecord {
        key: Bytes::copy_from_slice(&number.to_be_bytes()),
        op: Some(of_id(op(number, created_ms).0)),
        create,
        volume: vid().0,
        name: Bytes::from_static(name.as_bytes()),
        fid: Some(of_id(fid(number, created_ms).0)),
    }
}

/// A successful reply.
pub(crate) fn reply(message: &impl Message) -> Result<Bytes, Status> {
    Ok(message.encode_to_vec().into())
}
