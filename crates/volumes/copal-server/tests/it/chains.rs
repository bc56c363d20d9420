//! Chained writes: bytes sent, hops that die or stall, malformed chains.

use crate::harness::{Cluster, PATIENCE};
use bytes::Bytes;
use copal_client::{CallError, ClusterStore, Connection, TransferMode, name_of_server};
use copal_codec::crc32c;
use copal_proto::{
    ChainBody, Method,
    messages::{self, ChainAck, ChainCommit, ChainData, PutChain, failure::Code},
    of_id,
};
use copal_volume::{
    FileId, PutOptions, ReadOptions, VolumeId, VolumeOptions, VolumeStore,
    group::{DiskId, GroupId},
};
use prost::Message;

fn volume(store: &dyn VolumeStore) -> VolumeId {
    store.create_volume("", "mail", &VolumeOptions::default()).unwrap()
}

fn body(len: usize) -> Bytes {
    (0..len).map(|at| (at % 253) as u8).collect()
}

fn put(store: &ClusterStore, vid: VolumeId, name: &str, len: usize) {
    let put = store.put(vid, name.as_bytes(), body(len), &PutOptions::default());
    assert_eq!(put.unwrap().size, len as u64, "{name}");
}

fn all_have(cluster: &Cluster, vid: VolumeId, name: &str, len: usize) {
    for at in 0..cluster.servers.len() {
        let (bytes, _) = cluster
            .store_of(at)
            .get(vid, name.as_bytes(), 0..u64::MAX, None)
            .unwrap_or_else(|error| panic!("{name} at {at}: {error}"));
        assert!(bytes == body(len), "{name} at {at}");
    }
}

#[test]
fn a_chain_sends_one_copy_from_the_client_and_parallel_puts_send_three() {
    let cluster = Cluster::start(3, 4);
    cluster.wait_for("healthy");
    let client = cluster.client();
    let vid = volume(&client);
    for (transfer, len, copies) in [
        (TransferMode::Chain, 1 << 20, 1.0),
        (TransferMode::Parallel, 1 << 20, 3.0),
        (TransferMode::Chain, 9 << 20, 1.0),
        (TransferMode::Parallel, 9 << 20, 3.0),
    ] {
        client.cluster().set_transfer(transfer);
        let before = client.cluster().sent_bytes();
        let name = format!("{transfer:?}{len}");
        put(&client, vid, &name, len);
        let sent = (client.cluster().sent_bytes() - before) as f64 / len as f64;
        assert!((copies..copies * 1.02).contains(&sent), "{name}: {sent} times");
        all_have(&cluster, vid, &name, len);
    }
}

#[test]
fn a_chain_whose_hop_was_killed_loses_nothing_and_reports_the_true_outcome() {
    let mut cluster = Cluster::start(3, 4);
    cluster.wait_for("healthy");
    let client = cluster.client();
    client.cluster().set_transfer(TransferMode::Chain);
    let vid = volume(&client);
    cluster.stop(1);
    // The dead hop has another position in each chain.
    let names = ["first", "middle", "last", "again"];
    for (name, len) in names.iter().zip([100_000, 5 << 20, 100_000, 5 << 20]) {
        put(&client, vid, name, len);
    }
    cluster.run(1);
    cluster.wait_for("healthy");
    for (name, len) in names.iter().zip([100_000, 5 << 20, 100_000, 5 << 20]) {
        all_have(&cluster, vid, name, len);
    }
}

#[test]
fn a_hop_that_dies_while_bytes_pass_through_it_takes_nothing_with_it() {
    let mut cluster = Cluster::start(3, 4);
    cluster.wait_for("healthy");
    let client = cluster.client();
    client.cluster().set_transfer(TransferMode::Chain);
    let vid = volume(&client);
    let (tell, told) = std::sync::mpsc::channel();
    let writer = std::thread::spawn({
        let client = client.clone();
        move || {
            for number in 0..12 {
                let name = format!("f{number}");
                put(&client, vid, &name, 3 << 20);
                let _ = tell.send(number);
            }
        }
    });
    // While the fourth file is being written.
    while told.recv().unwrap() < 2 {}
    cluster.stop(2);
    writer.join().unwrap();
    cluster.run(2);
    cluster.wait_for("healthy");
    for number in 0..12 {
        all_have(&cluster, vid, &format!("f{number}"), 3 << 20);
    }
}

#[test]
fn a_hop_that_stands_still_is_passed_over() {
    let mut cluster = Cluster::start(3, 4);
    cluster.wait_for("healthy");
    let client = cluster.client();
    client.cluster().set_transfer(TransferMode::Chain);
    let vid = volume(&client);
    let stands = cluster.freeze(1);
    // No operation completes until the master counts it as down; then the other two are enough.
    for name in ["a", "b", "c"] {
        put(&client, vid, name, 200_000);
    }
    drop(stands);
    cluster.wait_for("healthy");
    for name in ["a", "b", "c"] {
        all_have(&cluster, vid, name, 200_000);
    }
}

#[test]
fn a_member_that_the_client_cannot_reach_is_served_through_another_one() {
    let cluster = Cluster::start(3, 4);
    cluster.wait_for("healthy");
    let client = cluster.client();
    let vid = volume(&client);
    for transfer in [TransferMode::Parallel, TransferMode::Chain] {
        client.cluster().set_transfer(transfer);
        for disk in 1..=3 {
            let place = client.cluster().map().place(DiskId(disk)).unwrap();
            let at = |address: &str| messages::Map {
                version: u64::MAX >> 1,
                disks: vec![messages::Disk {
                    disk,
                    server: place.server.clone(),
                    address: address.to_owned(),
                    server_uuid: place.server_uuid.clone().into(),
                    version: 0,
                }],
                ..messages::Map::default()
            };
            // No process listens there, as behind a firewall.
            client.cluster().map().apply(&at("127.0.0.1:1"));
            for (name, len) in [("small", 100), ("large", 200_000), ("pieces", 5 << 20)] {
                let name = format!("{transfer:?} {name} {disk}");
                put(&client, vid, &name, len);
                all_have(&cluster, vid, &name, len);
                let fid = client.stat(vid, name.as_bytes(), &ReadOptions::default()).unwrap().fid;
                client.delete(vid, name.as_bytes(), fid).unwrap();
                let at_it = cluster.store_of(disk as usize - 1);
                assert!(at_it.stat(vid, name.as_bytes(), None).is_err(), "{name}");
            }
            client.cluster().map().apply(&at(&place.address));
        }
    }
    cluster.wait_for("healthy");
}

/// A well-formed chain with one put.
fn head(vid: VolumeId, epoch: u64, name: &str, body: &Bytes) -> PutChain {
    let now = std::time::SystemTime::now();
    let ms = now.duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as u64;
    let fid = FileId::new(ms, 1, u64::from(name.as_bytes()[0]));
    let op = FileId::new(ms, 2, u64::from(name.as_bytes()[0]));
    PutChain {
        put: Some(messages::Put {
            group: vid.birth_group().0,
            epoch,
            volume: vid.0,
            name: Bytes::copy_from_slice(name.as_bytes()),
            head: Some(messages::FileHead {
                fid: Some(of_id(fid.0)),
                op: Some(of_id(op.0)),
                size: body.len() as u64,
                crc32c: crc32c(0, body),
                metadata: Bytes::new(),
            }),
            body: Bytes::new(),
            staged: false,
        }),
        len: body.len() as u64,
        hops: vec![2, 3],
        ..PutChain::default()
    }
}

/// Sends a chain as given; returns its answers.
async fn send(
    connection: &Connection,
    head: &PutChain,
    parts: &[ChainData],
    commit: ChainCommit,
) -> Result<Vec<ChainAck>, CallError> {
    let nothing = (Method::ChainCommit, Bytes::new());
    let head = Bytes::from(head.encode_to_vec());
    let begun = connection.begin(Method::PutChain, head.into(), nothing, PATIENCE);
    let mut chain = begun.await?;
    for part in parts {
        let part = part.encode_to_vec().into();
        chain.send(Method::ChainData, part, PATIENCE).await?;
    }
    let commit = commit.encode_to_vec().into();
    chain.finish(Method::ChainCommit, commit, PATIENCE).await?;
    let mut acks = Vec::new();
    while let Some(ack) = chain.next::<ChainAck>(PATIENCE).await {
        acks.push(ack?);
    }
    Ok(acks)
}

#[test]
fn malformed_chains_are_refused_and_change_nothing() {
    let cluster = Cluster::start(3, 4);
    cluster.wait_for("healthy");
    let client = cluster.client();
    let vid = volume(&client);
    let group: GroupId = vid.birth_group();
    let epoch = client.cluster().map().view(group).unwrap().epoch.0;
    let place = client.cluster().map().place(DiskId(1)).unwrap();
    let tls = cluster.client_tls();
    let name = name_of_server(&place.server_uuid);
    let connection = client.wait(Connection::open(&place.address, name, tls)).unwrap();
    let bytes = body(200_000);
    let parts: Vec<ChainData> = ChainBody::parts(&bytes).collect();
    let commit = ChainCommit { len: bytes.len() as u64, crc32c: crc32c(0, &bytes), drop: false };
    let good = head(vid, epoch, "x", &bytes);
    let mut wrong_crc = parts.clone();
    wrong_crc[1].crc32c ^= 1;
    let mut wrong_seq = parts.clone();
    wrong_seq.swap(1, 2);
    let mut too_many = parts.clone();
    too_many.extend(parts.clone());
    let with = |change: fn(&mut PutChain)| {
        let mut head = good.clone();
        change(&mut head);
        head
    };
    let refused: Vec<(&str, PutChain, &[ChainData], ChainCommit, Code)> = vec![
        ("itself", with(|head| head.hops = vec![1]), &parts, commit, Code::Invalid),
        ("foreign", with(|head| head.hops = vec![2, 99]), &parts, commit, Code::Invalid),
        ("thousand", with(|head| head.hops = vec![2; 1000]), &parts, commit, Code::Invalid),
        ("endless", with(|head| head.len = u64::MAX), &parts, commit, Code::TooLarge),
        ("nothing", with(|head| head.put = None), &parts, commit, Code::Invalid),
        (
            "two things",
            with(|head| head.delete = Some(messages::Delete::default())),
            &parts,
            commit,
            Code::Invalid,
        ),
        ("turned bytes", good.clone(), &wrong_crc, commit, Code::Corrupt),
        ("out of turn", good.clone(), &wrong_seq, commit, Code::Invalid),
        ("too many", good.clone(), &too_many, commit, Code::Invalid),
        ("too few", good.clone(), &parts[..2], commit, Code::Invalid),
        ("another sum", good.clone(), &parts, ChainCommit { crc32c: 0, ..commit }, Code::Corrupt),
        ("given up", good.clone(), &parts, ChainCommit { drop: true, ..commit }, Code::Invalid),
    ];
    for (what, head, parts, commit, code) in refused {
        match client.wait(send(&connection, &head, parts, commit)) {
            Err(CallError::Failed(failure)) => assert_eq!(failure.code(), code, "{what}: {}", failure.text),
            other => panic!("{what} was to be refused: {other:?}"),
        }
        for at in 0..3 {
            assert!(cluster.store_of(at).stat(vid, b"x", None).is_err(), "{what}");
        }
    }
    let acks = client.wait(send(&connection, &good, &parts, commit)).unwrap();
    let mut held: Vec<u32> = acks
        .iter()
        .flat_map(|ack| &ack.hops)
        .filter(|hop| hop.failure.is_none() && !hop.unreached && hop.role == 1)
        .map(|hop| hop.disk)
        .collect();
    held.sort_unstable();
    assert_eq!(held, [1, 2, 3], "{acks:?}");
    all_have(&cluster, vid, "x", 200_000);
}
