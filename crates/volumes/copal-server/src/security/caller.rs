//! The permit of a call. It travels with the operation to the place where it is applied.
//!
//! Between the check of its permit and its turn a call may take long: a chain waits for its bytes, an
//! operation for its batch. So the expiry of the permit and its writer lease number are checked again under
//! the lock of the group (VOL-40).
//!
//! Not here: the first check of a call (`access`).

use crate::net::peer::CLIENT_NAME;
use crate::net::status::Status;
use bytes::Bytes;
use copal_data::{OperationError, UploadOrigin};
use copal_proto::{
    incarnation_prefix,
    messages::{self, failure::Code},
};
use copal_volume::FileId;

/// The permit that an operation runs under. See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallerPermit {
    /// The permit; `None`: the caller needs none.
    pub(crate) permit: Option<messages::Permit>,
}

impl CallerPermit {
    /// The permit of a named client; `None`: the client has all rights.
    fn named(&self) -> Option<&messages::Permit> {
        self.permit.as_ref().filter(|permit| !permit.client.is_empty())
    }

    /// Whether the caller has all rights.
    pub(crate) fn is_unrestricted(&self) -> bool {
        self.named().is_none()
    }

    /// The uploader of a file. It is the same behind a member that passes pieces on, since the permit is
    /// passed on, too. A client with all rights is identified by the incarnation in the file id.
    pub(crate) fn upload_origin(&self, fid: FileId) -> UploadOrigin {
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

    /// Refuses an upload of a named client under an id that no client of its name can have drawn.
    /// # Errors
    /// `Denied`.
    pub(crate) fn require_own_id(&self, fid: FileId) -> Result<(), Status> {
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

/// Converts a refusal of `access` into one of the store.
pub(crate) fn denial(refusal: &Status) -> OperationError {
    OperationError::Denied { reason: refusal.text().to_owned() }
}
