//! When a certificate is good.

use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio_rustls::rustls::pki_types::{CertificateDer, pem::PemObject};

/// From when to when a certificate is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// Its beginning.
    pub from: SystemTime,
    /// Its end.
    pub until: SystemTime,
}

impl Validity {
    /// Of the first certificate of a text.
    /// # Errors
    /// It has none that can be read.
    pub fn of_pem(pem: &str) -> Result<Validity, String> {
        let der = CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|error| error.to_string())?;
        let parsed = x509_parser::parse_x509_certificate(&der).map_err(|error| error.to_string())?;
        let validity = parsed.1.validity();
        let at = |seconds: i64| UNIX_EPOCH + Duration::from_secs(seconds.max(0) as u64);
        Ok(Validity {
            from: at(validity.not_before.timestamp()),
            until: at(validity.not_after.timestamp()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Authority;

    #[test]
    fn a_new_certificate_is_good_now_and_garbage_is_none() {
        let authority = Authority::new("test").unwrap();
        let own = authority.identity("master.copal").unwrap().certificate;
        for pem in [authority.certificate(), &own] {
            let validity = Validity::of_pem(pem).unwrap();
            assert!(validity.from < SystemTime::now() && SystemTime::now() < validity.until);
        }
        assert!(Validity::of_pem("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").is_err());
        assert!(Validity::of_pem("").is_err());
    }
}
