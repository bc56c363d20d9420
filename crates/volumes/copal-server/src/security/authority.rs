//! Certificate authority of a cluster or a fleet: it signs the certificates of all its processes.

use crate::net::validity::LEAF_LIFE;
use copal_client::TlsIdentity;
use copal_proto::{messages, signed_part};
use prost::Message;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DnType, ExtendedKeyUsagePurpose,
    IsCa, Issuer, KeyPair, KeyUsagePurpose, PKCS_ED25519, SigningKey,
};
use sha2::{Digest, Sha256};
use std::time::Duration;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, pem::PemObject};

/// Lifetime of the authority's certificate: ten years.
const AUTHORITY_LIFE: Duration = Duration::from_secs(3653 * DAY_S);
/// Certificates become valid this long before they are made, since clocks differ.
const BEGINS_BEFORE: Duration = Duration::from_secs(DAY_S);
const DAY_S: u64 = 24 * 3600;

/// Error of making or reading a key or a certificate.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// The certificate cannot be made, or the authority's key cannot be read.
    #[error("a certificate cannot be made: {0}")]
    Make(#[from] rcgen::Error),
    /// The authority's certificate cannot be read.
    #[error("the certificate of the cluster's authority cannot be read: {0}")]
    Unreadable(String),
}

/// Certificate and key of an authority, PEM.
#[derive(Clone)]
pub struct CertificateAuthority {
    certificate: String,
    key: String,
}

impl CertificateAuthority {
    /// Makes an authority for a new cluster.
    /// # Errors
    /// No key can be made.
    pub fn new(cluster: &str) -> Result<CertificateAuthority, AuthorityError> {
        let mut params = authority_params(&format!("Copal cluster {cluster}"));
        live(&mut params, wall_ms(), AUTHORITY_LIFE);
        let key = KeyPair::generate()?;
        Ok(CertificateAuthority { certificate: params.self_signed(&key)?.pem(), key: key.serialize_pem() })
    }

    /// Derives an authority from a secret. Each holder derives the same one, so no key is distributed. Its
    /// certificate does not expire.
    /// # Errors
    /// The key cannot be used.
    pub fn derived(secret: &[u8; 32], name: &str) -> Result<CertificateAuthority, AuthorityError> {
        // An Ed25519 key in the shortest form of PKCS #8, RFC 8410 section 7.
        const PKCS8_HEAD: [u8; 16] = [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];
        let seed = Sha256::new().chain_update(b"copal authority 1").chain_update(secret).finalize();
        let der = [&PKCS8_HEAD[..], &seed[..]].concat();
        let key = KeyPair::from_pkcs8_der_and_sign_algo(&PrivatePkcs8KeyDer::from(der), &PKCS_ED25519)?;
        let mut params = authority_params(name);
        never_expire(&mut params);
        Ok(CertificateAuthority { certificate: params.self_signed(&key)?.pem(), key: key.serialize_pem() })
    }

    /// An authority with this certificate and key, PEM.
    pub fn of_pem(certificate: String, key: String) -> CertificateAuthority {
        CertificateAuthority { certificate, key }
    }

    /// The certificate, PEM: the trust anchor of both sides of a connection.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// The key, PEM. Its holder can act as any process of the cluster.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Makes key and certificate for a process named `name`, valid for 398 days by this machine's clock.
    /// # Errors
    /// No key can be made, or the authority's cannot be read.
    pub fn identity(&self, name: &str) -> Result<TlsIdentity, AuthorityError> {
        self.identity_at(name, wall_ms())
    }

    /// As [`CertificateAuthority::identity`], at another time: ms since 1970.
    /// # Errors
    /// As [`CertificateAuthority::identity`].
    pub fn identity_at(&self, name: &str, now_ms: u64) -> Result<TlsIdentity, AuthorityError> {
        let mut params = leaf(name)?;
        live(&mut params, now_ms, LEAF_LIFE);
        self.identity_of(params)
    }

    /// As [`CertificateAuthority::identity`], with a certificate that does not expire: for peers that judge no
    /// certificate by a clock.
    /// # Errors
    /// As [`CertificateAuthority::identity`].
    pub fn lasting_identity(&self, name: &str) -> Result<TlsIdentity, AuthorityError> {
        let mut params = leaf(name)?;
        never_expire(&mut params);
        self.identity_of(params)
    }

    fn identity_of(&self, params: CertificateParams) -> Result<TlsIdentity, AuthorityError> {
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer()?)?;
        Ok(TlsIdentity {
            authority: self.certificate.clone(),
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        })
    }

    /// Signs the request of a process that keeps its key. Names in the request are ignored: the certificate
    /// is for `name`, valid for 398 days from `now_ms`.
    /// # Errors
    /// The request cannot be read.
    pub fn sign(&self, request: &str, name: &str, now_ms: u64) -> Result<String, AuthorityError> {
        let mut request = CertificateSigningRequestParams::from_pem(request)?;
        request.params = leaf(name)?;
        live(&mut request.params, now_ms, LEAF_LIFE);
        Ok(request.signed_by(&self.issuer()?)?.pem())
    }

    /// Signs the permit of a client.
    /// # Errors
    /// The authority's key cannot be read.
    pub fn permit(&self, permit: &messages::Permit) -> Result<messages::SignedPermit, AuthorityError> {
        let permit = permit.encode_to_vec();
        let key = KeyPair::from_pem(&self.key)?;
        Ok(messages::SignedPermit {
            signature: key.sign(&signed_part(&permit))?.into(),
            permit: permit.into(),
        })
    }

    fn issuer(&self) -> Result<Issuer<'static, KeyPair>, AuthorityError> {
        let key = KeyPair::from_pem(&self.key)?;
        Ok(Issuer::from_ca_cert_pem(&self.certificate, key)?)
    }
}

/// The certificate of an authority, from PEM.
pub(crate) fn certificate_of(authority: &str) -> Result<CertificateDer<'static>, AuthorityError> {
    CertificateDer::from_pem_slice(authority.as_bytes())
        .map_err(|error| AuthorityError::Unreadable(error.to_string()))
}

fn wall_ms() -> u64 {
    copal_volume::Clock::now_ms(&copal_volume::SystemClock)
}

/// Sets the validity: from a day before `now_ms` until `life` after it.
fn live(params: &mut CertificateParams, now_ms: u64, life: Duration) {
    // Later times exceed the calendar of certificates.
    const LAST_MS: u64 = 200_000_000_000_000;
    let now = Duration::from_millis(now_ms.min(LAST_MS));
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    params.not_before = epoch + now.saturating_sub(BEGINS_BEFORE);
    params.not_after = epoch + (now + life);
}

/// Sets the longest validity that a certificate can express.
fn never_expire(params: &mut CertificateParams) {
    params.not_before = rcgen::date_time_ymd(1970, 1, 1);
    params.not_after = rcgen::date_time_ymd(9999, 12, 31);
}

fn authority_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

fn leaf(name: &str) -> Result<CertificateParams, AuthorityError> {
    let mut params = CertificateParams::new(vec![name.to_owned()])?;
    params.distinguished_name.push(DnType::CommonName, name);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    Ok(params)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CertificateValidity;
    use copal_client::AGENT_NAME;

    #[test]
    fn a_secret_gives_each_holder_the_same_authority_for_ever() {
        let derived = |secret| CertificateAuthority::derived(&[secret; 32], "Copal fleet").unwrap();
        let (here, there, other) = (derived(7), derived(7), derived(8));
        assert_eq!(here.certificate(), there.certificate());
        assert_eq!(here.key(), there.key());
        assert_ne!(here.key(), other.key());
        let identity = there.lasting_identity(AGENT_NAME).unwrap();
        assert_eq!(identity.authority, here.certificate());
        let year_9000_ms = 221_845_392_000_000;
        for certificate in [&identity.certificate, &identity.authority] {
            let validity = CertificateValidity::of_pem(certificate).unwrap();
            assert!(!validity.has_ended(year_9000_ms), "{certificate}");
        }
    }
}
