//! Named clients: which there are, a new one, a new certificate, one that is taken away.
//!
//! Not here: what they may do (`permitting`).

use super::answer;
use crate::{listener::CLIENT_NAME, master_server::MasterServer, permitting::PERMIT_MS, status::Status};
use bytes::Bytes;
use copal_master::ClientRow;
use copal_proto::{
    Method, RightSet,
    administration::{ClientCertificate, ClientList, ClientRights, RemovedClient},
    messages::{self, failure::Code},
};
use copal_volume::split_path;

/// Longest name of a client.
const MOST_NAME: usize = 40;

fn invalid(text: impl Into<String>) -> Status {
    Status::new(Code::Invalid, text)
}

fn no_client(name: &str) -> Status {
    Status::new(Code::NotFound, format!("there is no client {name}"))
}

fn check_name(name: &str) -> Result<(), Status> {
    let is_of_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let is_good = (1..=MOST_NAME).contains(&name.len()) && name.chars().all(is_of_name);
    match is_good && !name.starts_with('-') {
        true => Ok(()),
        false => {
            Err(invalid(format!("a client is called by up to {MOST_NAME} small letters, digits and dashes")))
        }
    }
}

impl MasterServer {
    /// Answers a request about named clients. Blocks.
    pub(super) fn change_clients(&self, method: Method, message: Bytes) -> Result<Bytes, Status> {
        match method {
            Method::AddClient => answer(message, |request| self.add_client(request)),
            Method::RenewClient => answer(message, |request| self.renew_client(request)),
            Method::RemoveClient => answer(message, |request| self.remove_client(request)),
            _ => answer(message, |_: messages::ListClients| {
                let rights = |row: ClientRow| ClientRights {
                    name: row.name,
                    path: row.path,
                    rights: RightSet(row.rights).to_string(),
                    made_ms: row.made_ms,
                };
                Ok(ClientList { clients: self.master.clients()?.into_iter().map(rights).collect() })
            }),
        }
    }

    fn add_client(&self, request: messages::AddClient) -> Result<ClientCertificate, Status> {
        let messages::AddClient { name, path, rights, signing_request } = request;
        check_name(&name)?;
        split_path(&path).map_err(|error| invalid(error.to_string()))?;
        let rights = RightSet::parse(&rights)
            .ok_or_else(|| invalid("rights are read, create and delete, with commas"))?;
        let certificate = self.client_certificate(&name, &signing_request)?;
        let row = ClientRow { name: name.clone(), path, rights: rights.0, made_ms: self.now_ms() };
        match self.master.add_client(&row)? {
            true => Ok(ClientCertificate { name, certificate }),
            false => Err(Status::new(Code::Exists, format!("there is a client {name} already"))),
        }
    }

    fn renew_client(&self, request: messages::RenewClient) -> Result<ClientCertificate, Status> {
        let messages::RenewClient { name, signing_request } = request;
        if !self.master.clients()?.iter().any(|row| row.name == name) {
            return Err(no_client(&name));
        }
        let certificate = self.client_certificate(&name, &signing_request)?;
        Ok(ClientCertificate { name, certificate })
    }

    fn remove_client(&self, request: messages::RemoveClient) -> Result<RemovedClient, Status> {
        let messages::RemoveClient { name } = request;
        match self.master.remove_client(&name, self.now_ms())? {
            true => Ok(RemovedClient { removed: name, minutes: PERMIT_MS / 60_000 }),
            false => Err(no_client(&name)),
        }
    }

    fn client_certificate(&self, name: &str, signing_request: &str) -> Result<String, Status> {
        let signed = self.authority.sign(signing_request, &format!("{name}.{CLIENT_NAME}"), self.now_ms());
        signed.map_err(|error| invalid(error.to_string()))
    }
}
