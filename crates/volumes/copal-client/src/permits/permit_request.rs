//! Permits for the calls of a client: those that are kept, and new ones of the master.

use crate::api::cluster::Cluster;
use crate::net::connection::CallError;
use crate::net::machine;
use bytes::Bytes;
use copal_proto::{Method, messages, volume_of};
use copal_volume::VolumeId;
use prost::Message;
use std::time::{Duration, Instant};

/// How long the master may take to sign one.
const ANSWER: Duration = Duration::from_secs(8);

impl Cluster {
    /// The permit that an encoded request to a data server needs; empty: none.
    pub(crate) async fn permit(&self, request: &Bytes, end: Instant) -> Result<Bytes, CallError> {
        let permits = &self.inner.permits;
        if !permits.are_needed() {
            return Ok(permits.of_lease());
        }
        match volume_of(request) {
            Some(volume) => self.permit_for(volume, end).await,
            None => Ok(Bytes::new()),
        }
    }

    /// The permit that requests about a volume need; empty: none.
    pub(crate) async fn permit_for(&self, volume: u64, end: Instant) -> Result<Bytes, CallError> {
        let permits = &self.inner.permits;
        if !permits.are_needed() {
            return Ok(permits.of_lease());
        }
        if let Some(permit) = permits.of_volume(volume) {
            return Ok(permit);
        }
        let lease = permits.lease();
        let under = lease.as_ref().map(|(number, _)| *number);
        let path = self.path_of(VolumeId(volume));
        let left = end.saturating_duration_since(machine::now()).min(ANSWER);
        let request = permits.request(&path, volume, lease);
        let (permit, life) = self.ask_permit(&request, left).await?;
        permits.keep(volume, under, &permit, life);
        Ok(permit)
    }

    /// Has the right to write signed, and shows it from here on.
    /// # Errors
    /// The right has ended; the master is not reached.
    pub(crate) async fn show_lease(&self, number: u64, path: &str) -> Result<Bytes, CallError> {
        let permits = &self.inner.permits;
        let request = permits.request(path, 0, Some((number, path.to_owned())));
        let (permit, _) = self.ask_permit(&request, ANSWER).await?;
        permits.hold_lease(number, path, &permit);
        Ok(permit)
    }

    /// A permit, and how long it is good for.
    async fn ask_permit(
        &self,
        request: &messages::PermitRequest,
        deadline: Duration,
    ) -> Result<(Bytes, Duration), CallError> {
        let masters = &self.inner.masters;
        let signed: messages::SignedPermit = masters.call(Method::Permit, request, deadline).await?;
        let permit = messages::Permit::decode(signed.permit.clone())
            .map_err(|error| CallError::Malformed(error.to_string()))?;
        let life = permit.until_ms.saturating_sub(self.map().now_ms());
        Ok((signed.encode_to_vec().into(), Duration::from_millis(life)))
    }
}
