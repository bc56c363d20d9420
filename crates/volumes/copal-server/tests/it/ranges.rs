//! Many ranges in one call: servers of an older release, damaged replicas, malformed requests and answers.

use crate::harness::{Cluster, PATIENCE};
use bytes::Bytes;
use copal_client::{
    CallError, ClientProfile, ClusterStore, Connection, master_tls, name_of_server, server_tls,
};
use copal_proto::{
    Method, UNKNOWN_CALL,
    messages::{
        self, Disk, FileHead, GetRanges, GetRangesReply, GetReply, Id, Map, Member, RangeBytes, Role,
        StatReply, View, failure::Code,
    },
};
use copal_server::{
    CLIENT_NAME, CallHandler, CallListener, CertificateAuthority, PeerIdentity, Status, encoded,
};
use copal_volume::{
    PutOptions, ReadOptions, VolumeError, VolumeId, VolumeOptions, VolumeStore, group::DiskId,
};
use prost::Message;
use std::{
    collections::BTreeMap,
    ops::{ControlFlow, Range},
    sync::{Arc, Mutex},
};
use tokio::runtime::Runtime;

const VOLUME: VolumeId = VolumeId((1 << 44) | 7);
const UUID: [u8; 16] = [0x11; 16];
const BODY: &[u8] = &[7; 50_000];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Behaviour {
    /// It does not know the call.
    Older,
    /// Its bytes of the second range are damaged.
    Damaged,
    /// It answers fewer bytes than the file has.
    Short,
}

/// A master, and a data server with one file.
struct OneFile {
    behaviour: Behaviour,
    map: Mutex<Map>,
    calls: Mutex<BTreeMap<Method, usize>>,
}

impl OneFile {
    fn head() -> Option<FileHead> {
        let id = Some(Id { high: 3, low: 4 });
        Some(FileHead { fid: id, op: id, size: BODY.len() as u64, crc32c: 0, metadata: Bytes::new() })
    }

    fn ranges(&self, request: &GetRanges) -> Result<Bytes, Status> {
        if self.behaviour == Behaviour::Older {
            return Err(Status::new(Code::Invalid, UNKNOWN_CALL));
        }
        let ranges = request.lengths.iter().enumerate().map(|(at, length)| {
            let corrupt = at == 1 && self.behaviour == Behaviour::Damaged;
            let cut = u32::from(self.behaviour == Behaviour::Short);
            let bytes = if corrupt { Bytes::new() } else { Bytes::from(vec![7; (length - cut) as usize]) };
            RangeBytes { bytes, corrupt }
        });
        let role = Role::Normal.into();
        Ok(encoded(&GetRangesReply { head: OneFile::head(), role, ranges: ranges.collect() }))
    }
}

impl CallHandler for OneFile {
    async fn call(self: Arc<Self>, _: PeerIdentity, method: Method, message: Bytes) -> Result<Bytes, Status> {
        *self.calls.lock().unwrap().entry(method).or_default() += 1;
        let role = Role::Normal.into();
        match method {
            Method::WatchMap => Ok(encoded(&*self.map.lock().unwrap())),
            Method::Known => Ok(encoded(&messages::KnownReply { known: true })),
            Method::Stat => Ok(encoded(&StatReply { head: OneFile::head(), role })),
            Method::Get => {
                let get = messages::Get::decode(message).unwrap();
                let bytes = Bytes::from(vec![7; (get.end - get.start) as usize]);
                Ok(encoded(&GetReply { bytes, head: OneFile::head(), role }))
            }
            Method::GetRanges => self.ranges(&GetRanges::decode(message).unwrap()),
            _ => Err(Status::new(Code::Invalid, UNKNOWN_CALL)),
        }
    }
}

/// Answers of 40 ranges, and the calls that they took.
fn read_from(behaviour: Behaviour) -> (Result<usize, VolumeError>, BTreeMap<Method, usize>) {
    let runtime = Runtime::new().unwrap();
    let authority = CertificateAuthority::new("test").unwrap();
    let handler = Arc::new(OneFile { behaviour, map: Mutex::default(), calls: Mutex::default() });
    let serve = |name: &str, is_master: bool| {
        let identity = authority.identity(name).unwrap();
        let tls = if is_master { master_tls(&identity) } else { server_tls(&identity) };
        runtime.block_on(async {
            let listener = CallListener::bind("127.0.0.1:0", tls.unwrap()).await.unwrap();
            let address = listener.address().unwrap().to_string();
            tokio::spawn(listener.serve(Arc::clone(&handler)));
            address
        })
    };
    let master = serve("master.copal", true);
    let server = serve(&name_of_server(&UUID).to_str(), false);
    let member = Member { disk: 1, role: Role::Normal.into(), missed: 0, ..Member::default() };
    *handler.map.lock().unwrap() = Map {
        version: 9,
        term: 1,
        views: vec![View { group: 1, epoch: 9, members: vec![member], replicas: 1, min_ack: 1 }],
        disks: vec![Disk {
            disk: 1,
            server: "data1".to_owned(),
            address: server,
            server_uuid: Bytes::from_static(&UUID),
            version: 4,
        }],
        whole: true,
        now_ms: 1_800_000_000_000,
        ..Map::default()
    };
    let client = authority.identity(CLIENT_NAME).unwrap();
    let profile = ClientProfile::new([7; 16], vec![master], client.authority, client.certificate, client.key);
    let client = ClusterStore::connect(&profile, PATIENCE).unwrap();
    let ranges: Vec<Range<u64>> = (0..40).map(|n| n * 1000..n * 1000 + 500).collect();
    let mut answers = 0;
    let read = client.read_ranges(VOLUME, b"n", &ranges, &ReadOptions::default(), &mut |index, answer| {
        let range = &ranges[index];
        assert_eq!(answer.unwrap(), &BODY[range.start as usize..range.end as usize]);
        answers += 1;
        ControlFlow::Continue(())
    });
    drop(client);
    let calls = handler.calls.lock().unwrap().clone();
    runtime.shutdown_background();
    (read.map(|()| answers), calls)
}

#[test]
fn a_server_of_an_older_release_is_asked_range_by_range() {
    let (read, calls) = read_from(Behaviour::Older);
    assert_eq!(read, Ok(40));
    assert_eq!((calls[&Method::GetRanges], calls[&Method::Get]), (1, 40));
}

#[test]
fn a_damaged_range_is_read_by_itself() {
    let (read, calls) = read_from(Behaviour::Damaged);
    assert_eq!(read, Ok(40));
    assert_eq!((calls[&Method::GetRanges], calls[&Method::Get]), (1, 1));
}

#[test]
fn an_answer_that_lacks_bytes_is_refused() {
    let (read, _) = read_from(Behaviour::Short);
    assert!(matches!(read, Err(VolumeError::Unavailable { .. })), "{read:?}");
}

#[test]
fn a_data_server_bounds_requests_of_ranges() {
    let cluster = Cluster::start(3, 1);
    cluster.wait_for("healthy");
    let client = cluster.client();
    let vid = client.create_volume("", "mail", &VolumeOptions::default()).unwrap();
    client.put(vid, b"n", Bytes::from_static(BODY), &PutOptions::default()).unwrap();
    let view = client.cluster().map().view(vid.birth_group()).unwrap();
    let place = client.cluster().map().place(DiskId(1)).unwrap();
    let (name, tls) = (name_of_server(&place.server_uuid), cluster.client_tls());
    let connection = client.wait(Connection::open(&place.address, name, tls)).unwrap();
    let call = |starts: Vec<u64>, lengths: Vec<u32>| {
        let request = GetRanges {
            group: view.group.0,
            epoch: view.epoch.0,
            volume: vid.0,
            name: Bytes::from_static(b"n"),
            if_file: None,
            starts,
            lengths,
        };
        client.wait(connection.call::<GetRangesReply>(Method::GetRanges, &request, PATIENCE))
    };
    let code = |answer: Result<GetRangesReply, CallError>| match answer {
        Err(CallError::Failed(failure)) => failure.code(),
        other => panic!("{other:?}"),
    };
    assert_eq!(code(call(vec![0; 1025], vec![1; 1025])), Code::TooLarge);
    assert_eq!(code(call(vec![0; 2], vec![4 << 20, 1])), Code::TooLarge);
    assert_eq!(code(call(vec![0; 2], vec![u32::MAX; 2])), Code::TooLarge);
    assert_eq!(code(call(vec![0; 2], vec![1; 3])), Code::Invalid);
    let reply = call(vec![u64::MAX, 49_990, 0, 7], vec![9, 100, 0, 3]).unwrap();
    let lengths: Vec<usize> = reply.ranges.iter().map(|range| range.bytes.len()).collect();
    assert_eq!(lengths, [0, 10, 0, 3]);
    let most = call(vec![0; 1024], vec![4096; 1024]).unwrap();
    assert!(most.ranges.iter().all(|range| range.bytes.len() == 4096));
}
