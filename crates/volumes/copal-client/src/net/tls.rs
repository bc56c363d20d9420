//! TLS between all processes of a cluster: each side shows a certificate of the cluster's authority.

use crate::net::tls_time::{AnyTimeClientVerifier, AnyTimeServerVerifier, CertificateClock};
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

/// Identity of a process: its certificate and key, and the authority that both sides trust. All PEM.
#[derive(Clone)]
pub struct TlsIdentity {
    /// Certificate of the cluster's authority.
    pub authority: String,
    /// Certificate of the process.
    pub certificate: String,
    /// Private key of the process.
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

/// Text of [`name_of_agent`], for signing requests.
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

/// Certificate and key that a process shows in handshakes. The certificate can be replaced while the process
/// runs. Cheap to clone; clones share the certificate.
#[derive(Clone, Debug)]
pub struct TlsCredentials {
    authority: String,
    certificate: Arc<ShownCertificate>,
}

#[derive(Debug)]
struct ShownCertificate {
    /// The authority's own certificate is shown, too.
    with_authority: bool,
    key: RwLock<Arc<CertifiedKey>>,
}

impl ResolvesServerCert for ShownCertificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.key.read()))
    }
}

impl ResolvesClientCert for ShownCertificate {
    fn resolve(&self, _hints: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.key.read()))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

impl TlsCredentials {
    /// Credentials of a client or a data server.
    /// # Errors
    /// The certificate or key cannot be used.
    pub fn new(identity: &TlsIdentity) -> Result<TlsCredentials, TlsError> {
        TlsCredentials::with_chain(identity, false)
    }

    /// Credentials of a master. It also shows its authority: a server that joins knows only its fingerprint.
    /// # Errors
    /// As [`TlsCredentials::new`].
    pub fn of_master(identity: &TlsIdentity) -> Result<TlsCredentials, TlsError> {
        TlsCredentials::with_chain(identity, true)
    }

    fn with_chain(identity: &TlsIdentity, with_authority: bool) -> Result<TlsCredentials, TlsError> {
        Ok(TlsCredentials {
            authority: identity.authority.clone(),
            certificate: Arc::new(ShownCertificate {
                with_authority,
                key: RwLock::new(certified_key(identity, with_authority)?),
            }),
        })
    }

    /// Shows another certificate of the same authority from now on. Calls in progress keep their connections; the
    /// next call opens a new one.
    /// # Errors
    /// It cannot be used; the previous certificate stays in use.
    pub fn replace(&self, identity: &TlsIdentity) -> Result<(), TlsError> {
        if identity.authority != self.authority {
            return Err(unusable("it belongs to another authority"));
        }
        let key = certified_key(identity, self.certificate.with_authority)?;
        *self.certificate.key.write() = key;
        Ok(())
    }

    /// TLS configuration for outgoing calls.
    /// # Errors
    /// The authority's certificate cannot be used.
    pub fn client_tls(&self) -> Result<Arc<ClientConfig>, TlsError> {
        self.client_tls_with_clock(CertificateClock::default())
    }

    /// As [`TlsCredentials::client_tls`]; refuses data servers whose certificate has expired by this clock.
    /// # Errors
    /// As [`TlsCredentials::client_tls`].
    pub fn client_tls_with_clock(&self, clock: CertificateClock) -> Result<Arc<ClientConfig>, TlsError> {
        let provider = Arc::new(ring::default_provider());
        let verifier =
            WebPkiServerVerifier::builder_with_provider(roots(&self.authority)?, Arc::clone(&provider));
        let verifier = verifier.build().map_err(unusable)?;
        let verifier = AnyTimeServerVerifier {
            verifier,
            provider: Arc::clone(&provider),
            clock,
            renewer: name_of_master(),
        };
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(unusable)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_client_cert_resolver(Arc::clone(&self.certificate) as _);
        // A resumed session would verify no certificate: it has those of its first handshake.
        config.resumption = Resumption::disabled();
        Ok(Arc::new(config))
    }

    /// TLS configuration for incoming calls. The handshake requires a certificate of the authority.
    /// # Errors
    /// The authority's certificate cannot be used.
    pub fn server_tls(&self) -> Result<Arc<ServerConfig>, TlsError> {
        self.server_config(false)
    }

    /// TLS configuration for incoming calls to a master. It also accepts callers without a certificate, so that
    /// they can join.
    /// # Errors
    /// The authority's certificate cannot be used.
    pub fn master_tls(&self) -> Result<Arc<ServerConfig>, TlsError> {
        self.server_config(true)
    }

    fn server_config(&self, allow_unauthenticated: bool) -> Result<Arc<ServerConfig>, TlsError> {
        let provider = Arc::new(ring::default_provider());
        let verifier =
            WebPkiClientVerifier::builder_with_provider(roots(&self.authority)?, Arc::clone(&provider));
        let verifier = match allow_unauthenticated {
            true => verifier.allow_unauthenticated().build(),
            false => verifier.build(),
        };
        let verifier =
            AnyTimeClientVerifier { verifier: verifier.map_err(unusable)?, provider: Arc::clone(&provider) };
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(unusable)?
            .with_client_cert_verifier(Arc::new(verifier))
            .with_cert_resolver(Arc::clone(&self.certificate) as _);
        // No session is resumed by callers of earlier releases either.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    }
}

fn certified_key(identity: &TlsIdentity, with_authority: bool) -> Result<Arc<CertifiedKey>, TlsError> {
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

/// TLS configuration for outgoing calls.
/// # Errors
/// The certificate or key cannot be used.
pub fn client_tls(identity: &TlsIdentity) -> Result<Arc<ClientConfig>, TlsError> {
    TlsCredentials::new(identity)?.client_tls()
}

/// TLS configuration for incoming calls to a master; see [`TlsCredentials::master_tls`].
/// # Errors
/// The certificate or key cannot be used.
pub fn master_tls(identity: &TlsIdentity) -> Result<Arc<ServerConfig>, TlsError> {
    TlsCredentials::of_master(identity)?.master_tls()
}

/// TLS configuration for incoming calls; see [`TlsCredentials::server_tls`].
/// # Errors
/// The certificate or key cannot be used.
pub fn server_tls(identity: &TlsIdentity) -> Result<Arc<ServerConfig>, TlsError> {
    TlsCredentials::new(identity)?.server_tls()
}
