//! Certificates are verified whatever this machine's clock shows: names, signatures and the authority count in a handshake, ends do
//! not. When a certificate has ended, its owner is told so by the cluster's clock once it is connected (`copal-server`).
//!
//! A machine whose clock is wrong by a year would otherwise be reached by nobody, and nobody could tell it.
//!
//! Invariant: a certificate is accepted only if there is a moment at which it and its authority were good together.

use std::{fmt::Debug, sync::Arc};
use tokio_rustls::rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    pki_types::{CertificateDer, ServerName, UnixTime},
    server::danger::{ClientCertVerified, ClientCertVerifier},
};

/// Moments that are tried: the end or the beginning of each certificate of a chain.
const MOMENTS: usize = 4;

/// Verifies at `now`, or at the nearest moment at which the certificates were good.
pub(crate) fn at_any_time<T>(
    now: UnixTime,
    mut verify: impl FnMut(UnixTime) -> Result<T, Error>,
) -> Result<T, Error> {
    let mut at = now;
    for _ in 0..MOMENTS {
        match verify(at) {
            Err(Error::InvalidCertificate(CertificateError::ExpiredContext { not_after, .. })) => {
                at = not_after;
            }
            Err(Error::InvalidCertificate(CertificateError::NotValidYetContext { not_before, .. })) => {
                at = not_before;
            }
            other => return other,
        }
    }
    verify(at)
}

/// Verifies who is called.
#[derive(Debug)]
pub(crate) struct ServerAtAnyTime(pub(crate) Arc<dyn ServerCertVerifier>);

impl ServerCertVerifier for ServerAtAnyTime {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        at_any_time(now, |at| {
            self.0
                .verify_server_cert(end_entity, intermediates, server_name, ocsp_response, at)
        })
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

/// Verifies who calls.
#[derive(Debug)]
pub(crate) struct ClientAtAnyTime(pub(crate) Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for ClientAtAnyTime {
    fn offer_client_auth(&self) -> bool {
        self.0.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.0.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        at_any_time(now, |at| self.0.verify_client_cert(end_entity, intermediates, at))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}
