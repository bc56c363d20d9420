//! Data servers and masters of the cluster: joining, certificates, heartbeats, probes of silent servers.

use crate::master::server::MasterServer;
use crate::master::server_clocks;
use crate::net::messages::{blocking, encoded};
use crate::net::peer::PeerIdentity;
use crate::net::status::Status;
use crate::security::token::{JoinRole, hash_of_secret};
use bytes::Bytes;
use copal_client::{CallError, name_of_server};
use copal_master::{DiskMedium, ServerHeartbeat, ServerJoin};
use copal_proto::{
    CallClass, Method,
    messages::{self, failure::Code},
    role,
};
use copal_volume::group::{Epoch, GroupId, Incarnation};
use std::{sync::Arc, time::Duration};

/// Time limit of one probe; there are two in a row.
const PROBE: Duration = Duration::from_millis(250);
/// Longest name of a rack or a zone, in bytes.
pub const SITE_NAME_BYTES: usize = 100;
/// Groups that a member reports as in sync in one call.
pub(crate) const MAX_IN_SYNC_GROUPS: usize = 1000;

pub(super) fn heartbeat(
    server: &MasterServer,
    request: messages::Heartbeat,
    peer: &PeerIdentity,
) -> Result<Bytes, Status> {
    let server_uuid = uuid(&request.server_uuid)?;
    require(peer.is(&name_of_server(&server_uuid)), "a heartbeat comes from the server that it describes")?;
    let groups = request.groups.iter().filter_map(|state| {
        let role = role(state.role)?;
        Some((GroupId(state.group), Epoch(state.epoch), role))
    });
    let since = request.map_version;
    let size = |size: &messages::GroupSize| (GroupId(size.group), size.bytes);
    let beat = ServerHeartbeat {
        server_uuid,
        disk_uuid: uuid(&request.disk_uuid)?,
        incarnation: Incarnation(request.incarnation),
        pid: request.pid,
        address: request.address.clone(),
        used_bytes: request.used_bytes,
        capacity_bytes: request.capacity_bytes,
        groups: groups.collect(),
        failed: Some(request.failed.clone()).filter(|failed| !failed.is_empty()),
        is_in_sync: request.recovered,
        map_version: since,
        copied_bytes: request.copied_bytes,
        sizes: request.sizes.iter().map(size).collect(),
        recovery_bytes_per_s: request.recovery_bytes_per_s,
        medium: DiskMedium::of_word(&request.medium),
        is_full: request.full,
        is_host_full: request.host_full,
        room_bytes: request.room_bytes,
        seen_term: request.seen_term,
        seen_version: request.seen_version,
        zone: place(&request.zone)?,
        rack: place(&request.rack)?,
        clock_ahead_ms: server_clocks::of_heartbeat(
            &request,
            server.master.term(),
            server.ruler_ms(),
            server.master.reference_ahead_ms(),
        ),
        has_future_seals: request.future_seals,
    };
    let disk = server.master.heartbeat(beat, server.now_ms())?;
    let map = server.master.map_since(since, Duration::ZERO, server.now_ms());
    let verdict = server.master.clock_verdict(disk);
    Ok(encoded(&messages::HeartbeatReply {
        map: Some(map),
        term: server.master.term(),
        disk,
        clock_ms: server.ruler_ms(),
        clock_off_ms: verdict.off_ms,
        clock_wrong: verdict.is_wrong,
        shut_out: verdict.is_shut_out,
        removed_clients: server.master.removed_clients(server.now_ms()),
    }))
}

pub(super) fn record_in_sync(
    server: &MasterServer,
    request: messages::BecomeWhole,
    peer: &PeerIdentity,
) -> Result<Bytes, Status> {
    let row = server.master.map().server(request.disk).cloned();
    let is_own_disk = row.is_some_and(|row| peer.is(&name_of_server(&row.server_uuid)));
    require(is_own_disk, "a member reports only its own groups as in sync")?;
    if request.groups.len() > MAX_IN_SYNC_GROUPS {
        let reason = "a member reports at most 1,000 groups at once";
        return Err(Status::new(Code::Invalid, reason));
    }
    let groups = request.groups.iter();
    let groups: Vec<(GroupId, Epoch)> =
        groups.map(|group| (GroupId(group.group), Epoch(group.epoch))).collect();
    let refused = server.master.record_in_sync(request.disk, &groups)?;
    Ok(encoded(&messages::BecameWhole { refused: refused.into_iter().map(|group| group.0).collect() }))
}

pub(super) fn join(server: &MasterServer, request: messages::Join) -> Result<Bytes, Status> {
    let server_uuid = uuid(&request.server_uuid)?;
    copal_volume::check_volume_name(&request.name)?;
    check_reachable(&request.address)?;
    let now_ms = server.now_ms();
    let hash = hash_of_secret(&request.secret, JoinRole::DataServer);
    server.master.take_token(hash, now_ms)?;
    let name = name_of_server(&server_uuid).to_str().into_owned();
    let signed = server.authority.sign(&request.signing_request, &name, now_ms);
    let certificate = signed.map_err(|error| Status::new(Code::Invalid, error.to_string()))?;
    let joiner = ServerJoin {
        name: request.name,
        address: request.address,
        server_uuid,
        disk_uuid: uuid(&request.disk_uuid)?,
        capacity_bytes: request.capacity_bytes,
        zone: place(&request.zone)?,
        rack: place(&request.rack)?,
    };
    let disk = server.master.join(&joiner, now_ms)?;
    Ok(encoded(&messages::Joined {
        cluster: Bytes::copy_from_slice(&server.master.uuid()),
        certificate,
        authority: server.authority.certificate().to_owned(),
        server: disk,
        disk,
    }))
}

/// Signs a new certificate with the peer's name for its new key.
pub(super) fn renew(
    server: &MasterServer,
    request: &messages::Renew,
    peer: &PeerIdentity,
) -> Result<Bytes, Status> {
    let is_server = || {
        let map = server.master.map();
        let mut servers = map.servers().filter(|server| !server.state.is_lost());
        servers.any(|server| peer.is(&name_of_server(&server.server_uuid)))
    };
    // Whether a named client still exists was checked before.
    require(
        peer.is_client() || is_server(),
        "certificates are renewed for clients and data servers of the cluster",
    )?;
    let signed = server.authority.sign(&request.signing_request, &peer.name, server.now_ms());
    let certificate = signed.map_err(|error| Status::new(Code::Invalid, error.to_string()))?;
    Ok(encoded(&messages::Renewed { certificate }))
}

/// Adds a master and gives it the authority's key.
pub(super) fn join_master(server: &MasterServer, request: messages::JoinMaster) -> Result<Bytes, Status> {
    let hash = hash_of_secret(&request.secret, JoinRole::Master);
    if request.address.is_empty() || request.address.len() > 500 {
        return Err(Status::new(Code::Invalid, "a master has an address"));
    }
    check_reachable(&request.address)?;
    server.master.take_token(hash, server.now_ms())?;
    server.master.add_master(&server.address)?;
    server.master.add_master(&request.address)?;
    Ok(encoded(&messages::JoinedMaster {
        cluster: Bytes::copy_from_slice(&server.master.uuid()),
        authority: server.authority.certificate().to_owned(),
        authority_key: server.authority.key().to_owned(),
        masters: server.master.masters(),
    }))
}

/// Probes a server that did not answer a caller. If its port refuses connections twice, the server fails at
/// once. A slow server keeps its time limit for silence.
pub(super) async fn suspect(server: Arc<MasterServer>, disk: u32) {
    let row = server.master.map().server(disk).cloned();
    let Some(row) = row.filter(|row| !row.is_away()) else {
        return;
    };
    if !server.probing.lock().insert(disk) {
        return;
    }
    let mut refusals = 0;
    for _ in 0..2 {
        match tokio::time::timeout(PROBE, probe(&server, &row)).await {
            Ok(Err(CallError::Unreachable { .. })) => refusals += 1,
            Ok(Err(CallError::Broken { .. })) => refusals += 1,
            _ => break,
        }
        tokio::time::sleep(PROBE / 2).await;
    }
    server.probing.lock().remove(&disk);
    if refusals == 2 {
        let failed = blocking({
            let server = Arc::clone(&server);
            move || Ok(server.master.mark_failed(disk, "refuses connections", server.now_ms())?)
        });
        if let Err(error) = failed.await {
            tracing::error!(text = error.text(), "the master cannot write its database");
        }
    }
}

/// Declares a server lost. Probes it first, instead of waiting for its silence to last long enough.
pub(crate) async fn lose(server: Arc<MasterServer>, name: String) -> Result<(), Status> {
    let found = server.master.map().server_named(&name).cloned();
    if let Some(row) = found.filter(|row| !row.is_away()) {
        suspect(Arc::clone(&server), row.disk).await;
    }
    blocking(move || Ok(server.master.give_up_server(&name, server.now_ms())?)).await
}

async fn probe(server: &MasterServer, row: &copal_master::ServerRow) -> Result<(), CallError> {
    let name = name_of_server(&row.server_uuid);
    let connection = server.connections.connect(&row.address, name, CallClass::Control).await?;
    let messages::Ping {} = connection.call(Method::Ping, &messages::Ping {}, PROBE).await?;
    Ok(())
}

pub(super) fn require(holds: bool, otherwise: &str) -> Result<(), Status> {
    match holds {
        true => Ok(()),
        false => Err(Status::new(Code::Denied, otherwise)),
    }
}

/// Refuses the wildcard address, which would be given to all clients.
fn check_reachable(address: &str) -> Result<(), Status> {
    let parsed = address.parse::<std::net::SocketAddr>();
    match parsed.is_ok_and(|at| at.ip().to_canonical().is_unspecified()) {
        false => Ok(()),
        true => Err(Status::new(
            Code::Invalid,
            format!(
                "no other machine reaches {address}; start the new process with --advertise and the address that others are to use"
            ),
        )),
    }
}

/// Checks the name of a zone or a rack; empty: none given.
fn place(name: &str) -> Result<String, Status> {
    let is_good = name.is_empty() || copal_volume::check_volume_name(name).is_ok();
    match is_good && name.len() <= SITE_NAME_BYTES {
        true => Ok(name.to_owned()),
        false => {
            Err(Status::new(Code::Invalid, "a zone or rack has a name of 100 bytes at most, without slashes"))
        }
    }
}

fn uuid(bytes: &[u8]) -> Result<[u8; 16], Status> {
    bytes.try_into().map_err(|_| Status::new(Code::Invalid, "an id has sixteen bytes"))
}
