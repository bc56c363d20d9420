//! Names of snapshots and VMs.

use crate::request::json;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// Least digits of a prefix that names a snapshot.
pub(crate) const MIN_DIGITS: usize = 4;

/// Identity of a snapshot: 16 random bytes, written as 32 hex digits; people use the first 8.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SnapshotId(pub [u8; 16]);

impl Serialize for SnapshotId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        json::text(self, serializer)
    }
}

impl<'de> Deserialize<'de> for SnapshotId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<SnapshotId, D::Error> {
        let digits = String::deserialize(deserializer)?;
        let id = uuid::Uuid::try_parse(&digits).ok().filter(|_| digits.len() == 32);
        let id = id.ok_or_else(|| D::Error::custom("the id of a snapshot is not 32 hex digits"))?;
        Ok(SnapshotId(id.into_bytes()))
    }
}

impl fmt::Display for SnapshotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for SnapshotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl SnapshotId {
    /// The first 8 hex digits.
    pub fn short(&self) -> String {
        self.to_string()[..8].to_owned()
    }
}

/// A VM that the catalog lists.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Vm {
    /// Its permanent identity.
    #[serde(serialize_with = "json::text")]
    pub uuid: uuid::Uuid,
    /// Its name; unique in the repository.
    pub name: String,
}
