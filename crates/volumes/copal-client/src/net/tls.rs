//! TLS between all processes of a cluster: each shows a certificate of the cluster's own authority.

use crate::net::tls_time::{CertificateClock, ClientAtAnyTime, ServerAtAnyTime};
use parking_lot::RwLock;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject};
use std::sync::Arc;
use tokio_rustls::rustls::{
    ClientConfig, RootCertStore, ServerConfig, SignatureScheme,
    client::{ResolvesClientCert, Resumption, WebPkiServerVerifier},
    crypto::ring,
    server::{ClientHello, NoServerSessionStorage, ResolvesServerCert, WebPkiClientVerifier},
    sign::CertifiedKey,
    version::TLS13,
};

/// Who a process is: certificate and key, and the authority that both sides trust. PEM.
#[derive(Clone)]
pub struct TlsIdentity {
    /// Certificate of the cluster's authority.
    pub authority: String,
    /// The process' own.
    pub certificate: String,
    /// Its private key.
    pub key: String,
}

/// A certificate or key that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the certificate of this process cannot be used: {0}")]
pub struct TlsError(String);

fn unusable(error: impl std::fmt::Display) -> TlsError {
    TlsError(error.to_string())
}

/// Name in the certificate of a master.
pub fn name_of_master() -> ServerName<'static> {
    ServerName::try_from("master.copal").expect("a name of letters and a dot")
}

/// Name in the certificate of each agent of a fleet.
pub fn name_of_agent() -> ServerName<'static> {
    ServerName::try_from(AGENT_NAME).expect("a name of letters and a dot")
}

/// As [`name_of_agent`], for a certificate that is to be signed.
pub const AGENT_NAME: &str = "agent.copal";

/// Name in the certificate of a data server.
pub fn name_of_server(uuid: &[u8]) -> ServerName<'static> {
    let hex: String = uuid.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    ServerName::try_from(format!("{hex}.copal")).expect("a name of letters, digits and a dot")
}

fn roots(authority: &str) -> Result<Arc<RootCertStore>, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(authority.as_bytes()) {
        roots.add(certificate.map_err(unusable)?).map_err(unusable)?;
    }
    Ok(Arc::new(roots))
}

/// Certificate and key of a process, as it shows them in handshakes; another certificate may take the place
/// of this one while the process runs. Cheap to clone.
#[derive(Clone, Debug)]
pub struct TlsCredentials {
    authority: String,
    shown: Arc<Shown>,
}

#[derive(Debug)]
struct Shown {
    /// The authority's own certificate is shown, too.
    with_authority: bool,
    key: RwLock<Arc<CertifiedKey>>,
}

impl ResolvesServerCert for Shown {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.key.read()))
    }
}

impl ResolvesClientCert for Shown {
    fn resolve(&self, _hints: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.key.read()))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

impl TlsCredentials {
    /// What an identity shows.
    /// # Errors
    /// The certificate or key cannot be used.
    pub fn new(identity: &TlsIdentity) -> Result<TlsCredentials, TlsError> {
        TlsCredentials::shown(identity, false)
    }

    /// What a master shows: whoever joins knows the authority by its fingerprint only.
    /// # Errors
    /// As [`TlsCredentials::new`].
    pub fn of_master(identity: &TlsIdentity) -> Result<TlsCredentials, TlsError> {
        TlsCredentials::shown(identity, true)
    }

    fn shown(identity: &TlsIdentity, with_authority: bool) -> Result<TlsCredentials, TlsError> {
        Ok(TlsCredentials {
            authority: identity.authority.clone(),
            shown: Arc::new(Shown { with_authority, key: RwLock::new(certified(identity, with_authority)?) }),
        })
    }

    /// Shows another certificate of the same authority from here on. What uses a connection that is there
    /// goes on; the next call opens another.
    /// # Errors
    /// It cannot be used; the one before it is shown still.
    pub fn replace(&self, identity: &TlsIdentity) -> Result<(), TlsError> {
        if identity.authority != self.authority {
            return Err(unusable("it is of another authority"));
        }
        let certified = certified(identity, self.shown.with_authority)?;
        *self.shown.key.write() = certified;
        Ok(())
    }

    /// How the process calls others.
    /// # Errors
    /// The authority's certificate cannot be used.
    pub fn client_tls(&self) -> Result<Arc<ClientConfig>, TlsError> {
        self.client_tls_with_clock(CertificateClock::default())
    }

    /// As [`TlsCredentials::client_tls`]; data servers whose certificate has ended by this clock are not called.
    /// # Errors
    /// As [`TlsCredentials::client_tls`].
    pub fn client_tls_with_clock(&self, clock: CertificateClock) -> Result<Arc<ClientConfig>, TlsError> {
        let provider = Arc::new(ring::default_provider());
        let verifier =
            WebPkiServerVerifier::builder_with_provider(roots(&self.authority)?, Arc::clone(&provider));
        let verifier = verifier.build().map_err(unusable)?;
        let verifier =
            ServerAtAnyTime { verifier, provider: Arc::clone(&provider), clock, renewer: name_of_master() };
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(unusable)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_client_cert_resolver(Arc::clone(&self.shown) as _);
        // A session that is resumed shows the certificates of the handshake that began it, and judges none.
        config.resumption = Resumption::disabled();
        Ok(Arc::new(config))
    }

    /// How the process is called: nobody without a certificate of the authority gets past the handshake.
    /// # Errors
    /// The authority's certificate cannot be used.
    pub fn server_tls(&self) -> Result<Arc<ServerConfig>, TlsError> {
        self.called(false)
    }

    /// How a master is called: who shows no certificate gets past the handshake, to join.
    /// # Errors
    /// The authority's certificate cannot be used.
    pub fn master_tls(&self) -> Result<Arc<ServerConfig>, TlsError> {
        self.called(true)
    }

    fn called(&self, by_anybody: bool) -> Result<Arc<ServerConfig>, TlsError> {
        let provider = Arc::new(ring::default_provider());
        let verifier =
            WebPkiClientVerifier::builder_with_provider(roots(&self.authority)?, Arc::clone(&provider));
        let verifier = match by_anybody {
            true => verifier.allow_unauthenticated().build(),
            false => verifier.build(),
        };
        let verifier =
            ClientAtAnyTime { verifier: verifier.map_err(unusable)?, provider: Arc::clone(&provider) };
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(unusable)?
            .with_client_cert_verifier(Arc::new(verifier))
            .with_cert_resolver(Arc::clone(&self.shown) as _);
        // The same, for a caller of an earlier release.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    }
}

fn certified(identity: &TlsIdentity, with_authority: bool) -> Result<Arc<CertifiedKey>, TlsError> {
    let mut chain = Vec::new();
    let pems = [&identity.certificate, &identity.authority];
    for pem in &pems[..1 + usize::from(with_authority)] {
        for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
            chain.push(certificate.map_err(unusable)?);
        }
    }
    let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).map_err(unusable)?;
    let certified = CertifiedKey::from_der(chain, key, &ring::default_provider());
    Ok(Arc::new(certified.map_err(unusable)?))
}

/// How this process calls others.
/// # Errors
/// The certificate or key cannot be used.
pub fn client_tls(identity: &TlsIdentity) -> Result<Arc<ClientConfig>, TlsError> {
    TlsCredentials::new(identity)?.client_tls()
}

/// How a master is called: who shows no certificate gets past the handshake, to join.
/// # Errors
/// The certificate or key cannot be used.
pub fn master_tls(identity: &TlsIdentity) -> Result<Arc<ServerConfig>, TlsError> {
    TlsCredentials::of_master(identity)?.master_tls()
}

/// How this process is called: nobody without a certificate of the authority gets past the handshake.
/// # Errors
/// The certificate or key cannot be used.
pub fn server_tls(identity: &TlsIdentity) -> Result<Arc<ServerConfig>, TlsError> {
    TlsCredentials::new(identity)?.server_tls()
}
