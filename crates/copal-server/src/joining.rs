//! How a new data server joins: it makes its own key, shows the token, and gets a certificate for the name it has drawn.

use crate::token::JoinToken;
use copal_client::{CallError, Connections, Identity, Masters, joining_tls};
use copal_proto::{Method, messages};
use rcgen::{CertificateParams, KeyPair};
use std::time::Duration;

/// What a server that joins says of itself.
#[derive(Clone, Debug)]
pub struct Joining {
    /// Its name, unique in the cluster.
    pub name: String,
    /// Where it listens.
    pub address: String,
    /// Drawn by it: the name in its certificate.
    pub server_uuid: [u8; 16],
    /// Drawn by it: its disk.
    pub disk_uuid: [u8; 16],
    /// Bytes it can hold.
    pub capacity_bytes: u64,
}

/// Why a server did not join.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// No key can be made.
    #[error("no key can be made: {0}")]
    Key(#[from] rcgen::Error),
    /// The master was not reached, or refuses.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The master's answer makes no sense.
    #[error("the master's answer has no cluster")]
    Malformed,
}

/// Joins the cluster of a token: its id, and who the server is from here on. The key never leaves the process.
/// # Errors
/// All of them; the token may be used up by then.
pub async fn join(
    token: &JoinToken,
    joining: &Joining,
    deadline: Duration,
) -> Result<([u8; 16], Identity), JoinError> {
    let key = KeyPair::generate()?;
    let request = CertificateParams::default().serialize_request(&key)?.pem()?;
    let masters = Masters::new(&token.masters, Connections::new(joining_tls(token.fingerprint)));
    let request = messages::Join {
        secret: token.secret(),
        name: joining.name.clone(),
        address: joining.address.clone(),
        server_uuid: joining.server_uuid.to_vec().into(),
        disk_uuid: joining.disk_uuid.to_vec().into(),
        signing_request: request,
        capacity_bytes: joining.capacity_bytes,
    };
    let joined: messages::Joined = masters.call(Method::Join, &request, deadline).await?;
    let cluster = joined
        .cluster
        .as_ref()
        .try_into()
        .map_err(|_| JoinError::Malformed)?;
    let identity = Identity {
        authority: joined.authority,
        certificate: joined.certificate,
        key: key.serialize_pem(),
    };
    Ok((cluster, identity))
}
