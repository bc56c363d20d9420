//! Rights of clients, and the signed part of a permit.

use crate::messages;
use prost::Message;

/// A set of rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RightSet(pub u32);

impl RightSet {
    /// Files and names may be read.
    pub const READ: RightSet = RightSet(1);
    /// Files and volumes may be created.
    pub const CREATE: RightSet = RightSet(2);
    /// Files and volumes may be deleted.
    pub const DELETE: RightSet = RightSet(4);
    /// All rights.
    pub const ALL: RightSet = RightSet(7);

    /// Whether all rights of `other` are in this set.
    pub fn contains(self, other: RightSet) -> bool {
        self.0 & other.0 == other.0
    }

    /// Parses `read,create,delete`, in any order; `None`: an unknown word, or an empty text.
    pub fn parse(text: &str) -> Option<RightSet> {
        let mut rights = RightSet::default();
        for word in text.split(',') {
            rights.0 |= match word.trim() {
                "read" => RightSet::READ.0,
                "create" => RightSet::CREATE.0,
                "delete" => RightSet::DELETE.0,
                _ => return None,
            };
        }
        Some(rights)
    }
}

impl std::fmt::Display for RightSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let named = [(RightSet::READ, "read"), (RightSet::CREATE, "create"), (RightSet::DELETE, "delete")];
        let words: Vec<&str> =
            named.iter().filter(|(right, _)| self.contains(*right)).map(|(_, word)| *word).collect();
        f.write_str(&words.join(","))
    }
}

/// The bytes of an encoded permit that are signed. The authority's key also signs certificates, and no certificate
/// begins with these bytes.
pub fn signed_part(permit: &[u8]) -> Vec<u8> {
    [b"copal permit 1\0", permit].concat()
}

/// Upper half of the incarnation of a named client's file ids. Without the right to delete, the client may delete
/// only files whose ids have this prefix.
pub fn incarnation_prefix(client: &str) -> u32 {
    // FNV-1a suffices: a cluster has few named clients, and they do not choose their names.
    let hash = client
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    (hash >> 32) as u32 ^ hash as u32
}

/// The volume of a client's request to a data server; `None`: the bytes are not such a request. All these requests
/// carry the volume in the same field.
pub fn volume_of(request: &[u8]) -> Option<u64> {
    let read = messages::VolumeTotals::decode(request).ok()?;
    Some(read.volume)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    #[test]
    fn rights_survive_the_conversion_to_text() {
        let rights = RightSet::parse("create, read").unwrap();
        assert!(
            rights.contains(RightSet::READ)
                && rights.contains(RightSet::CREATE)
                && !rights.contains(RightSet::DELETE)
        );
        assert_eq!(rights.to_string(), "read,create");
        assert_eq!(RightSet::parse(&RightSet::ALL.to_string()), Some(RightSet::ALL));
        assert_eq!(RightSet::parse("admin"), None);
        assert_eq!(RightSet::parse(""), None);
    }

    #[test]
    fn every_request_of_a_client_has_its_volume_in_the_same_field() {
        let volume = 0x1234_5678_9abc;
        macro_rules! check_field {
            ($($name:ident),*) => {$({
                let request = messages::$name { group: 1, epoch: 2, volume, ..Default::default() };
                assert_eq!(volume_of(&request.encode_to_vec()), Some(volume), stringify!($name));
            })*};
        }
        check_field!(PutPiece, Put, Confirm, Delete, Get, GetRanges, Stat, List, Find, GetPiece);
        let body = messages::Put { volume, body: Bytes::from(vec![7; 100]), ..messages::Put::default() };
        assert_eq!(volume_of(&body.encode_to_vec()), Some(volume));
        assert_eq!(volume_of(b"\xff\xff"), None);
    }
}
