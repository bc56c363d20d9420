//! Validity period of a certificate.

use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio_rustls::rustls::pki_types::{CertificateDer, pem::PemObject};

/// Lifetime of certificates of servers and clients: 398 days.
pub(crate) const LEAF_LIFE: Duration = Duration::from_secs(398 * 24 * 3600);

/// Validity period of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CertificateValidity {
    /// Beginning.
    pub from: SystemTime,
    /// End.
    pub until: SystemTime,
}

impl CertificateValidity {
    /// Whether it has ended at `now_ms` since 1970.
    pub fn has_ended(&self, now_ms: u64) -> bool {
        self.until < UNIX_EPOCH + Duration::from_millis(now_ms)
    }

    /// Whether the certificate is due for renewal at `now_ms` since 1970: half of its period is over. A
    /// certificate with a longer period than is issued today comes from an earlier release, whose
    /// certificates had no end.
    pub fn is_half_over(&self, now_ms: u64) -> bool {
        let life = self.until.duration_since(self.from).unwrap_or_default();
        let half = self.from + life / 2;
        half < UNIX_EPOCH + Duration::from_millis(now_ms)
    }

    /// Whether an earlier release made it, whose certificates had no end.
    pub fn is_without_end(&self) -> bool {
        let life = self.until.duration_since(self.from).unwrap_or_default();
        life > LEAF_LIFE * 2
    }

    /// The day of its end, as YYYY-MM-DD.
    pub fn last_day(&self) -> String {
        let since = self.until.duration_since(UNIX_EPOCH).unwrap_or_default();
        day(since.as_secs() / (24 * 3600))
    }

    /// Validity of a DER certificate.
    pub(crate) fn of_der(der: &[u8]) -> Option<CertificateValidity> {
        let parsed = x509_parser::parse_x509_certificate(der).ok()?;
        Some(of_parsed(&parsed.1))
    }

    /// Validity of the first certificate in a PEM text.
    /// # Errors
    /// The text has no readable certificate.
    pub fn of_pem(pem: &str) -> Result<CertificateValidity, String> {
        let der = CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|error| error.to_string())?;
        let parsed = x509_parser::parse_x509_certificate(&der).map_err(|error| error.to_string())?;
        Ok(of_parsed(&parsed.1))
    }
}

fn of_parsed(certificate: &x509_parser::certificate::X509Certificate<'_>) -> CertificateValidity {
    let validity = certificate.validity();
    let at = |seconds: i64| UNIX_EPOCH + Duration::from_secs(seconds.max(0) as u64);
    CertificateValidity {
        from: at(validity.not_before.timestamp()),
        until: at(validity.not_after.timestamp()),
    }
}

/// Converts days since 1970 to YYYY-MM-DD, in calendar periods of 400 years.
fn day(days: u64) -> String {
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CertificateAuthority;

    #[test]
    fn servers_and_clients_are_certified_for_398_days_and_the_authority_for_ten_years() {
        const DAY_MS: u64 = 24 * 3_600_000;
        let authority = CertificateAuthority::new("test").unwrap();
        let now_ms = 1_800_000_000_000;
        let own = authority.identity_at("client.copal", now_ms).unwrap();
        let validity = CertificateValidity::of_pem(&own.certificate).unwrap();
        assert!(
            !validity.has_ended(now_ms + 398 * DAY_MS - 1000)
                && validity.has_ended(now_ms + 398 * DAY_MS + 1000)
        );
        assert!(
            !validity.is_half_over(now_ms + 198 * DAY_MS) && validity.is_half_over(now_ms + 199 * DAY_MS)
        );
        assert!(!validity.is_without_end());
        assert_eq!(validity.last_day(), "2028-02-17");
        let ca = CertificateValidity::of_pem(authority.certificate()).unwrap();
        let days = ca.until.duration_since(SystemTime::now()).unwrap().as_secs() / (24 * 3600);
        assert!((3650..=3653).contains(&days), "{days}");
        assert_eq!(
            (day(0), day(59), day(11_016)),
            ("1970-01-01".into(), "1970-03-01".into(), "2000-02-29".into())
        );
    }

    #[test]
    fn a_new_certificate_is_good_now_and_garbage_is_none() {
        let authority = CertificateAuthority::new("test").unwrap();
        let own = authority.identity("master.copal").unwrap().certificate;
        for pem in [authority.certificate(), &own] {
            let validity = CertificateValidity::of_pem(pem).unwrap();
            assert!(validity.from < SystemTime::now() && SystemTime::now() < validity.until);
        }
        assert!(
            CertificateValidity::of_pem("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
                .is_err()
        );
        assert!(CertificateValidity::of_pem("").is_err());
    }
}
