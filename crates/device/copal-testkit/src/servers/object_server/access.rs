//! Access keys and their rights. Signatures are not checked.

use super::{
    encoding::query_parameters,
    errors::{ACCESS_DENIED, S3Error, UNKNOWN_KEY},
    http::HttpRequest,
};
use std::collections::HashMap;

/// The operations that an access key permits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyRights {
    /// GET and HEAD of objects.
    pub read: bool,
    /// Writes with `If-None-Match: *`, starts, parts and aborts of uploads, and new buckets.
    pub create: bool,
    /// Writes with `If-Match`; together with `create` also writes without a condition.
    pub overwrite: bool,
    /// Deletion of objects.
    pub delete: bool,
    /// Lists of objects and uploads, and HEAD of buckets.
    pub list: bool,
}

impl KeyRights {
    /// Every right.
    pub const ALL: KeyRights =
        KeyRights { read: true, create: true, overwrite: true, delete: true, list: true };
}

/// Known access keys. As long as there is none, every request has all rights.
#[derive(Debug, Default)]
pub(super) struct AccessTable {
    keys: HashMap<String, KeyRights>,
}

impl AccessTable {
    pub(super) fn allow(&mut self, id: &str, rights: KeyRights) {
        self.keys.insert(id.to_owned(), rights);
    }

    /// Rights of the key that a request names, in its `Authorization` header or its presigned address.
    pub(super) fn rights(&self, request: &HttpRequest) -> Result<KeyRights, S3Error> {
        if self.keys.is_empty() {
            return Ok(KeyRights::ALL);
        }
        let presigned = || {
            let all = query_parameters(&request.query)?;
            all.into_iter().find(|(name, _)| name == "X-Amz-Credential").map(|(_, value)| value)
        };
        let credential = match request.header("authorization") {
            Some(value) => value.split_once("Credential=").map(|(_, credential)| credential.to_owned()),
            None => presigned(),
        };
        let credential = credential.ok_or(ACCESS_DENIED)?;
        let id = credential.split(['/', ',', ' ']).next().unwrap_or_default();
        self.keys.get(id).copied().ok_or(UNKNOWN_KEY)
    }
}
