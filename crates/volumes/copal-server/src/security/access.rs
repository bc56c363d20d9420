//! Access control of a data server: certificates identify callers, permits grant clients their rights
//! (VOL-40, VOL-41).
//!
//! - Masters and members have all rights. A call that a member passes on counts under the permit it came
//!   with.
//! - A client with the cluster's own client name has all rights, too. If it shows a permit, the permit's
//!   writer lease must still hold.
//! - A named client has the rights of its permit, and none without one.
//!
//! No master is asked: a permit carries the authority's signature.
//!
//! Invariant: of two writer leases with overlapping paths, this server accepts only the one with the higher
//! number once it has seen both.
//!
//! Not here: how permits are issued (`permits`).

use crate::net::peer::PeerIdentity;
use crate::net::status::Status;
use crate::security::authority::{AuthorityError, certificate_of};
use crate::security::caller::CallerPermit;
use bytes::Bytes;
use copal_proto::{
    Method, RightSet, id,
    messages::{self, failure::Code},
    signed_part, volume_of,
};
use copal_volume::FileId;
use parking_lot::Mutex;
use prost::Message;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use tokio_rustls::rustls::pki_types::CertificateDer;
use webpki::{EndEntityCert, ring::ECDSA_P256_SHA256};

/// Verified permits that are cached.
const MAX_CACHED: usize = 4096;
/// Age up to which a client without the right to delete may delete a file of its own, ms. Its create is not
/// sealed before that.
const OWN_CREATE_MS: u64 = 90_000;

/// Access control of one data server. See the module.
pub(crate) struct AccessControl {
    cluster: [u8; 16],
    authority: CertificateDer<'static>,
    verified: Mutex<HashMap<Bytes, messages::Permit>>,
    /// Highest writer lease number seen, by path.
    leases: Mutex<BTreeMap<String, u64>>,
    /// Recently removed clients.
    removed: Mutex<BTreeSet<String>>,
}

/// Rights that a client needs for a call; `None`: clients may not make it.
fn required_rights(method: Method) -> Option<RightSet> {
    match method {
        Method::Ping => Some(RightSet::default()),
        Method::Get
        | Method::GetRanges
        | Method::Stat
        | Method::List
        | Method::Find
        | Method::Totals
        | Method::GetPiece => Some(RightSet::READ),
        Method::Put | Method::PutPiece | Method::Confirm => Some(RightSet::CREATE),
        Method::Delete => Some(RightSet::DELETE),
        _ => None,
    }
}

fn denied(text: impl Into<String>) -> Status {
    Status::new(Code::Denied, text)
}

impl AccessControl {
    /// Accepts permits that the authority with this certificate (PEM) signed for this cluster.
    pub(crate) fn new(cluster: [u8; 16], authority: &str) -> Result<AccessControl, AuthorityError> {
        Ok(AccessControl {
            cluster,
            authority: certificate_of(authority)?,
            verified: Mutex::default(),
            leases: Mutex::default(),
            removed: Mutex::default(),
        })
    }

    /// Records clients that a master has removed; permits issued to them before are refused.
    pub(crate) fn remove_clients(&self, removed: Vec<String>) {
        let mut known = self.removed.lock();
        if known.len() + removed.len() > MAX_CACHED {
            known.clear();
        }
        known.extend(removed);
    }

    fn refuse_removed(&self, client: &str) -> Result<(), Status> {
        match self.removed.lock().contains(client) {
            true => Err(denied(format!("client {client} was removed"))),
            false => Ok(()),
        }
    }

    /// The permit of a call, to be checked again when the operation is applied.
    /// # Errors
    /// `Denied`: not a permit of this cluster.
    pub(crate) fn caller_permit(&self, peer: &PeerIdentity) -> Result<CallerPermit, Status> {
        let permit = match peer.permit.is_empty() {
            true => None,
            false => Some(self.verified_permit(&peer.permit)?),
        };
        Ok(CallerPermit { permit })
    }

    /// Checks an admitted call again where the operation is applied: the permit has not expired, its client
    /// is not removed, and no later writer lease was seen.
    /// # Errors
    /// `Denied`.
    pub(crate) fn recheck(&self, caller: &CallerPermit, now_ms: u64) -> Result<(), Status> {
        let Some(permit) = &caller.permit else {
            return Ok(());
        };
        self.refuse_removed(&permit.client)?;
        require_unexpired(permit, now_ms)?;
        self.record_lease(permit)
    }

    /// Checks whether the peer may make the call.
    /// # Errors
    /// `Denied`.
    pub(crate) fn check(
        &self,
        peer: &PeerIdentity,
        method: Method,
        request: &Bytes,
        now_ms: u64,
    ) -> Result<(), Status> {
        let permit = match peer.permit.is_empty() {
            true => None,
            false => Some(self.verified_permit(&peer.permit)?),
        };
        let client = peer.client_name();
        if let Some(client) = client {
            self.refuse_removed(client)?;
        }
        if let Some(permit) = &permit {
            // Also for calls that a member passes on.
            self.refuse_removed(&permit.client)?;
            require_unexpired(permit, now_ms)?;
            // A member passes on the permit of a client.
            if peer.is_client() && permit.client != client.unwrap_or_default() {
                return Err(denied("the permit was issued to another client"));
            }
            self.record_lease(permit)?;
        }
        let Some(client) = client else { return Ok(()) };
        let wanted = required_rights(method).ok_or_else(|| denied(format!("{client} may not do that")))?;
        if wanted == RightSet::default() {
            return Ok(());
        }
        let permit = permit.ok_or_else(|| denied(format!("{client} has to show a permit")))?;
        if volume_of(request) != Some(permit.volume) {
            return Err(denied("the permit is for another volume"));
        }
        let has = RightSet(permit.rights);
        let is_own_delete = method == Method::Delete
            && has.contains(RightSet::CREATE)
            && is_own_create(&permit, request, now_ms);
        match has.contains(wanted) || is_own_delete {
            true => Ok(()),
            false => Err(denied(format!("{client} was granted {has}, and this takes {wanted}"))),
        }
    }

    /// Decodes a permit and verifies the authority's signature.
    fn verified_permit(&self, shown: &Bytes) -> Result<messages::Permit, Status> {
        if let Some(permit) = self.verified.lock().get(shown) {
            return Ok(permit.clone());
        }
        let unreadable = || denied("the permit cannot be read");
        let signed = messages::SignedPermit::decode(shown.clone()).map_err(|_| unreadable())?;
        let authority = EndEntityCert::try_from(&self.authority).map_err(|_| unreadable())?;
        authority
            .verify_signature(ECDSA_P256_SHA256, &signed_part(&signed.permit), &signed.signature)
            .map_err(|_| denied("the permit is not signed by the cluster's authority"))?;
        let permit = messages::Permit::decode(signed.permit).map_err(|_| unreadable())?;
        if permit.cluster != self.cluster[..] {
            return Err(denied("the permit is of another cluster"));
        }
        let mut known = self.verified.lock();
        if known.len() >= MAX_CACHED {
            known.clear();
        }
        known.insert(shown.clone(), permit.clone());
        Ok(permit)
    }

    /// Records the writer lease of a permit; refuses the permit if a later lease of an overlapping path was
    /// seen.
    fn record_lease(&self, permit: &messages::Permit) -> Result<(), Status> {
        if permit.lease == 0 {
            return Ok(());
        }
        let mut rights = self.leases.lock();
        let newer = rights.iter().any(|(path, &number)| number > permit.lease && overlap(path, &permit.path));
        if newer {
            return Err(denied(format!(
                "another client has the right to write below /{} by now",
                permit.path
            )));
        }
        match rights.get_mut(&permit.path) {
            Some(number) => *number = permit.lease,
            None => drop(rights.insert(permit.path.clone(), permit.lease)),
        }
        Ok(())
    }
}

fn require_unexpired(permit: &messages::Permit, now_ms: u64) -> Result<(), Status> {
    match permit.until_ms <= now_ms {
        true => Err(denied("the permit has expired: request another from a master")),
        false => Ok(()),
    }
}

fn overlap(a: &str, b: &str) -> bool {
    let below = |above: &str, path: &str| {
        let rest = path.strip_prefix(above);
        above.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    below(a, b) || below(b, a)
}

/// Whether the delete is for a file that this client is creating itself.
fn is_own_create(permit: &messages::Permit, request: &Bytes, now_ms: u64) -> bool {
    let Ok(delete) = messages::Delete::decode(request.clone()) else {
        return false;
    };
    let fid = FileId(id(delete.fid));
    permit.incarnation != 0
        && fid.incarnation() == permit.incarnation
        && fid.ms().saturating_add(OWN_CREATE_MS) > now_ms
}

#[cfg(test)]
mod tests;
