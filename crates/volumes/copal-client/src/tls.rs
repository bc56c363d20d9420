//! TLS between all processes of a cluster: each shows a certificate of the cluster's own authority.

use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject};
use std::sync::Arc;
use tokio_rustls::rustls::{
    ClientConfig, RootCertStore, ServerConfig, crypto::ring, server::WebPkiClientVerifier, version::TLS13,
};

/// Who a process is: certificate and key, and the authority that both sides trust. PEM.
#[derive(Clone)]
pub struct Identity {
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

fn chain(identity: &Identity) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TlsError> {
    let certificates = CertificateDer::pem_slice_iter(identity.certificate.as_bytes());
    let certificates = certificates.collect::<Result<_, _>>().map_err(unusable)?;
    let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).map_err(unusable)?;
    Ok((certificates, key))
}

/// How this process calls others.
/// # Errors
/// The certificate or key cannot be used.
pub fn client_tls(identity: &Identity) -> Result<Arc<ClientConfig>, TlsError> {
    let (certificates, key) = chain(identity)?;
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&TLS13])
        .map_err(unusable)?
        .with_root_certificates(roots(&identity.authority)?)
        .with_client_auth_cert(certificates, key);
    Ok(Arc::new(config.map_err(unusable)?))
}

/// How a master is called: who shows no certificate gets past the handshake, to join.
/// # Errors
/// The certificate or key cannot be used.
pub fn master_tls(identity: &Identity) -> Result<Arc<ServerConfig>, TlsError> {
    let provider = Arc::new(ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(roots(&identity.authority)?, provider.clone());
    let verifier = verifier.allow_unauthenticated().build().map_err(unusable)?;
    let (mut certificates, key) = chain(identity)?;
    // Whoever joins knows the authority by its fingerprint only.
    for certificate in CertificateDer::pem_slice_iter(identity.authority.as_bytes()) {
        certificates.push(certificate.map_err(unusable)?);
    }
    let config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .map_err(unusable)?
        .with_client_cert_verifier(verifier)
        .with_single_cert(certificates, key);
    Ok(Arc::new(config.map_err(unusable)?))
}

/// How this process is called: nobody without a certificate of the authority gets past the handshake.
/// # Errors
/// The certificate or key cannot be used.
pub fn server_tls(identity: &Identity) -> Result<Arc<ServerConfig>, TlsError> {
    let (certificates, key) = chain(identity)?;
    let provider = Arc::new(ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(roots(&identity.authority)?, provider.clone());
    let config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .map_err(unusable)?
        .with_client_cert_verifier(verifier.build().map_err(unusable)?)
        .with_single_cert(certificates, key);
    Ok(Arc::new(config.map_err(unusable)?))
}
