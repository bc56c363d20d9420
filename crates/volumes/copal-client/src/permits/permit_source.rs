//! Permits for the calls of a client: from the cache, or requested from the master.

use crate::{
    net::{connection::CallError, machine, map_cache::MapCache, masters::Masters},
    permits::permit_cache::PermitCache,
};
use bytes::Bytes;
use copal_proto::{Method, messages, volume_of};
use copal_volume::VolumeId;
use prost::Message;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// How long the master may take to sign a permit.
const SIGN_TIMEOUT: Duration = Duration::from_secs(8);

/// See the module.
pub(crate) struct PermitSource {
    cache: PermitCache,
    masters: Masters,
    map: Arc<MapCache>,
}

impl PermitSource {
    /// Permits of the named client; `None`: of a client with all rights.
    pub(crate) fn new(client: Option<String>, masters: Masters, map: Arc<MapCache>) -> PermitSource {
        PermitSource { cache: PermitCache::new(client), masters, map }
    }

    /// The incarnation for new file ids: see [`PermitCache::set_incarnation`].
    pub(crate) fn set_incarnation(&self, random: u64) -> u64 {
        self.cache.set_incarnation(random)
    }

    /// The permit that an encoded request to a data server needs; empty: none. `path` tells the path of a
    /// volume.
    pub(crate) async fn permit(
        &self,
        request: &Bytes,
        path: impl FnOnce(VolumeId) -> String,
        end: Instant,
    ) -> Result<Bytes, CallError> {
        if !self.cache.is_named_client() {
            return Ok(self.cache.lease_permit());
        }
        match volume_of(request) {
            Some(volume) => self.permit_for(volume, path, end).await,
            None => Ok(Bytes::new()),
        }
    }

    /// The permit that requests about a volume need; empty: none.
    pub(crate) async fn permit_for(
        &self,
        volume: u64,
        path: impl FnOnce(VolumeId) -> String,
        end: Instant,
    ) -> Result<Bytes, CallError> {
        if !self.cache.is_named_client() {
            return Ok(self.cache.lease_permit());
        }
        if let Some(permit) = self.cache.volume_permit(volume) {
            return Ok(permit);
        }
        let lease = self.cache.lease();
        let lease_number = lease.as_ref().map(|(number, _)| *number);
        let path = path(VolumeId(volume));
        let left = end.saturating_duration_since(machine::now()).min(SIGN_TIMEOUT);
        let request = self.cache.request(&path, volume, lease);
        let (permit, lifetime) = self.request_permit(&request, left).await?;
        self.cache.insert(volume, lease_number, &permit, lifetime);
        Ok(permit)
    }

    /// Has the master sign the writer lease, and shows that permit from now on.
    /// # Errors
    /// The lease has ended; the master is not reached.
    pub(crate) async fn sign_lease(&self, number: u64, path: &str) -> Result<Bytes, CallError> {
        let request = self.cache.request(path, 0, Some((number, path.to_owned())));
        let (permit, _) = self.request_permit(&request, SIGN_TIMEOUT).await?;
        self.cache.set_lease(number, path, &permit);
        Ok(permit)
    }

    /// Shows no permit of the writer lease any more.
    pub(crate) fn end_lease(&self) {
        self.cache.end_lease();
    }

    /// A permit, and how long it is valid.
    async fn request_permit(
        &self,
        request: &messages::PermitRequest,
        deadline: Duration,
    ) -> Result<(Bytes, Duration), CallError> {
        let signed: messages::SignedPermit = self.masters.call(Method::Permit, request, deadline).await?;
        let permit = messages::Permit::decode(signed.permit.clone())
            .map_err(|error| CallError::Malformed(error.to_string()))?;
        let lifetime = permit.until_ms.saturating_sub(self.map.now_ms());
        Ok((signed.encode_to_vec().into(), Duration::from_millis(lifetime)))
    }
}
