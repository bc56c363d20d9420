//! Joining of a new data server or master. A data server makes its own key, presents the token, and receives
//! a certificate for the name that it has drawn.

use crate::security::authority::CertificateAuthority;
use crate::security::token::JoinToken;
use copal_client::{CallError, ConnectionPool, Masters, TlsIdentity, joining_tls};
use copal_proto::{
    Method,
    messages::{self, failure::Code},
};
use prost::Message;
use rcgen::{CertificateParams, KeyPair};
use std::time::{Duration, Instant};

/// A new key and the signing request for it.
pub struct SigningRequest {
    /// The key, PEM.
    pub key: String,
    /// The request, PEM.
    pub request: String,
}

impl SigningRequest {
    /// Makes a key.
    /// # Errors
    /// No key can be made.
    pub fn draw() -> Result<SigningRequest, rcgen::Error> {
        let key = KeyPair::generate()?;
        Ok(SigningRequest {
            request: CertificateParams::default().serialize_request(&key)?.pem()?,
            key: key.serialize_pem(),
        })
    }
}

/// Identity of a joining data server.
#[derive(Clone, Debug)]
pub struct JoiningServer {
    /// Its name, unique in the cluster.
    pub name: String,
    /// The address that others reach it at.
    pub address: String,
    /// Drawn by itself; the name in its certificate.
    pub server_uuid: [u8; 16],
    /// Drawn by itself; identifies its disk.
    pub disk_uuid: [u8; 16],
    /// Capacity in bytes.
    pub capacity_bytes: u64,
    /// Zone and rack; empty: not given.
    pub place: (String, String),
}

/// Why a server did not join.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// No key can be made.
    #[error("no key can be made: {0}")]
    Key(#[from] rcgen::Error),
    /// The master was not reached, or refused.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The master's answer is malformed.
    #[error("the master's answer has no cluster")]
    Malformed,
}

/// Joins the cluster of a token. Returns the id of the cluster and the new identity. The key never leaves the
/// process.
/// # Errors
/// All variants; the token may be used up.
pub async fn join(
    token: &JoinToken,
    joining: &JoiningServer,
    deadline: Duration,
) -> Result<([u8; 16], TlsIdentity), JoinError> {
    let drawn = SigningRequest::draw()?;
    let request = messages::Join {
        secret: token.secret(),
        name: joining.name.clone(),
        address: joining.address.clone(),
        server_uuid: joining.server_uuid.to_vec().into(),
        disk_uuid: joining.disk_uuid.to_vec().into(),
        signing_request: drawn.request,
        capacity_bytes: joining.capacity_bytes,
        zone: joining.place.0.clone(),
        rack: joining.place.1.clone(),
    };
    let joined: messages::Joined = ask_any(token, Method::Join, &request, deadline).await?;
    let cluster = joined.cluster.as_ref().try_into().map_err(|_| JoinError::Malformed)?;
    let identity =
        TlsIdentity { authority: joined.authority, certificate: joined.certificate, key: drawn.key };
    Ok((cluster, identity))
}

/// The cluster as a newly joined master receives it.
pub struct JoinedMaster {
    /// The id of the cluster.
    pub cluster: [u8; 16],
    /// Its authority, including the key.
    pub authority: CertificateAuthority,
    /// Addresses of all masters, including the new one.
    pub masters: Vec<String>,
}

/// Joins the cluster of a token as a master at `address`.
/// # Errors
/// All variants; the token may be used up.
pub async fn join_as_master(
    token: &JoinToken,
    address: &str,
    deadline: Duration,
) -> Result<JoinedMaster, JoinError> {
    let request = messages::JoinMaster { secret: token.secret(), address: address.to_owned() };
    let joined: messages::JoinedMaster = ask_any(token, Method::JoinMaster, &request, deadline).await?;
    let cluster = joined.cluster.as_ref().try_into();
    Ok(JoinedMaster {
        cluster: cluster.map_err(|_| JoinError::Malformed)?,
        authority: CertificateAuthority::of_pem(joined.authority, joined.authority_key),
        masters: joined.masters,
    })
}

/// Asks the masters of a token in turn until the leader answers. Each call has its own connection: an
/// unauthenticated peer may make one call.
async fn ask_any<T: Message + Default>(
    token: &JoinToken,
    method: Method,
    request: &impl Message,
    deadline: Duration,
) -> Result<T, CallError> {
    const EACH: Duration = Duration::from_secs(2);
    let end = Instant::now() + deadline;
    loop {
        let mut last = CallError::Deadline;
        for address in &token.masters {
            let tls = joining_tls(token.fingerprint);
            let masters = Masters::new(std::slice::from_ref(address), ConnectionPool::new(tls));
            let left = end.saturating_duration_since(Instant::now());
            let patience = match token.masters.len() {
                1 => left,
                _ => left.min(EACH),
            };
            match masters.call(method, request, patience).await {
                Ok(answer) => return Ok(answer),
                Err(error @ CallError::Unreachable { .. }) => last = error,
                Err(CallError::Failed(failure)) if failure.code == i32::from(Code::NotLeader) => {
                    last = CallError::Failed(failure);
                }
                Err(error) => return Err(error),
            }
        }
        if Instant::now() >= end {
            return Err(last);
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
