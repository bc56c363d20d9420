//! For whom an operation is done: what was shown with the call travels with it to the place where it is
//! applied.
//!
//! A call may take long between the look at its permit and its turn: a chain waits for its bytes, an
//! operation for its batch. So the permit is looked at again under the lock of the group: its end, and the
//! number of the right to write (VOL-40).
//!
//! Not here: the first look at a call (`access`).

use crate::{listener::CLIENT_NAME, status::Status};
use bytes::Bytes;
use copal_data::{NotHeld, UploadOrigin};
use copal_proto::{
    incarnation_prefix,
    messages::{self, failure::Code},
};
use copal_volume::FileId;

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Caller {
    /// What was shown; `None`: nothing, and nothing is needed.
    pub(crate) permit: Option<messages::Permit>,
}

impl Caller {
    /// A client that may do only what it was granted; `None`: one that may do everything.
    fn named(&self) -> Option<&messages::Permit> {
        self.permit.as_ref().filter(|permit| !permit.client.is_empty())
    }

    /// Whether the client needs no grant.
    pub(crate) fn may_do_everything(&self) -> bool {
        self.named().is_none()
    }

    /// Who uploads a file. A member that passes pieces on passes the permit on, so this is the same behind
    /// it. A client that may do everything is known by the incarnation in the file's id.
    pub(crate) fn origin(&self, fid: FileId) -> UploadOrigin {
        match self.named() {
            Some(permit) => UploadOrigin {
                client: Bytes::from(format!("{}.{CLIENT_NAME}", permit.client)),
                incarnation: match permit.incarnation {
                    0 => fid.incarnation(),
                    incarnation => incarnation,
                },
            },
            None => UploadOrigin {
                client: Bytes::from_static(CLIENT_NAME.as_bytes()),
                incarnation: fid.incarnation(),
            },
        }
    }

    /// Refuses uploads of named clients under ids that no client of their name has drawn.
    /// # Errors
    /// `Denied`.
    pub(crate) fn must_have_drawn(&self, fid: FileId) -> Result<(), Status> {
        let is_drawn = |permit: &messages::Permit| {
            (fid.incarnation() >> 32) as u32 == incarnation_prefix(&permit.client)
        };
        match self.named().is_none_or(is_drawn) {
            true => Ok(()),
            false => {
                Err(Status::new(Code::Denied, "a client uploads files under ids that it has drawn itself"))
            }
        }
    }
}

/// A refusal of `access` as one of the place where an operation is applied.
pub(crate) fn not_held(refusal: &Status) -> NotHeld {
    NotHeld::Denied { reason: refusal.text().to_owned() }
}
