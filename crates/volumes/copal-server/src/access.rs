//! Who may do what at a data server: certificates say who calls, permits what a client may do (VOL-40,
//! VOL-41).
//!
//! Members and masters may do everything, members that pass something on as long as the right to write lasts
//! under which it came. A client whose certificate has the cluster's own name for clients may, too; where it
//! shows a permit, it does what it does under a right to write, and the right must last. A named client may
//! do what its permit says, and nothing without one. Nobody is asked: a permit carries the authority's
//! signature.
//!
//! Invariant: of two rights to write of which one lies below the other's path, the one with the lower number
//! does nothing here once the other was seen.
//!
//! Not here: who is given a permit (`permitting`).

use crate::{
    authority::{AuthorityError, certificate_of},
    caller::Caller,
    listener::Peer,
    status::Status,
};
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

/// Permits whose signature was looked at, so that each is looked at once.
const MOST_KNOWN: usize = 4096;
/// How old a file may be that a client buries without the right to delete, ms: its create is not closed
/// before that.
const OWN_FOR_MS: u64 = 90_000;

/// See the module.
pub(crate) struct AccessControl {
    cluster: [u8; 16],
    authority: CertificateDer<'static>,
    known: Mutex<HashMap<Bytes, messages::Permit>>,
    /// The highest number of a right to write that was seen, by its path.
    rights: Mutex<BTreeMap<String, u64>>,
    /// Clients that were taken away lately.
    removed: Mutex<BTreeSet<String>>,
}

/// What a call of a client takes; `None`: it is not for clients.
fn needs(method: Method) -> Option<RightSet> {
    match method {
        Method::Ping => Some(RightSet::default()),
        Method::Get | Method::Stat | Method::List | Method::Find | Method::Totals | Method::GetPiece => {
            Some(RightSet::READ)
        }
        Method::Put | Method::PutPiece | Method::Confirm => Some(RightSet::CREATE),
        Method::Delete => Some(RightSet::DELETE),
        _ => None,
    }
}

fn denied(text: impl Into<String>) -> Status {
    Status::new(Code::Denied, text)
}

impl AccessControl {
    /// What believes what the authority with this certificate (PEM) has signed for a cluster.
    pub(crate) fn new(cluster: [u8; 16], authority: &str) -> Result<AccessControl, AuthorityError> {
        Ok(AccessControl {
            cluster,
            authority: certificate_of(authority)?,
            known: Mutex::default(),
            rights: Mutex::default(),
            removed: Mutex::default(),
        })
    }

    /// Takes the clients that a master has taken away lately: permits that they were given before count for
    /// nothing.
    pub(crate) fn forget_clients(&self, removed: Vec<String>) {
        let mut known = self.removed.lock();
        if known.len() + removed.len() > MOST_KNOWN {
            known.clear();
        }
        known.extend(removed);
    }

    fn refuse_removed(&self, client: &str) -> Result<(), Status> {
        match self.removed.lock().contains(client) {
            true => Err(denied(format!("client {client} was taken away"))),
            false => Ok(()),
        }
    }

    /// What was shown with a call, to be looked at again when its turn has come.
    /// # Errors
    /// `Denied`: it is no permit of this cluster.
    pub(crate) fn caller(&self, peer: &Peer) -> Result<Caller, Status> {
        let permit = match peer.permit.is_empty() {
            true => None,
            false => Some(self.read(&peer.permit)?),
        };
        Ok(Caller { permit })
    }

    /// Whether what was let through before may still be done: its permit has not ended, and nobody has
    /// followed its right to write. To be asked where the operation is applied.
    /// # Errors
    /// `Denied`.
    pub(crate) fn check_again(&self, caller: &Caller, now_ms: u64) -> Result<(), Status> {
        let Some(permit) = &caller.permit else {
            return Ok(());
        };
        self.refuse_removed(&permit.client)?;
        must_last(permit, now_ms)?;
        self.hold_right(permit)
    }

    /// Lets a call through, or says why not.
    /// # Errors
    /// `Denied`.
    pub(crate) fn check(
        &self,
        peer: &Peer,
        method: Method,
        request: &Bytes,
        now_ms: u64,
    ) -> Result<(), Status> {
        let permit = match peer.permit.is_empty() {
            true => None,
            false => Some(self.read(&peer.permit)?),
        };
        let client = peer.client_name();
        if let Some(client) = client {
            self.refuse_removed(client)?;
        }
        if let Some(permit) = &permit {
            // Also where a member passes on what it has been sent.
            self.refuse_removed(&permit.client)?;
            must_last(permit, now_ms)?;
            // A member passes on what a client has shown to it.
            if peer.is_client() && permit.client != client.unwrap_or_default() {
                return Err(denied("the permit was given to somebody else"));
            }
            self.hold_right(permit)?;
        }
        let Some(client) = client else { return Ok(()) };
        let wanted = needs(method).ok_or_else(|| denied(format!("{client} may not do that")))?;
        if wanted == RightSet::default() {
            return Ok(());
        }
        let permit = permit.ok_or_else(|| denied(format!("{client} has to show a permit")))?;
        if volume_of(request) != Some(permit.volume) {
            return Err(denied("the permit is for another volume"));
        }
        let has = RightSet(permit.rights);
        let is_own_burial =
            method == Method::Delete && has.contains(RightSet::CREATE) && is_own(&permit, request, now_ms);
        match has.contains(wanted) || is_own_burial {
            true => Ok(()),
            false => Err(denied(format!("{client} was granted {has}, and this takes {wanted}"))),
        }
    }

    /// A permit that the authority has signed.
    fn read(&self, shown: &Bytes) -> Result<messages::Permit, Status> {
        if let Some(permit) = self.known.lock().get(shown) {
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
        let mut known = self.known.lock();
        if known.len() >= MOST_KNOWN {
            known.clear();
        }
        known.insert(shown.clone(), permit.clone());
        Ok(permit)
    }

    /// Notes the right to write of a permit; refuses one that another has followed.
    fn hold_right(&self, permit: &messages::Permit) -> Result<(), Status> {
        if permit.lease == 0 {
            return Ok(());
        }
        let mut rights = self.rights.lock();
        let newer = rights.iter().any(|(path, &number)| number > permit.lease && overlap(path, &permit.path));
        if newer {
            return Err(denied(format!(
                "somebody else has the right to write below /{} by now",
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

fn must_last(permit: &messages::Permit, now_ms: u64) -> Result<(), Status> {
    match permit.until_ms <= now_ms {
        true => Err(denied("the permit has ended: another is to be had of a master")),
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

/// Whether a delete buries a file that the client itself is creating.
fn is_own(permit: &messages::Permit, request: &Bytes, now_ms: u64) -> bool {
    let Ok(delete) = messages::Delete::decode(request.clone()) else {
        return false;
    };
    let fid = FileId(id(delete.fid));
    permit.incarnation != 0
        && fid.incarnation() == permit.incarnation
        && fid.ms().saturating_add(OWN_FOR_MS) > now_ms
}

#[cfg(test)]
mod tests;
