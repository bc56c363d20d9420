//! Named clients: list, add, renew, remove.
//!
//! Not here: their rights (`permits`).

use super::answer;
use crate::master::permits::PERMIT_MS;
use crate::master::server::MasterServer;
use crate::net::peer::CLIENT_NAME;
use crate::net::status::Status;
use bytes::Bytes;
use copal_master::ClientRow;
use copal_proto::{
    Method, RightSet,
    administration::{ClientCertificate, ClientList, ClientRights, RemovedClient},
    messages::{self, failure::Code},
};
use copal_volume::split_path;

/// Longest name of a client.
const MAX_NAME_BYTES: usize = 40;

fn invalid(text: impl Into<String>) -> Status {
    Status::new(Code::Invalid, text)
}

fn no_client(name: &str) -> Status {
    Status::new(Code::NotFound, format!("there is no client {name}"))
}

fn check_name(name: &str) -> Result<(), Status> {
    let is_of_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let is_good = (1..=MAX_NAME_BYTES).contains(&name.len()) && name.chars().all(is_of_name);
    match is_good && !name.starts_with('-') {
        true => Ok(()),
        false => Err(invalid(format!(
            "a client is called by up to {MAX_NAME_BYTES} small letters, digits and dashes"
        ))),
    }
}

/// Answers a request about named clients. Blocks.
pub(super) fn change_clients(server: &MasterServer, method: Method, message: Bytes) -> Result<Bytes, Status> {
    match method {
        Method::AddClient => answer(message, |request| add_client(server, request)),
        Method::RenewClient => answer(message, |request| renew_client(server, request)),
        Method::RemoveClient => answer(message, |request| remove_client(server, request)),
        _ => answer(message, |_: messages::ListClients| {
            let rights = |row: ClientRow| ClientRights {
                name: row.name,
                path: row.path,
                rights: RightSet(row.rights).to_string(),
                made_ms: row.made_ms,
            };
            Ok(ClientList { clients: server.master.clients()?.into_iter().map(rights).collect() })
        }),
    }
}

fn add_client(server: &MasterServer, request: messages::AddClient) -> Result<ClientCertificate, Status> {
    let messages::AddClient { name, path, rights, signing_request } = request;
    check_name(&name)?;
    split_path(&path).map_err(|error| invalid(error.to_string()))?;
    let rights =
        RightSet::parse(&rights).ok_or_else(|| invalid("rights are read, create and delete, with commas"))?;
    let certificate = client_certificate(server, &name, &signing_request)?;
    let row = ClientRow { name: name.clone(), path, rights: rights.0, made_ms: server.now_ms() };
    match server.master.add_client(&row)? {
        true => Ok(ClientCertificate { name, certificate }),
        false => Err(Status::new(Code::Exists, format!("there is a client {name} already"))),
    }
}

fn renew_client(server: &MasterServer, request: messages::RenewClient) -> Result<ClientCertificate, Status> {
    let messages::RenewClient { name, signing_request } = request;
    if !server.master.clients()?.iter().any(|row| row.name == name) {
        return Err(no_client(&name));
    }
    let certificate = client_certificate(server, &name, &signing_request)?;
    Ok(ClientCertificate { name, certificate })
}

fn remove_client(server: &MasterServer, request: messages::RemoveClient) -> Result<RemovedClient, Status> {
    let messages::RemoveClient { name } = request;
    match server.master.remove_client(&name, server.now_ms())? {
        true => Ok(RemovedClient { removed: name, minutes: PERMIT_MS / 60_000 }),
        false => Err(no_client(&name)),
    }
}

fn client_certificate(server: &MasterServer, name: &str, signing_request: &str) -> Result<String, Status> {
    let signed = server.authority.sign(signing_request, &format!("{name}.{CLIENT_NAME}"), server.now_ms());
    signed.map_err(|error| invalid(error.to_string()))
}
