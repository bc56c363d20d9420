//! A host that calls with wrong certificates, and sends pieces of uploads late.
//!
//! It draws a caller, a call, and a file that a client has put. A call that its certificate does not permit
//! has to fail. The checks of the other modules show that files keep their bytes and replicas become equal
//! despite all its calls.

use super::{
    hosts::{Names, certificate},
    process::{Host, Process},
    workload::{Work, text},
};
use anyhow::{Context, Result};
use bytes::Bytes;
use copal_client::{
    CallError, Cluster, Connection, EncodedRequest, TlsIdentity, client_tls, name_of_master, name_of_server,
};
use copal_codec::crc32c;
use copal_proto::{
    Method,
    messages::{self, Done},
    of_id, role,
};
use copal_server::SigningRequest;
use copal_volume::{
    FileId, VolumeId,
    group::{DiskId, Role, invariants::KnownResult},
};
use prost::Message;
use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

/// Number of its host.
const HOST: u32 = 98;
/// Name of the client that may create in the first volume.
const NAME: &str = "intruder";
/// The volume in which it may create.
const OWN_PATH: &str = "volume0";
/// Longest piece of an upload.
const PIECE_BYTES: usize = 4 << 20;
/// Results that must occur in many runs.
pub(super) const KINDS: [&str; 2] = ["a wrong certificate was refused", "a late piece was refused"];
const PATIENCE: Duration = Duration::from_secs(5);
/// Calls that change a file, if permitted.
const CHANGES: [Method; 4] = [Method::PutPiece, Method::Put, Method::Confirm, Method::Delete];
/// Calls reserved for masters.
const OF_MASTERS: [Method; 3] = [Method::VolumeState, Method::WhatSeen, Method::AcceptAll];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Caller {
    /// Has no certificate.
    NoCertificate,
    /// A client that may read and create in the first volume, and nothing else.
    Named,
    /// A data server that is not in the map, with a certificate of the authority.
    Server,
    /// A client with all rights that sends pieces again after their file was decided.
    Late,
}

/// A file that a client has put.
struct Victim {
    vid: VolumeId,
    name: Bytes,
    fid: FileId,
    body: Bytes,
    /// Whether its create was acknowledged and no client has begun to delete it. Replicas forget ids of
    /// deleted files after some minutes.
    is_live: bool,
}

/// A call to send.
struct Call {
    /// None: a master.
    to: Option<DiskId>,
    method: Method,
    message: Vec<u8>,
    permit: Bytes,
}

/// Host of the wrong calls.
pub(super) struct Intruder {
    work: Arc<Work>,
    host: Host,
    /// Learns the addresses of the cluster.
    cluster: Cluster,
    masters: Vec<String>,
    named: TlsIdentity,
    server: TlsIdentity,
    client: TlsIdentity,
}

impl Intruder {
    /// Draws its certificates; the operator adds the named client.
    pub(super) async fn new(
        work: &Arc<Work>,
        names: &Names,
        operator: &(Arc<Process>, Cluster),
    ) -> Result<Intruder> {
        let drawn = SigningRequest::draw()?;
        let request = messages::AddClient {
            name: NAME.to_owned(),
            path: OWN_PATH.to_owned(),
            rights: "read,create".to_owned(),
            signing_request: drawn.request,
        };
        let cluster = operator.1.clone();
        let added =
            operator.0.run(async move { cluster.administer(&request, Duration::from_secs(60)).await });
        let named = TlsIdentity {
            authority: names.client.authority.clone(),
            certificate: added.await.context("the operator lives")??.certificate,
            key: drawn.key,
        };
        let of_server = name_of_server(&[9; 16]);
        Ok(Intruder {
            work: Arc::clone(work),
            host: Host::default(),
            cluster: operator.1.clone(),
            masters: names.masters.clone(),
            named,
            server: names.authority.identity(&of_server.to_str())?,
            client: names.client.clone(),
        })
    }

    /// Calls until the clients' work is over.
    pub(super) async fn drive(self) -> Result<()> {
        let world = Arc::clone(&self.work.network.world);
        while !self.work.is_over.load(Ordering::Relaxed) {
            tokio::time::sleep(world.between(200, 3_000)).await;
            let Some(victim) = self.victim() else { continue };
            let caller = match world.below(5) {
                0 => Caller::NoCertificate,
                1 => Caller::Server,
                2 | 3 => Caller::Named,
                _ => Caller::Late,
            };
            self.try_one(caller, &victim).await?;
        }
        Ok(())
    }

    /// A file whose id a client received. Uploads of several pieces are few, so they are drawn as often as
    /// all others.
    fn victim(&self) -> Option<Victim> {
        let history = self.work.history.lock();
        let world = &self.work.network.world;
        let is_long = world.one_in(2);
        let known: Vec<_> = history
            .creates
            .iter()
            .filter(|create| create.fid.is_some() && (!is_long || create.body.len() > PIECE_BYTES))
            .collect();
        let create = known.get(world.below(known.len().max(1) as u64) as usize)?;
        let fid = create.fid?;
        Some(Victim {
            vid: create.vid,
            name: create.name.clone().into(),
            fid,
            body: create.body.clone().into(),
            is_live: create.known == KnownResult::Complete
                && !history.deletes.iter().any(|delete| delete.fid == fid),
        })
    }

    async fn try_one(&self, caller: Caller, victim: &Victim) -> Result<()> {
        let world = &self.work.network.world;
        let identity = match caller {
            Caller::NoCertificate => None,
            Caller::Named => Some(&self.named),
            Caller::Server => Some(&self.server),
            Caller::Late => Some(&self.client),
        };
        let shown = identity.map(certificate).transpose()?;
        let process = Process::start(&self.work.network, HOST, &self.host, shown);
        let permit = match caller {
            Caller::Named => self.permit(&process).await?,
            _ => Bytes::new(),
        };
        let Some(call) = self.drawn(caller, victim, permit) else {
            process.kill();
            return Ok(());
        };
        let method = call.method;
        let answer = self.send(&process, call).await?;
        process.kill();
        self.work.network.reset(&process);
        let name = text(&victim.name);
        world.log(|| format!("intruder as {caller:?}: {} of {name}: {answer:?}", method.name()));
        match (caller, answer) {
            (Caller::Late, Some(Ok(_))) => world.sometimes("a late piece was taken"),
            (Caller::Late, Some(Err(CallError::Failed(_)))) => world.sometimes(KINDS[1]),
            // A replica in another role than N may not have the file yet. Its acknowledgement alone completes
            // nothing.
            (Caller::Named, Some(Ok(Some(role)))) if !role.is_in_sync() => {}
            (_, Some(Ok(_))) => {
                let wrong = format!("{caller:?} was let through with {} of {name}", method.name());
                self.work.history.lock().wrong.push(wrong);
            }
            (_, Some(Err(CallError::Failed(_)))) => world.sometimes(KINDS[0]),
            // The call did not arrive.
            _ => {}
        }
        Ok(())
    }

    /// A call about the victim that this caller may not make.
    fn drawn(&self, caller: Caller, victim: &Victim, permit: Bytes) -> Option<Call> {
        let world = &self.work.network.world;
        let map = self.cluster.map();
        let members: Vec<DiskId> = map.view(victim.vid.birth_group())?.up().collect();
        let to = *members.get(world.below(members.len().max(1) as u64) as usize)?;
        let call = |method, message| Call { to: Some(to), method, message, permit: permit.clone() };
        let to_master = |method, message| Call { to: None, ..call(method, message) };
        Some(match (caller, world.below(4)) {
            (Caller::Late, _) => call(Method::PutPiece, self.message(Method::PutPiece, victim, victim.vid)?),
            (Caller::Named, 0) => {
                let order = messages::LoseServer { name: "data0".to_owned() };
                to_master(Method::LoseServer, order.encode_to_vec())
            }
            // Names its own volume, with the id of a file in another volume of the group.
            (Caller::Named, 1) => {
                let own = *self.work.volumes.first()?;
                let is_of_group = own.birth_group() == victim.vid.birth_group();
                if own == victim.vid || !is_of_group || !victim.is_live {
                    return None;
                }
                let method = CHANGES[world.below(CHANGES.len() as u64) as usize];
                call(method, self.message(method, victim, own)?)
            }
            (Caller::Server, 0 | 1) => {
                let whole = messages::BecomeWhole { disk: to.0, groups: Vec::new() };
                to_master(Method::BecomeWhole, whole.encode_to_vec())
            }
            (Caller::Server, 2) => {
                let gossip = messages::Gossip { disk: to.0, groups: Vec::new() };
                call(Method::Gossip, gossip.encode_to_vec())
            }
            (Caller::Named | Caller::Server, _) if caller == Caller::Server || world.one_in(2) => {
                call(OF_MASTERS[world.below(OF_MASTERS.len() as u64) as usize], Vec::new())
            }
            (Caller::Named, _) if self.work.volumes.first() == Some(&victim.vid) => {
                call(Method::Delete, self.message(Method::Delete, victim, victim.vid)?)
            }
            _ => {
                let method = CHANGES[world.below(CHANGES.len() as u64) as usize];
                call(method, self.message(method, victim, victim.vid)?)
            }
        })
    }

    /// A change of the victim, addressed to a volume.
    fn message(&self, method: Method, victim: &Victim, vid: VolumeId) -> Option<Vec<u8>> {
        let world = &self.work.network.world;
        let map = self.cluster.map();
        let view = map.view(vid.birth_group())?;
        let (group, epoch, volume) = (view.group.0, view.epoch.0, vid.0);
        let fid = Some(of_id(victim.fid.0));
        let op = Some(of_id(FileId::new(map.now_ms(), 9, world.draw() >> 32).0));
        let pieces = victim.body.len().div_ceil(PIECE_BYTES).max(1);
        let index = world.below(pieces as u64) as usize;
        let from = index * PIECE_BYTES;
        let bytes = victim.body.slice(from..victim.body.len().min(from + PIECE_BYTES));
        let head = Some(messages::FileHead {
            fid,
            op,
            size: victim.body.len() as u64,
            crc32c: crc32c(0, &victim.body),
            metadata: Bytes::new(),
        });
        let name = victim.name.clone();
        Some(match method {
            Method::PutPiece => messages::PutPiece {
                group,
                epoch,
                volume,
                fid,
                index: index as u32,
                crc32c: crc32c(0, &bytes),
                bytes,
            }
            .encode_to_vec(),
            Method::Put => {
                messages::Put { group, epoch, volume, name, head, body: bytes, ..messages::Put::default() }
                    .encode_to_vec()
            }
            Method::Confirm => messages::Confirm { group, epoch, volume, name, head }.encode_to_vec(),
            _ => messages::Delete { group, epoch, volume, name, fid, op }.encode_to_vec(),
        })
    }

    /// The named client's permit for its own volume; empty: no master answers.
    async fn permit(&self, process: &Arc<Process>) -> Result<Bytes> {
        let Some(own) = self.work.volumes.first() else {
            return Ok(Bytes::new());
        };
        let request = messages::PermitRequest {
            client: NAME.to_owned(),
            path: OWN_PATH.to_owned(),
            volume: own.0,
            ..messages::PermitRequest::default()
        };
        let (address, tls) = (self.a_master(), client_tls(&self.named)?);
        let signed = process.run(async move {
            let to = Connection::open(&address, name_of_master(), tls).await.ok()?;
            let signed = to.call::<messages::SignedPermit>(Method::Permit, &request, PATIENCE);
            Some(signed.await.ok()?.encode_to_vec())
        });
        Ok(signed.await.flatten().unwrap_or_default().into())
    }

    fn a_master(&self) -> String {
        let world = &self.work.network.world;
        self.masters[world.below(self.masters.len() as u64) as usize].clone()
    }

    /// Result of a call; for a change of a file, with the role of the replica that accepted it. `None`: the
    /// call did not arrive.
    async fn send(
        &self,
        process: &Arc<Process>,
        call: Call,
    ) -> Result<Option<std::result::Result<Option<Role>, CallError>>> {
        let (address, name) = match call.to {
            None => (self.a_master(), name_of_master()),
            Some(disk) => {
                let place = self.cluster.map().place(disk).context("it is in the map")?;
                (place.address, name_of_server(&place.server_uuid))
            }
        };
        let tls = client_tls(&self.client)?;
        let request = EncodedRequest { message: call.message.into(), permit: call.permit };
        let sent = process.run(async move {
            let to = Connection::open(&address, name, tls).await.ok()?;
            if !matches!(call.method, Method::Put | Method::Confirm | Method::Delete) {
                let done = to.call_once::<Done>(call.method, request, PATIENCE).await;
                return Some(done.map(|Done {}| None));
            }
            let held = to.call_once::<messages::Accepted>(call.method, request, PATIENCE).await;
            Some(held.map(|held| role(held.role)))
        });
        let within = tokio::time::timeout(PATIENCE * 2, sent).await;
        Ok(within.ok().flatten().flatten())
    }
}
