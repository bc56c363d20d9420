//! When a certificate is good.

use crate::authority::LEAF_LIFE;
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
    /// Whether it has ended by a clock, ms since 1970.
    pub fn has_ended(&self, now_ms: u64) -> bool {
        self.until < UNIX_EPOCH + Duration::from_millis(now_ms)
    }

    /// Whether another certificate is to take its place by a clock, ms since 1970: half of its time is over.
    /// One that is good for longer than any is made for by now is of an earlier release, which had no end.
    pub fn is_half_over(&self, now_ms: u64) -> bool {
        let life = self.until.duration_since(self.from).unwrap_or_default();
        let half = self.from + life / 2;
        half < UNIX_EPOCH + Duration::from_millis(now_ms)
    }

    /// Whether it was made by a release whose certificates had no end.
    pub fn is_without_end(&self) -> bool {
        let life = self.until.duration_since(self.from).unwrap_or_default();
        life > LEAF_LIFE * 2
    }

    /// The day on which it ends, as people read it.
    pub fn last_day(&self) -> String {
        let since = self.until.duration_since(UNIX_EPOCH).unwrap_or_default();
        day(since.as_secs() / (24 * 3600))
    }

    /// Of a certificate as it is shown in a handshake.
    pub(crate) fn of_der(der: &[u8]) -> Option<Validity> {
        let parsed = x509_parser::parse_x509_certificate(der).ok()?;
        Some(of_parsed(&parsed.1))
    }

    /// Of the first certificate of a text.
    /// # Errors
    /// It has none that can be read.
    pub fn of_pem(pem: &str) -> Result<Validity, String> {
        let der = CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|error| error.to_string())?;
        let parsed = x509_parser::parse_x509_certificate(&der).map_err(|error| error.to_string())?;
        Ok(of_parsed(&parsed.1))
    }
}

fn of_parsed(certificate: &x509_parser::certificate::X509Certificate<'_>) -> Validity {
    let validity = certificate.validity();
    let at = |seconds: i64| UNIX_EPOCH + Duration::from_secs(seconds.max(0) as u64);
    Validity { from: at(validity.not_before.timestamp()), until: at(validity.not_after.timestamp()) }
}

/// A day since 1970 as year, month and day: the calendar in periods of 400 years.
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
    use crate::Authority;

    #[test]
    fn servers_and_clients_are_certified_for_398_days_and_the_authority_for_ten_years() {
        const DAY_MS: u64 = 24 * 3_600_000;
        let authority = Authority::new("test").unwrap();
        let now_ms = 1_800_000_000_000;
        let own = authority.identity_at("client.copal", now_ms).unwrap();
        let validity = Validity::of_pem(&own.certificate).unwrap();
        assert!(
            !validity.has_ended(now_ms + 398 * DAY_MS - 1000)
                && validity.has_ended(now_ms + 398 * DAY_MS + 1000)
        );
        assert!(
            !validity.is_half_over(now_ms + 198 * DAY_MS) && validity.is_half_over(now_ms + 199 * DAY_MS)
        );
        assert!(!validity.is_without_end());
        assert_eq!(validity.last_day(), "2028-02-17");
        let ca = Validity::of_pem(authority.certificate()).unwrap();
        let days = ca.until.duration_since(SystemTime::now()).unwrap().as_secs() / (24 * 3600);
        assert!((3650..=3653).contains(&days), "{days}");
        assert_eq!(
            (day(0), day(59), day(11_016)),
            ("1970-01-01".into(), "1970-03-01".into(), "2000-02-29".into())
        );
    }

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
