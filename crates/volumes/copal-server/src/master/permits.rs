//! Permits: the master signs the granted rights of clients (VOL-41).
//!
//! Not here: verification of permits (`access`), storage of grants (`copal_master`).

use crate::master::server::MasterServer;
use crate::net::messages::{encoded, read};
use crate::net::peer::PeerIdentity;
use crate::net::status::Status;
use bytes::Bytes;
use copal_master::ClientRow;
use copal_proto::{
    Method, RightSet, incarnation_prefix,
    messages::{self, failure::Code},
};
use copal_volume::VolumeId;

/// Lifetime of a permit, ms; it ends earlier if its writer lease does.
pub(crate) const PERMIT_MS: u64 = 600_000;

fn denied(text: impl Into<String>) -> Status {
    Status::new(Code::Denied, text)
}

/// Whether a path is the granted one or lies below it; an empty grant covers all paths.
fn is_within(path: &str, granted: &str) -> bool {
    let rest = path.strip_prefix(granted);
    granted.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Signs a permit for a volume, or for a writer lease.
pub(crate) fn sign_permit(
    server: &MasterServer,
    request: &messages::PermitRequest,
    peer: &PeerIdentity,
) -> Result<Bytes, Status> {
    let now_ms = server.now_ms();
    let named = peer.client_name();
    if !peer.is_client() || request.client != named.unwrap_or_default() {
        return Err(denied("a permit is given to the client that asks for it"));
    }
    let mut permit = messages::Permit {
        cluster: server.master.uuid().to_vec().into(),
        client: request.client.clone(),
        volume: request.volume,
        rights: RightSet::ALL.0,
        until_ms: now_ms + PERMIT_MS,
        lease: request.lease,
        path: request.lease_path.clone(),
        incarnation: 0,
    };
    if let Some(client) = named {
        let granted = grant_of(server, client)?;
        if !is_within(&request.path, &granted.path) {
            return Err(outside(client, &granted));
        }
        permit.rights = granted.rights;
        if request.volume == 0 {
            // It proves a writer lease and grants no rights.
            permit.rights = 0;
        } else {
            let found = server.master.resolve(&request.path)?;
            if found.0 != request.volume {
                return Err(Status::new(Code::VolumeGone, "another volume is at that path"));
            }
        }
        if (request.incarnation >> 32) as u32 == incarnation_prefix(client) {
            permit.incarnation = request.incarnation;
        }
    }
    if request.lease != 0 {
        let ends = server
            .master
            .lease_ends(&request.lease_path, request.lease, now_ms)
            .ok_or_else(|| denied("the writer lease has ended"))?;
        permit.until_ms = permit.until_ms.min(ends);
    }
    let signed =
        server.authority.permit(&permit).map_err(|error| Status::new(Code::Internal, error.to_string()))?;
    Ok(encoded(&signed))
}

fn grant_of(server: &MasterServer, client: &str) -> Result<ClientRow, Status> {
    let clients = server.master.clients()?;
    let row = clients.into_iter().find(|row| row.name == client);
    row.ok_or_else(|| denied(format!("there is no client {client} any more")))
}

/// Refuses calls of a named client beyond its grant. Blocks.
pub(crate) fn check_client(
    server: &MasterServer,
    client: &str,
    method: Method,
    message: Bytes,
) -> Result<(), Status> {
    let granted = grant_of(server, client)?;
    let may = |rights: RightSet, paths: &[&str]| {
        let has = RightSet(granted.rights);
        if !has.contains(rights) {
            return Err(denied(format!("{client} was granted {has}, and this takes {rights}")));
        }
        match paths.iter().all(|path| is_within(path, &granted.path)) {
            true => Ok(()),
            false => Err(outside(client, &granted)),
        }
    };
    match method {
        Method::Ping | Method::WatchMap | Method::Suspect | Method::Leading | Method::Known => Ok(()),
        // Checks the grant itself.
        Method::Permit => Ok(()),
        // The client's existence was checked above.
        Method::Renew => Ok(()),
        Method::Resolve => {
            let request: messages::Resolve = read(message)?;
            // A client that creates a path checks first whether its parents exist.
            match is_within(&granted.path, &request.path) {
                true => Ok(()),
                false => may(RightSet::default(), &[&request.path]),
            }
        }
        Method::ListDirs => {
            let request: messages::ListDirs = read(message)?;
            may(RightSet::READ, &[&request.parent])
        }
        Method::Mkdir => {
            let request: messages::Mkdir = read(message)?;
            let path = match request.parent.as_str() {
                "" => request.name,
                parent => format!("{parent}/{}", request.name),
            };
            may(RightSet::CREATE, &[&path])
        }
        Method::Rename => {
            let request: messages::Rename = read(message)?;
            let both = RightSet(RightSet::CREATE.0 | RightSet::DELETE.0);
            may(both, &[&request.from, &request.to])
        }
        Method::Rmdir => {
            let request: messages::Rmdir = read(message)?;
            may(RightSet::DELETE, &[&request.path])?;
            // The volume of this number is removed, so it has to be the one at that path.
            let found = server.master.resolve(&request.path)?;
            match found.0 == request.volume && found != VolumeId::ROOT {
                true => Ok(()),
                false => Err(Status::new(Code::VolumeGone, "another volume is at that path")),
            }
        }
        Method::WriterLease => {
            let request: messages::WriterLease = read(message)?;
            may(RightSet::CREATE, &[&request.path])
        }
        // Refused later, with a sentence about releases.
        Method::Ask => Ok(()),
        method if Method::ADMINISTRATION.contains(&method) => {
            Err(denied(format!("{client} may not ask that: it takes the profile of the cluster")))
        }
        _ => Err(denied(format!("{client} may not do that"))),
    }
}

fn outside(client: &str, granted: &ClientRow) -> Status {
    denied(format!("{client} may do something below /{} only", granted.path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_covers_a_path_and_its_children() {
        assert!(is_within("vms", "vms") && is_within("vms/a", "vms") && is_within("anything", ""));
        assert!(!is_within("vmsx", "vms") && !is_within("", "vms") && !is_within("a/vms", "vms"));
    }
}
