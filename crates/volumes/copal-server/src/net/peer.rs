//! Identity of a connected peer: its address, its certificate and the permit of the call.

use crate::net::status::Status;
use crate::net::validity::CertificateValidity;
use bytes::Bytes;
use copal_proto::{Method, messages::failure::Code};
use std::{net::SocketAddr, sync::Arc};
use tokio_rustls::rustls::{
    client::verify_server_name,
    pki_types::{CertificateDer, ServerName},
    server::ParsedCertificate,
};
use webpki::EndEntityCert;

/// The caller of a server.
#[derive(Clone, Debug)]
pub struct PeerIdentity {
    /// Its address.
    pub address: SocketAddr,
    /// Its certificate, signed by the authority. Without one it may only ask to join.
    pub certificate: Option<Arc<[u8]>>,
    /// The name in its certificate; empty without a certificate.
    pub name: Arc<str>,
    /// The permit that came with the call; empty: none.
    pub permit: Bytes,
    /// Validity of its certificate; `None`: it has no readable one.
    pub validity: Option<CertificateValidity>,
}

/// Name in the certificate of a client with all rights.
pub const CLIENT_NAME: &str = "client.copal";

impl PeerIdentity {
    pub(crate) fn new(address: SocketAddr, certificate: Option<Arc<[u8]>>) -> PeerIdentity {
        let name = certificate.as_ref().and_then(|certificate| {
            let certificate = CertificateDer::from(certificate.as_ref());
            let parsed = EndEntityCert::try_from(&certificate).ok()?;
            parsed.valid_dns_names().next().map(Arc::from)
        });
        let validity = certificate.as_ref().and_then(|certificate| CertificateValidity::of_der(certificate));
        PeerIdentity {
            address,
            validity,
            certificate,
            name: name.unwrap_or_else(|| Arc::from("")),
            permit: Bytes::new(),
        }
    }

    /// Whether the peer is a client, not a master or a data server.
    pub fn is_client(&self) -> bool {
        *self.name == *CLIENT_NAME || self.client_name().is_some()
    }

    /// The name of a client with granted rights only.
    pub fn client_name(&self) -> Option<&str> {
        self.name.strip_suffix(CLIENT_NAME)?.strip_suffix('.')
    }

    /// Refuses a peer whose certificate has expired by the cluster's clock. A server may still renew: it has
    /// the key, and no operator is present to renew in its place.
    pub(crate) fn check_certificate(&self, now_ms: Option<u64>, method: Method) -> Result<(), Status> {
        let (Some(validity), Some(now_ms)) = (self.validity, now_ms) else {
            return Ok(());
        };
        if !validity.has_ended(now_ms) || (method == Method::Renew && !self.is_client()) {
            return Ok(());
        }
        let day = validity.last_day();
        let text = match self.client_name() {
            Some(name) => format!(
                "the certificate of client {name} ended on {day}; `copal client renew {name}` writes a new profile, with one that \
                 may do everything"
            ),
            None if self.is_client() => format!(
                "the certificate of this profile ended on {day}; take client.json from the directory of a master that was started \
                 since then"
            ),
            None => format!(
                "the certificate of {} ended on {day}; it gets another as soon as a master answers",
                self.name
            ),
        };
        Err(Status::new(Code::CertificateEnded, text))
    }

    /// Whether the peer's certificate carries this name.
    pub fn is(&self, name: &ServerName<'_>) -> bool {
        let Some(certificate) = &self.certificate else {
            return false;
        };
        let certificate = CertificateDer::from(certificate.as_ref());
        let parsed = ParsedCertificate::try_from(&certificate);
        parsed.is_ok_and(|parsed| verify_server_name(&parsed, name).is_ok())
    }
}
