//! The cluster's own authority: it signs who may speak, and nobody else does.

use copal_client::Identity;
use copal_proto::{messages, signed_part};
use prost::Message;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DnType, ExtendedKeyUsagePurpose,
    IsCa, Issuer, KeyPair, KeyUsagePurpose, SigningKey,
};
use tokio_rustls::rustls::pki_types::{CertificateDer, pem::PemObject};

/// A key or certificate that cannot be made or read.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// It cannot be made, or its key not be read.
    #[error("a certificate cannot be made: {0}")]
    Make(#[from] rcgen::Error),
    /// The authority's certificate cannot be read.
    #[error("the certificate of the cluster's authority cannot be read: {0}")]
    Unreadable(String),
}

/// Certificate and key of the authority, PEM.
#[derive(Clone)]
pub struct Authority {
    certificate: String,
    key: String,
}

impl Authority {
    /// Makes an authority for a new cluster.
    /// # Errors
    /// No key can be made.
    pub fn new(cluster: &str) -> Result<Authority, AuthorityError> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params
            .distinguished_name
            .push(DnType::CommonName, format!("Copal cluster {cluster}"));
        let key = KeyPair::generate()?;
        Ok(Authority {
            certificate: params.self_signed(&key)?.pem(),
            key: key.serialize_pem(),
        })
    }

    /// The authority whose certificate and key these are.
    pub fn of_pem(certificate: String, key: String) -> Authority {
        Authority { certificate, key }
    }

    /// Its certificate, PEM: what both sides of a connection trust.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// Its key, PEM. Whoever has it is the cluster.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Makes key and certificate for a process that is called `name`.
    /// # Errors
    /// No key can be made, or the authority's cannot be read.
    pub fn identity(&self, name: &str) -> Result<Identity, AuthorityError> {
        let key = KeyPair::generate()?;
        let params = leaf(CertificateParams::new(vec![name.to_owned()])?, name);
        let certificate = params.signed_by(&key, &self.issuer()?)?;
        Ok(Identity {
            authority: self.certificate.clone(),
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        })
    }

    /// Signs a request of a process that keeps its key for itself, whatever names the request asks for: it gets `name`.
    /// # Errors
    /// The request cannot be read.
    pub fn sign(&self, request: &str, name: &str) -> Result<String, AuthorityError> {
        let mut request = CertificateSigningRequestParams::from_pem(request)?;
        request.params = leaf(CertificateParams::new(vec![name.to_owned()])?, name);
        Ok(request.signed_by(&self.issuer()?)?.pem())
    }

    /// Signs what a client may do.
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

fn leaf(mut params: CertificateParams, name: &str) -> CertificateParams {
    params.distinguished_name.push(DnType::CommonName, name);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    params
}
