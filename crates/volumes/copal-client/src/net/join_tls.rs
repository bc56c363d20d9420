//! TLS of a server that joins: it has no certificate yet, and knows the authority only by its fingerprint.

use crate::net::tls_time::{at_any_time, signatures_by_provider};
use sha2::{Digest, Sha256};
use std::sync::Arc;
use tokio_rustls::rustls::{
    ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, ServerName, UnixTime},
    version::TLS13,
};

/// Fingerprint of an authority in a token: SHA-256 of its certificate.
pub fn fingerprint(certificate: &[u8]) -> [u8; 32] {
    Sha256::digest(certificate).into()
}

/// TLS configuration of a server that joins. The master shows its authority's certificate along with its own, and
/// it must match the fingerprint.
/// # Panics
/// Never: the provider knows TLS 1.3.
pub fn joining_tls(fingerprint: [u8; 32]) -> Arc<ClientConfig> {
    let provider = Arc::new(ring::default_provider());
    let verifier = FingerprintVerifier { fingerprint, provider: Arc::clone(&provider) };
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .expect("the provider knows TLS 1.3")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    Arc::new(config)
}

#[derive(Debug)]
struct FingerprintVerifier {
    fingerprint: [u8; 32],
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for FingerprintVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let mut shown = intermediates.iter().filter(|shown| fingerprint(shown) == self.fingerprint);
        let none = "the master's authority is not the one of the token";
        let authority = shown.next().ok_or_else(|| Error::General(none.to_owned()))?;
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone().into_owned())?;
        let verifier =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&self.provider));
        let verifier = verifier.build().map_err(|error| Error::General(error.to_string()))?;
        // A machine whose clock is wrong may join all the same; the master then reports the difference.
        at_any_time(now, |at| verifier.verify_server_cert(end_entity, &[], server_name, ocsp_response, at))
    }

    signatures_by_provider!();
}
