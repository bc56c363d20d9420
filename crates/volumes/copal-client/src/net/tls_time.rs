//! Verification of certificates independent of this machine's clock.
//!
//! A handshake verifies names, signatures and the authority, but not the expiry by this clock. Otherwise no
//! process could reach a machine whose clock is wrong by a year, not even to report that.
//!
//! Expiry is judged by the cluster's clock:
//! - A server refuses callers with expired certificates after the handshake, with a reason (`copal-server`).
//! - A caller that knows the cluster's clock refuses data servers whose certificate has expired.
//! - It calls masters all the same: they send the clock and renew certificates.
//!
//! Invariant: a certificate is accepted only if it and all certificates above it were valid at the same moment.
//! The expiry of the authority's own certificate is ignored: it is a trust anchor, which is a name and a key.

use copal_volume::ReferenceClock;
use std::{
    error::Error as StdError,
    fmt,
    sync::{Arc, OnceLock},
    time::Duration,
};
use tokio_rustls::rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::CryptoProvider,
    pki_types::{CertificateDer, ServerName, UnixTime},
    server::danger::{ClientCertVerified, ClientCertVerifier},
};

/// Moments that are tried: the end or the beginning of the validity of each certificate in a chain.
const MOMENTS: usize = 4;

/// Verifies at `now`, or at the nearest moment at which the certificates were valid.
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

/// The cluster's clock. A caller receives it after its first connections.
#[derive(Clone, Default)]
pub struct CertificateClock(Arc<OnceLock<Arc<dyn ReferenceClock>>>);

impl CertificateClock {
    /// Judges certificates of servers by this clock from now on. Only the first call has an effect.
    pub fn set_clock(&self, clock: Arc<dyn ReferenceClock>) {
        let _ = self.0.set(clock);
    }

    fn now(&self) -> Option<UnixTime> {
        let now_ms = self.0.get()?.reference_ms()?;
        Some(UnixTime::since_unix_epoch(Duration::from_millis(now_ms)))
    }
}

impl fmt::Debug for CertificateClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CertificateClock").field(&self.now()).finish()
    }
}

/// The certificate of a server has expired by the cluster's clock.
#[derive(Debug)]
struct CertificateExpired {
    server: String,
    hours: u64,
}

impl fmt::Display for CertificateExpired {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the certificate of {} ended {} hours ago by the cluster's clock; the server gets another as soon as a master answers it",
            self.server, self.hours
        )
    }
}

impl StdError for CertificateExpired {}

/// Verifier methods for signatures, with the algorithms of its `provider`.
macro_rules! signatures_by_provider {
    () => {
        fn verify_tls12_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            let known = &self.provider.signature_verification_algorithms;
            tokio_rustls::rustls::crypto::verify_tls12_signature(message, certificate, signature, known)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            let known = &self.provider.signature_verification_algorithms;
            tokio_rustls::rustls::crypto::verify_tls13_signature(message, certificate, signature, known)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.provider.signature_verification_algorithms.supported_schemes()
        }
    };
}
pub(crate) use signatures_by_provider;

/// Verifies the server that is called.
#[derive(Debug)]
pub(crate) struct AnyTimeServerVerifier {
    pub(crate) verifier: Arc<dyn ServerCertVerifier>,
    pub(crate) provider: Arc<CryptoProvider>,
    pub(crate) clock: CertificateClock,
    /// Name of the masters. They are called even with an expired certificate: they send the clock and renew.
    pub(crate) renewer: ServerName<'static>,
}

impl ServerCertVerifier for AnyTimeServerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verify =
            |at| self.verifier.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, at);
        let verified = at_any_time(now, verify)?;
        let ended = self.clock.now().map(verify);
        let Some(Err(Error::InvalidCertificate(CertificateError::ExpiredContext { time, not_after }))) =
            ended
        else {
            return Ok(verified);
        };
        let ended = CertificateExpired {
            server: server_name.to_str().into_owned(),
            hours: time.as_secs().saturating_sub(not_after.as_secs()) / 3600,
        };
        if *server_name == self.renewer {
            tracing::warn!("{ended}");
            return Ok(verified);
        }
        let ended = CertificateError::Other(OtherError(Arc::new(ended)));
        Err(Error::InvalidCertificate(ended))
    }

    signatures_by_provider!();
}

/// Verifies the caller.
#[derive(Debug)]
pub(crate) struct AnyTimeClientVerifier {
    pub(crate) verifier: Arc<dyn ClientCertVerifier>,
    pub(crate) provider: Arc<CryptoProvider>,
}

impl ClientCertVerifier for AnyTimeClientVerifier {
    fn offer_client_auth(&self) -> bool {
        self.verifier.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.verifier.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.verifier.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        at_any_time(now, |at| self.verifier.verify_client_cert(end_entity, intermediates, at))
    }

    signatures_by_provider!();
}
