//! Rights: every call by every kind of caller, and protection of other clients' files.

use crate::harness::{Cluster, PATIENCE, eventually};
use bytes::Bytes;
use copal_client::{
    CallError, ClientProfile, ClusterStore, Connection, EncodedRequest, TlsIdentity, client_tls,
    name_of_master, name_of_server,
};
use copal_codec::crc32c;
use copal_proto::{
    ChainBody, Method, incarnation_prefix,
    messages::{self, ChainAck, ChainCommit, Done, PutChain, failure::Code, writer_lease::Action},
    of_id,
};
use copal_server::CertificateAuthority;
use copal_volume::{
    FileId, PutOptions, ReadOptions, VolumeError, VolumeId, VolumeOptions, VolumeStore, group::DiskId,
};
use prost::Message;
use std::{sync::Arc, time::Instant};
use tokio_rustls::rustls::ClientConfig;

fn body(len: usize) -> Bytes {
    (0..len).map(|at| (at % 253) as u8).collect()
}

fn identity_of(profile: &ClientProfile) -> TlsIdentity {
    TlsIdentity {
        authority: profile.authority.clone(),
        certificate: profile.certificate.clone(),
        key: profile.key.clone(),
    }
}

/// A process with a certificate that sends arbitrary calls.
struct Raw<'a> {
    cluster: &'a Cluster,
    wait: &'a ClusterStore,
    tls: Arc<ClientConfig>,
    permit: Bytes,
}

type Refusal = Result<(), String>;

impl Raw<'_> {
    fn master(&self) -> Result<Connection, CallError> {
        let address = &self.cluster.master_address;
        self.wait.wait(Connection::open(address, name_of_master(), self.tls.clone()))
    }

    fn data(&self, disk: u32) -> Result<Connection, CallError> {
        let place = self.wait.cluster().map().place(DiskId(disk)).unwrap();
        let name = name_of_server(&place.server_uuid);
        self.wait.wait(Connection::open(&place.address, name, self.tls.clone()))
    }

    /// Makes a call. Returns the error code of a refusal.
    fn ask(&self, to: &Connection, method: Method, message: &impl Message) -> Refusal {
        let request = EncodedRequest { message: message.encode_to_vec().into(), permit: self.permit.clone() };
        match self.wait.wait(to.call_encoded::<Done>(method, request, PATIENCE)) {
            Ok(Done {}) => Ok(()),
            Err(CallError::Failed(failure)) => Err(failure.code().as_str_name().to_owned()),
            Err(other) => Err(other.to_string()),
        }
    }

    /// Takes, renews or releases the writer lease of `mail`; returns its number.
    fn lease(&self, action: Action, number: u64) -> u64 {
        let (path, holder) = ("mail".to_owned(), "a".to_owned());
        let request = messages::WriterLease { action: action.into(), path, holder, number };
        let master = self.master().unwrap();
        let reply = master.call::<messages::WriterLeaseReply>(Method::WriterLease, &request, PATIENCE);
        self.wait.wait(reply).unwrap().number
    }

    /// The permit of a named client for a volume.
    fn permitted(&self, client: &str, path: &str, volume: VolumeId, incarnation: u64) -> Bytes {
        let request = messages::PermitRequest {
            client: client.to_owned(),
            path: path.to_owned(),
            volume: volume.0,
            incarnation,
            ..messages::PermitRequest::default()
        };
        let master = self.master().unwrap();
        let signed = master.call::<messages::SignedPermit>(Method::Permit, &request, PATIENCE);
        self.wait.wait(signed).unwrap().encode_to_vec().into()
    }
}

/// Location of a test's file.
struct Place {
    group: u32,
    epoch: u64,
    volume: u64,
}

fn place(client: &ClusterStore, vid: VolumeId) -> Place {
    let group = vid.birth_group();
    let epoch = client.cluster().map().view(group).unwrap().epoch.0;
    Place { group: group.0, epoch, volume: vid.0 }
}

/// Encodes a client's request to a data server about a file with this id and name.
#[expect(clippy::needless_update, reason = "of some requests the macro names every field")]
fn request(method: Method, at: &Place, name: &'static str, fid: FileId, now_ms: u64) -> Vec<u8> {
    let Place { group, epoch, volume } = *at;
    let (name, id) = (Bytes::from_static(name.as_bytes()), Some(of_id(fid.0)));
    let op = Some(of_id(FileId::new(now_ms, 9, 77).0));
    let bytes = body(100);
    let head = Some(messages::FileHead {
        fid: id,
        op,
        size: 100,
        crc32c: crc32c(0, &bytes),
        metadata: Bytes::new(),
    });
    macro_rules! of {
        ($name:ident { $($field:ident $(: $value:expr)?),* }) => {
            messages::$name { group, epoch, volume, $($field $(: $value)?,)* ..Default::default() }.encode_to_vec()
        };
    }
    match method {
        Method::PutPiece => of!(PutPiece { fid: id, crc32c: crc32c(0, &bytes), bytes }),
        Method::Put => of!(Put { name, head, body: bytes }),
        Method::Confirm => of!(Confirm { name, head }),
        Method::Delete => of!(Delete { name, fid: id, op }),
        Method::Get => of!(Get { name, end: 10 }),
        Method::GetRanges => of!(GetRanges { name, starts: vec![0], lengths: vec![10] }),
        Method::Stat => of!(Stat { name }),
        Method::List => of!(List { limit: 10 }),
        Method::Find => of!(Find { fid: id }),
        Method::Totals => of!(VolumeTotals {}),
        Method::GetPiece => of!(GetPiece { fid: id }),
        _ => unreachable!("{method:?}"),
    }
}

/// Calls of clients to data servers about a volume.
const OF_VOLUMES: [Method; 11] = [
    Method::PutPiece,
    Method::Put,
    Method::Confirm,
    Method::Delete,
    Method::Get,
    Method::GetRanges,
    Method::Stat,
    Method::List,
    Method::Find,
    Method::Totals,
    Method::GetPiece,
];

/// Calls that a chain may carry.
const IN_CHAINS: [Method; 4] = [Method::PutPiece, Method::Put, Method::Confirm, Method::Delete];

/// Encodes calls that only members or masters make to data servers, in the name of `disk`.
fn between_servers(method: Method, disk: u32) -> Vec<u8> {
    match method {
        Method::Gossip => messages::Gossip { disk, groups: Vec::new() }.encode_to_vec(),
        Method::WhatSeen => messages::WhatSeen { cluster: Bytes::from_static(&[7; 16]) }.encode_to_vec(),
        _ => Vec::new(),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// No certificate.
    NoCertificate,
    /// A certificate of another authority: another cluster's, or that of the agents of a fleet.
    OtherCluster,
    /// All rights.
    Client,
    /// Rights to read only.
    Reader,
    /// All rights below another path.
    Elsewhere,
    /// Rights to read and create, as agents of a fleet and backups have.
    Agent,
    /// The data server of the disk in the call.
    Itself,
    /// Another data server.
    DataServer,
    Master,
}

/// Whether a data server admits a call of this kind of caller.
fn data_server_lets(kind: Kind, method: Method) -> bool {
    let is_named = matches!(kind, Kind::Reader | Kind::Elsewhere);
    match method {
        _ if matches!(kind, Kind::NoCertificate | Kind::OtherCluster) => false,
        Method::Ping => true,
        Method::VolumeState | Method::WhatSeen | Method::AcceptAll => kind == Kind::Master,
        Method::Gossip => kind == Kind::Itself,
        Method::Get
        | Method::GetRanges
        | Method::Stat
        | Method::List
        | Method::Find
        | Method::Totals
        | Method::GetPiece => kind != Kind::Elsewhere,
        // A client that may create may delete the file that it is creating.
        Method::PutPiece | Method::Put | Method::Confirm | Method::Delete => !is_named,
        _ => !is_named && kind != Kind::Agent,
    }
}

/// Whether a master admits a call of this kind of caller.
fn master_lets(kind: Kind, method: Method) -> bool {
    let is_named = matches!(kind, Kind::Reader | Kind::Elsewhere | Kind::Agent);
    let is_client = is_named || kind == Kind::Client;
    match method {
        Method::Join | Method::JoinMaster if kind == Kind::NoCertificate => true,
        _ if matches!(kind, Kind::NoCertificate | Kind::OtherCluster) => false,
        Method::Ping | Method::WatchMap | Method::Suspect | Method::Leading | Method::Known => true,
        // The requested path is the one granted to the reader.
        Method::Resolve | Method::ListDirs => kind != Kind::Elsewhere,
        Method::Permit => matches!(kind, Kind::Client),
        // Below the granted path.
        Method::Mkdir if kind == Kind::Agent => true,
        Method::Mkdir | Method::Rename | Method::Rmdir => is_client && !is_named,
        // Below the granted path.
        Method::WriterLease if kind == Kind::Agent => true,
        Method::WriterLease => kind == Kind::Client,
        method if Method::ADMINISTRATION.contains(&method) => kind == Kind::Client,
        // Of earlier releases.
        Method::Ask => false,
        Method::Heartbeat | Method::BecomeWhole => kind == Kind::Itself,
        // Each caller gets a certificate of its own name; masters have the authority.
        Method::Renew => kind != Kind::Master,
        _ => !is_named,
    }
}

fn of_master_call(method: Method, cluster: &Cluster) -> Vec<u8> {
    let name = "mine".to_owned();
    match method {
        Method::Heartbeat => messages::Heartbeat {
            server_uuid: Bytes::copy_from_slice(&cluster.servers[0].uuid),
            ..messages::Heartbeat::default()
        }
        .encode_to_vec(),
        Method::BecomeWhole => messages::BecomeWhole { disk: 1, groups: Vec::new() }.encode_to_vec(),
        Method::Resolve => messages::Resolve { path: name }.encode_to_vec(),
        Method::ListDirs => {
            messages::ListDirs { parent: name, ..messages::ListDirs::default() }.encode_to_vec()
        }
        Method::Mkdir => messages::Mkdir { parent: name, ..messages::Mkdir::default() }.encode_to_vec(),
        Method::Rename => messages::Rename { from: name.clone(), to: name }.encode_to_vec(),
        Method::WriterLease => messages::WriterLease {
            action: Action::Release.into(),
            path: name,
            ..messages::WriterLease::default()
        }
        .encode_to_vec(),
        _ => Vec::new(),
    }
}

/// Symptom of several defects: checks of callers could be removed, and no test failed. Here every kind of
/// caller makes every call, by number, to a data server and to a master. A refusal must be for missing rights
/// and for nothing else.
#[test]
fn every_call_by_every_kind_of_caller() {
    let cluster = Cluster::start(3, 4);
    cluster.wait_for("healthy");
    let owner = cluster.client();
    let vid = owner.create_volume("", "mine", &VolumeOptions::default()).unwrap();
    let others = owner.create_volume("", "others", &VolumeOptions::default()).unwrap();
    owner.put(vid, b"a", body(100), &PutOptions::default()).unwrap();
    let reader = cluster.named_profile("reader", "mine", "read");
    let elsewhere = cluster.named_profile("elsewhere", "others", "read,create,delete");
    let agent = cluster.named_profile("agent", "mine", "read,create");
    let own = u64::from(incarnation_prefix("agent")) << 32 | 7;
    let mut foreign = CertificateAuthority::new("another").unwrap().identity("client.copal").unwrap();
    // It trusts this cluster's servers; they do not trust it.
    foreign.authority = owner_authority(&cluster);
    let raw = |identity: &TlsIdentity| Raw {
        cluster: &cluster,
        wait: &owner,
        tls: client_tls(identity).unwrap(),
        permit: Bytes::new(),
    };
    let callers = [
        (Kind::OtherCluster, raw(&foreign)),
        (Kind::Client, Raw { tls: cluster.client_tls(), ..raw(&foreign) }),
        (Kind::Reader, raw(&identity_of(&reader))),
        (Kind::Elsewhere, raw(&identity_of(&elsewhere))),
        (Kind::Agent, raw(&identity_of(&agent))),
        (Kind::Itself, raw(&cluster.servers[0].identity)),
        (Kind::DataServer, raw(&cluster.servers[1].identity)),
        (Kind::Master, raw(&cluster.master_identity)),
        (Kind::NoCertificate, Raw { tls: tls_without_certificate(&cluster), ..raw(&foreign) }),
    ];
    let denied = Code::Denied.as_str_name();
    let mut wrong = Vec::new();
    for (kind, mut caller) in callers {
        caller.permit = match kind {
            Kind::Reader => caller.permitted("reader", "mine", vid, 0),
            Kind::Elsewhere => caller.permitted("elsewhere", "others", others, 0),
            Kind::Agent => caller.permitted("agent", "mine", vid, own),
            _ => Bytes::new(),
        };
        let at = place(&owner, vid);
        for &method in Method::ALL {
            let now_ms = owner.cluster().map().now_ms();
            let incarnation = if kind == Kind::Agent { own } else { 5 };
            let fid = FileId::new(now_ms, 1, incarnation);
            match method {
                Method::PutChain => {
                    for brought in IN_CHAINS {
                        let head =
                            chain_with(brought, &request(brought, &at, "a", fid, now_ms), &[2, 3], false);
                        let lets = chain_is_let_through(&caller, head);
                        if lets != [data_server_lets(kind, brought); 3] {
                            wrong.push(format!("a chain, {kind:?}, {}: {lets:?}", brought.name()));
                        }
                    }
                    continue;
                }
                // A frame without its chain is dropped without a reply, like late frames of an ended chain.
                Method::ChainData | Method::ChainCommit => continue,
                _ => {}
            }
            let message = match OF_VOLUMES.contains(&method) {
                true => request(method, &at, "a", fid, now_ms),
                false => between_servers(method, 1),
            };
            let lets = caller.data(1).is_ok_and(|to| {
                let refused = ask_bytes(&caller, &to, method, message);
                refused.is_ok() || refused.is_err_and(|code| code != denied && !code.contains("broke"))
            });
            if lets != data_server_lets(kind, method) {
                wrong.push(format!("a data server, {kind:?}, {}: {lets}", method.name()));
            }
            let message = of_master_call(method, &cluster);
            let lets = caller.master().is_ok_and(|to| {
                let refused = ask_bytes(&caller, &to, method, message);
                refused.is_ok() || refused.is_err_and(|code| code != denied && !code.contains("broke"))
            });
            if lets != master_lets(kind, method) {
                wrong.push(format!("a master, {kind:?}, {}: {lets}", method.name()));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    // Symptom: a client without the right to compare members was told that no copy exists. Fix: a refusal is
    // reported as such.
    let named = ClusterStore::connect(&reader, PATIENCE).unwrap();
    let verified = named.wait(named.cluster().verify(vid.birth_group(), false, named.end()));
    assert!(matches!(verified, Err(VolumeError::Denied { .. })), "{:?}", verified.map(|report| report.files));
    assert_eq!(owner.get(vid, b"a", 0..u64::MAX, &ReadOptions::STRICT).unwrap(), body(100));
}

fn ask_bytes(caller: &Raw<'_>, to: &Connection, method: Method, message: Vec<u8>) -> Refusal {
    let request = EncodedRequest { message: message.into(), permit: caller.permit.clone() };
    match caller.wait.wait(to.call_encoded::<Done>(method, request, PATIENCE)) {
        Ok(Done {}) => Ok(()),
        Err(CallError::Failed(failure)) => Err(failure.code().as_str_name().to_owned()),
        Err(other) => Err(other.to_string()),
    }
}

fn owner_authority(cluster: &Cluster) -> String {
    cluster.master_identity.authority.clone()
}

/// TLS without a certificate, as a joining server uses it.
fn tls_without_certificate(cluster: &Cluster) -> Arc<ClientConfig> {
    copal_client::joining_tls(cluster.token().fingerprint)
}

/// Symptom: a client with rights below one path changed and removed files of other volumes of the group, and
/// a client with the right to create replaced the bytes of existing files. Here a named client makes every
/// call against every other volume of its group under its own permit, and about its own volume with ids of
/// the others' files. None of them has an effect.
#[test]
fn no_call_of_a_named_client_touches_other_volumes_of_its_group() {
    let cluster = Cluster::start(3, 1);
    cluster.wait_for("healthy");
    let owner = cluster.client();
    let options = VolumeOptions::default();
    let own = owner.create_volume("", "own", &options).unwrap();
    let files = [(&b"small"[..], 100), (b"middle", 60_000), (b"pack", 300_000)];
    let mut victims = Vec::new();
    for name in ["first", "second"] {
        let vid = owner.create_volume("", name, &options).unwrap();
        for (name, len) in files {
            let info = owner.put(vid, name, body(len), &PutOptions::default()).unwrap();
            victims.push((vid, name, info.fid, len));
        }
    }
    let profile = cluster.named_profile("other", "own", "read,create,delete");
    let incarnation = u64::from(incarnation_prefix("other")) << 32 | 7;
    let mut other = Raw {
        cluster: &cluster,
        wait: &owner,
        tls: client_tls(&identity_of(&profile)).unwrap(),
        permit: Bytes::new(),
    };
    other.permit = other.permitted("other", "own", own, incarnation);
    for &(vid, name, fid, _) in &victims {
        let (theirs, mine) = (place(&owner, vid), place(&owner, own));
        let name = std::str::from_utf8(name).unwrap();
        for disk in 1..=3 {
            let to = other.data(disk).unwrap();
            for method in OF_VOLUMES {
                let now_ms = owner.cluster().map().now_ms();
                let at_theirs = request(method, &theirs, name_of(name), fid, now_ms);
                let refused = ask_bytes(&other, &to, method, at_theirs);
                assert_eq!(refused, Err(Code::Denied.as_str_name().to_owned()), "{method:?} at {name}");
                let by_id =
                    ask_bytes(&other, &to, method, request(method, &mine, name_of(name), fid, now_ms));
                let changes =
                    matches!(method, Method::PutPiece | Method::Put | Method::Confirm | Method::Delete);
                assert!(!changes || by_id.is_err(), "{method:?} under the id of {name}");
            }
        }
    }
    for &(vid, name, fid, len) in &victims {
        for at in 0..3 {
            let store = cluster.store_of(at);
            assert_eq!(store.get(vid, name, 0..u64::MAX, None).unwrap().0, body(len));
            assert!(!store.is_deleted(own, fid).unwrap(), "no row is left of it");
        }
        assert_eq!(owner.get(vid, name, 0..u64::MAX, &ReadOptions::STRICT).unwrap(), body(len));
    }
    // The owner may still delete them.
    for &(vid, name, fid, _) in &victims {
        owner.delete(vid, name, fid).unwrap();
        let gone = owner.stat(vid, name, &ReadOptions::STRICT);
        assert_eq!(gone, Err(VolumeError::NotFound));
    }
}

fn name_of(name: &str) -> &'static str {
    match name {
        "small" => "small",
        "middle" => "middle",
        _ => "pack",
    }
}

/// Symptom: a client with the rights to read and create replaced the bytes of another client's file on all
/// replicas. It used a piece of an upload, sent to each member, from member to member, or through one.
#[test]
fn the_right_to_create_cannot_change_an_existing_file() {
    let cluster = Cluster::start(3, 4);
    cluster.wait_for("healthy");
    let owner = cluster.client();
    let vid = owner.create_volume("", "mail", &VolumeOptions::default()).unwrap();
    let whole = body(300_000);
    let info = owner.put(vid, b"pack", whole.clone(), &PutOptions::default()).unwrap();
    let profile = cluster.named_profile("other", "mail", "read,create");
    let mut other = Raw {
        cluster: &cluster,
        wait: &owner,
        tls: client_tls(&identity_of(&profile)).unwrap(),
        permit: Bytes::new(),
    };
    let incarnation = u64::from(incarnation_prefix("other")) << 32 | 7;
    other.permit = other.permitted("other", "mail", vid, incarnation);
    let at = place(&owner, vid);
    let bytes = Bytes::from(vec![0xff; 300_000]);
    let piece = |fid: FileId| messages::PutPiece {
        group: at.group,
        epoch: at.epoch,
        volume: at.volume,
        fid: Some(of_id(fid.0)),
        index: 0,
        crc32c: crc32c(0, &bytes),
        bytes: bytes.clone(),
    };
    for disk in 1..=3 {
        let to = other.data(disk).unwrap();
        let refused = other.ask(&to, Method::PutPiece, &piece(info.fid));
        assert_eq!(refused, Err(Code::Denied.as_str_name().to_owned()));
    }
    for pass in [false, true] {
        let answers = send_piece(&other, piece(info.fid), bytes.clone(), pass);
        assert!(answers.iter().all(|hop| hop.failure.is_some()), "{answers:?}");
    }
    let read = |store: &ClusterStore| store.get(vid, b"pack", 0..100_000, &ReadOptions::STRICT).unwrap();
    assert_eq!(read(&owner), whole.slice(..100_000));
    // It uploads under an id of its own, also from member to member: each of them knows the uploader.
    let own = FileId::new(owner.cluster().map().now_ms(), 3, incarnation);
    let answers = send_piece(&other, piece(own), bytes.clone(), false);
    assert_eq!(answers.len(), 3);
    assert!(answers.iter().all(|hop| hop.failure.is_none()), "{answers:?}");
    for disk in 1..=3 {
        let to = other.data(disk).unwrap();
        assert_eq!(other.ask(&to, Method::PutPiece, &piece(own)), Ok(()), "over another connection");
    }
    // An id that another client has drawn is refused.
    let drawn_by_another = FileId::new(owner.cluster().map().now_ms(), 4, 7);
    let to = other.data(1).unwrap();
    let refused = other.ask(&to, Method::PutPiece, &piece(drawn_by_another));
    assert_eq!(refused, Err(Code::Denied.as_str_name().to_owned()));
    // No other client may add to the upload.
    let third = cluster.named_profile("third", "mail", "read,create");
    let mut third = Raw { tls: client_tls(&identity_of(&third)).unwrap(), ..other };
    third.permit = third.permitted("third", "mail", vid, u64::from(incarnation_prefix("third")) << 32 | 7);
    let to = third.data(1).unwrap();
    let refused = third.ask(&to, Method::PutPiece, &piece(own));
    assert_eq!(refused, Err(Code::Denied.as_str_name().to_owned()));
    assert_eq!(read(&owner), whole.slice(..100_000));
}

/// Sends a piece to the first member, which forwards it to the others; with `pass` it does not apply it
/// itself.
fn send_piece(by: &Raw<'_>, piece: messages::PutPiece, bytes: Bytes, pass: bool) -> Vec<messages::HopAnswer> {
    let head = chain_with(Method::PutPiece, &piece.encode_to_vec(), &[2, 3], pass);
    send_chain(by, &by.data(1).unwrap(), head, &bytes).unwrap()
}

/// The head of a chain with a request, without the request's bytes.
fn chain_with(method: Method, request: &[u8], hops: &[u32], pass: bool) -> PutChain {
    let mut head = PutChain { hops: hops.to_vec(), pass, ..PutChain::default() };
    match method {
        Method::PutPiece => {
            let piece = messages::PutPiece::decode(request).unwrap();
            head.piece = Some(messages::PutPiece { bytes: Bytes::new(), ..piece });
        }
        Method::Put => {
            let put = messages::Put::decode(request).unwrap();
            head.put = Some(messages::Put { body: Bytes::new(), ..put });
        }
        Method::Confirm => head.confirm = Some(messages::Confirm::decode(request).unwrap()),
        Method::Delete => head.delete = Some(messages::Delete::decode(request).unwrap()),
        _ => unreachable!("{method:?}"),
    }
    head
}

/// Whether each of three members admits the request of a chain.
fn chain_is_let_through(by: &Raw<'_>, head: PutChain) -> [bool; 3] {
    let Ok(to) = by.data(1) else { return [false; 3] };
    let Ok(hops) = send_chain(by, &to, head, &body(100)) else {
        return [false; 3];
    };
    assert_eq!(hops.len(), 3, "{hops:?}");
    std::array::from_fn(|at| hops[at].failure.as_ref().is_none_or(|failure| failure.code() != Code::Denied))
}

/// Sends a chain to its first member and returns the answers of all. Repeats it if it did not reach a member,
/// since then that member's answer is unknown.
fn send_chain(
    by: &Raw<'_>,
    to: &Connection,
    head: PutChain,
    bytes: &Bytes,
) -> Result<Vec<messages::HopAnswer>, CallError> {
    let end = Instant::now() + PATIENCE;
    loop {
        let hops = send_chain_once(by, to, head.clone(), bytes)?;
        if hops.iter().all(|hop| !hop.unreached) {
            return Ok(hops);
        }
        assert!(Instant::now() < end, "{hops:?}");
    }
}

fn send_chain_once(
    by: &Raw<'_>,
    to: &Connection,
    mut head: PutChain,
    bytes: &Bytes,
) -> Result<Vec<messages::HopAnswer>, CallError> {
    let has_bytes = head.put.is_some() || head.piece.is_some();
    let bytes = if has_bytes { bytes.clone() } else { Bytes::new() };
    head.len = bytes.len() as u64;
    let request = EncodedRequest { message: head.encode_to_vec().into(), permit: by.permit.clone() };
    let begun = to.begin(Method::PutChain, request, (Method::ChainCommit, Bytes::new()), PATIENCE);
    let mut chain = by.wait.wait(begun)?;
    for part in ChainBody::parts(&bytes) {
        let part = part.encode_to_vec().into();
        by.wait.wait(chain.send(Method::ChainData, part, PATIENCE))?;
    }
    let commit = ChainCommit { len: bytes.len() as u64, crc32c: crc32c(0, &bytes), drop: false };
    let commit = commit.encode_to_vec().into();
    by.wait.wait(chain.finish(Method::ChainCommit, commit, PATIENCE))?;
    let mut hops = Vec::new();
    while let Some(ack) = by.wait.wait(chain.next::<ChainAck>(PATIENCE)) {
        hops.extend(ack?.hops);
    }
    Ok(hops)
}

/// Symptom: a write was applied after its writer lease had ended and another client held the lease (VOL-40).
/// Cause: a permit was checked only when the call arrived, and a chain may wait long for its bytes. Fix: the
/// expiry and the lease number are checked again when the operation is applied.
#[test]
fn nothing_is_taken_under_a_right_that_ended_while_its_bytes_came() {
    let cluster = Cluster::start(3, 4);
    cluster.wait_for("healthy");
    let client = cluster.client();
    let mut first = client.rooted("mail").unwrap();
    first.make_root().unwrap();
    let vid = first.create_volume("", "of-a", &VolumeOptions::default()).unwrap();
    let mut raw = Raw { cluster: &cluster, wait: &client, tls: cluster.client_tls(), permit: Bytes::new() };
    let number = raw.lease(Action::Take, 0);
    let request = messages::PermitRequest {
        path: "mail".to_owned(),
        lease: number,
        lease_path: "mail".to_owned(),
        ..messages::PermitRequest::default()
    };
    let master = raw.master().unwrap();
    let signed = master.call::<messages::SignedPermit>(Method::Permit, &request, PATIENCE);
    raw.permit = client.wait(signed).unwrap().encode_to_vec().into();
    let at = place(&client, vid);
    let bytes = body(300_000);
    let now_ms = client.cluster().map().now_ms();
    let head = |name: &'static str| PutChain {
        len: bytes.len() as u64,
        hops: vec![2, 3],
        put: Some(messages::Put {
            group: at.group,
            epoch: at.epoch,
            volume: at.volume,
            name: Bytes::from_static(name.as_bytes()),
            head: Some(messages::FileHead {
                fid: Some(of_id(FileId::new(now_ms, 0, 77).0)),
                op: Some(of_id(FileId::new(now_ms, 1, 77).0)),
                size: bytes.len() as u64,
                crc32c: crc32c(0, &bytes),
                metadata: Bytes::new(),
            }),
            ..messages::Put::default()
        }),
        ..PutChain::default()
    };
    let to = raw.data(1).unwrap();
    let request = EncodedRequest { message: head("late").encode_to_vec().into(), permit: raw.permit.clone() };
    let begun = to.begin(Method::PutChain, request, (Method::ChainCommit, Bytes::new()), PATIENCE);
    let mut chain = client.wait(begun).unwrap();
    let parts: Vec<_> = ChainBody::parts(&bytes).collect();
    let (last, before) = parts.split_last().unwrap();
    for part in before {
        let part = part.encode_to_vec().into();
        client.wait(chain.send(Method::ChainData, part, PATIENCE)).unwrap();
    }
    // The lease is released; another client has taken it and shown it to all servers.
    raw.lease(Action::Release, number);
    first.take_lease("b").unwrap();
    let part = last.encode_to_vec().into();
    client.wait(chain.send(Method::ChainData, part, PATIENCE)).unwrap();
    let commit = ChainCommit { len: bytes.len() as u64, crc32c: crc32c(0, &bytes), drop: false };
    client.wait(chain.finish(Method::ChainCommit, commit.encode_to_vec().into(), PATIENCE)).unwrap();
    let mut codes = Vec::new();
    while let Some(ack) = client.wait(chain.next::<ChainAck>(PATIENCE)) {
        for hop in ack.unwrap().hops {
            // Symptom: failed now and then. Cause: a member that the chain did not reach counted as one that
            // had stored the file. Fix: the test sends the file to such a member directly, as the sender of a
            // chain does.
            codes.push(match hop.unreached {
                true => {
                    let put = messages::Put { body: bytes.clone(), ..head("late").put.unwrap() };
                    let to = raw.data(hop.disk).unwrap();
                    raw.ask(&to, Method::Put, &put).unwrap_err()
                }
                false => hop.failure.unwrap().code().as_str_name().to_owned(),
            });
        }
    }
    assert_eq!(codes, [Code::Denied.as_str_name(); 3]);
    for at in 0..3 {
        let there = cluster.store_of(at).stat(vid, b"late", None);
        assert_eq!(there, Err(VolumeError::NotFound));
    }
}

/// Symptom: files were stored in volumes that never existed, under invalid ids, and with bodies that did not
/// match their heads. Each is refused, on every way.
#[test]
fn malformed_requests_are_refused_and_leave_nothing() {
    let cluster = Cluster::start(3, 1);
    cluster.wait_for("healthy");
    let owner = cluster.client();
    let vid = owner.create_volume("", "mail", &VolumeOptions::default()).unwrap();
    let raw = Raw { cluster: &cluster, wait: &owner, tls: cluster.client_tls(), permit: Bytes::new() };
    let to = raw.data(1).unwrap();
    let now_ms = owner.cluster().map().now_ms();
    let fid = FileId::new(now_ms, 1, 5);
    let never = VolumeId::in_group(vid.birth_group(), vid.sequence() + 1000);
    let at = Place { volume: never.0, ..place(&owner, vid) };
    let code = |code: Code| Err(code.as_str_name().to_owned());
    for method in [Method::Put, Method::PutPiece, Method::Delete, Method::Confirm] {
        let refused = ask_bytes(&raw, &to, method, request(method, &at, "a", fid, now_ms));
        assert_eq!(refused, code(Code::VolumeGone), "{method:?} in a volume that was never made");
    }
    let at = place(&owner, vid);
    let elsewhere = Place { group: at.group + 1, ..place(&owner, vid) };
    for method in [Method::Put, Method::PutPiece, Method::Delete, Method::Confirm] {
        let refused = ask_bytes(&raw, &to, method, request(method, &elsewhere, "a", fid, now_ms));
        assert_eq!(refused, code(Code::Invalid), "{method:?} in another group than the volume's");
    }
    for method in [Method::Put, Method::PutPiece, Method::Delete, Method::Confirm] {
        let none = ask_bytes(&raw, &to, method, request(method, &at, "a", FileId(0), now_ms));
        assert!(none.is_err(), "{method:?} of no id");
        let ahead = FileId::new(now_ms + 3_600_000, 1, 5);
        let refused = ask_bytes(&raw, &to, method, request(method, &at, "a", ahead, now_ms));
        assert_eq!(refused, code(Code::ClockSkew), "{method:?} of an id of the future");
    }
    let mut put = messages::Put::decode(&request(Method::Put, &at, "a", fid, now_ms)[..]).unwrap();
    put.head.as_mut().unwrap().crc32c ^= 1;
    assert_eq!(raw.ask(&to, Method::Put, &put), code(Code::Corrupt), "another body");
    let mut piece =
        messages::PutPiece::decode(&request(Method::PutPiece, &at, "a", fid, now_ms)[..]).unwrap();
    piece.crc32c ^= 1;
    assert_eq!(raw.ask(&to, Method::PutPiece, &piece), code(Code::Corrupt), "another piece");
    let wish = |replicas: u32, class: &str| messages::Mkdir {
        name: "wish".to_owned(),
        options: Some(messages::VolumeWish {
            replicas,
            class: class.to_owned(),
            ..messages::VolumeWish::default()
        }),
        ..messages::Mkdir::default()
    };
    let master = raw.master().unwrap();
    for wish in [wish(3, ""), wish(0, "ssd")] {
        let refused = raw.ask(&master, Method::Mkdir, &wish);
        assert_eq!(refused, code(Code::Denied), "a wish that is not obeyed: {wish:?}");
    }
    assert_eq!(owner.open_volume("wish"), Err(VolumeError::NotFound));
    let store = cluster.store_of(0);
    assert_eq!(store.upload_totals(), (0, 0));
    eventually("nothing is there", || store.list(vid, b"", None, 10).unwrap().is_empty());
    assert_eq!(store.snapshot(vid.birth_group()).unwrap().journal(None, 10).unwrap(), []);
}
