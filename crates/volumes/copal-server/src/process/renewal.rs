//! Renewal of certificates, and the file in which a data server keeps its identity.

use crate::net::validity::CertificateValidity;
use crate::process::home::ServerHome;
use crate::replica::host::ReplicaHost;
use crate::security::authority::CertificateAuthority;
use crate::security::join::SigningRequest;
use copal_client::{TlsCredentials, TlsIdentity, machine};
use copal_proto::{Method, messages};
use copal_volume::ReferenceClock;
use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

/// Name in the certificate of a master.
pub(crate) const MASTER_NAME: &str = "master.copal";
/// Interval of checks for due renewals.
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// Time limit of a renewal.
const RENEWAL_TIMEOUT: Duration = Duration::from_secs(10);

/// Keeps the file of a data server up to date: addresses of masters, and renewed certificates.
pub(crate) struct HomeUpdater {
    pub(crate) host: Arc<ReplicaHost>,
    pub(crate) home: ServerHome,
    pub(crate) directory: PathBuf,
    pub(crate) credentials: TlsCredentials,
}

impl HomeUpdater {
    pub(crate) async fn run(mut self) {
        let mut looks = tokio::time::interval(CHECK_INTERVAL);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut warning = DailyWarning::default();
        loop {
            let has_ended = tokio::select! {
                () = self.host.masters_changed.notified() => {
                    self.home.masters = self.host.masters.addresses();
                    self.write().await;
                    continue;
                }
                () = self.host.renewal_due.notified() => true,
                _ = looks.tick() => false,
            };
            match self.renew(has_ended).await {
                Ok(()) => warning = DailyWarning::default(),
                Err(error) if warning.is_due(machine::now()) => {
                    tracing::warn!(error, "the certificate of this server could not be renewed yet");
                }
                Err(error) => tracing::debug!(error, "the certificate could not be renewed yet"),
            }
        }
    }

    async fn write(&self) -> bool {
        let (kept, to) = (self.home.clone(), self.directory.clone());
        match machine::run_blocking(move || kept.write(&to)).await {
            Ok(Ok(())) => true,
            Ok(Err(error)) => {
                tracing::warn!(%error, "the file with this server's identity was not written");
                false
            }
            Err(error) => {
                tracing::warn!(error, "the file with this server's identity was not written");
                false
            }
        }
    }

    /// Renews the certificate, with a new key, when half of its period is over by the cluster's clock, or
    /// when a master reported it as expired. A server that was down for long learns the cluster's clock only
    /// with a valid certificate. The new one is written before it is used.
    async fn renew(&mut self, has_ended: bool) -> Result<(), String> {
        let own = self.home.identity();
        let validity = CertificateValidity::of_pem(&own.certificate)?;
        let is_half_over = |now_ms| validity.is_half_over(now_ms) || validity.is_without_end();
        if !has_ended && !self.host.map.reference_ms().is_some_and(is_half_over) {
            return Ok(());
        }
        let drawn = SigningRequest::draw().map_err(|error| error.to_string())?;
        let request = messages::Renew { signing_request: drawn.request };
        let masters = &self.host.masters;
        let renewed: Result<messages::Renewed, _> =
            masters.call(Method::Renew, &request, RENEWAL_TIMEOUT).await;
        let renewed = renewed.map_err(|error| error.to_string())?;
        let identity = TlsIdentity { certificate: renewed.certificate, key: drawn.key, ..own };
        let shown = TlsCredentials::new(&identity).map_err(|error| error.to_string())?;
        drop(shown);
        self.home.record_renewal(&identity);
        if self.write().await {
            self.credentials.replace(&identity).map_err(|error| error.to_string())?;
            tracing::info!("the certificate of this server was renewed");
            self.host.heartbeat_due.notify_one();
        }
        Ok(())
    }
}

/// A warning about a retry each minute, logged once and then once a day. A master of an older release cannot
/// renew until it is replaced.
#[derive(Default)]
pub(crate) struct DailyWarning {
    last: Option<Instant>,
}

impl DailyWarning {
    const DAY: Duration = Duration::from_secs(24 * 3600);

    /// Whether the warning is due; counts it as logged.
    pub(crate) fn is_due(&mut self, now: Instant) -> bool {
        let is_due = self.last.is_none_or(|last| now.duration_since(last) >= DailyWarning::DAY);
        if is_due {
            self.last = Some(now);
        }
        is_due
    }
}

/// Renews a master's own certificate before it expires.
pub(crate) async fn renew_own(
    authority: CertificateAuthority,
    credentials: TlsCredentials,
    mut certificate: String,
) {
    loop {
        tokio::time::sleep(CHECK_INTERVAL).await;
        let is_due = CertificateValidity::of_pem(&certificate)
            .is_ok_and(|validity| validity.is_half_over(machine::wall_ms()));
        if !is_due {
            continue;
        }
        let renewed = authority.identity(MASTER_NAME).map_err(|error| error.to_string());
        let shown = renewed.and_then(|identity| {
            credentials.replace(&identity).map_err(|error| error.to_string())?;
            Ok(identity.certificate)
        });
        match shown {
            Ok(renewed) => certificate = renewed,
            Err(error) => tracing::warn!(error, "the certificate of this master could not be renewed"),
        }
    }
}
