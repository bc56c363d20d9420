//! What a client may do: rights, and what a master signs of them.

use crate::messages;
use prost::Message;

/// A set of rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Rights(pub u32);

impl Rights {
    /// Files and names may be read.
    pub const READ: Rights = Rights(1);
    /// Files and volumes may be made.
    pub const CREATE: Rights = Rights(2);
    /// Files and volumes may be deleted.
    pub const DELETE: Rights = Rights(4);
    /// Everything.
    pub const ALL: Rights = Rights(7);

    /// Whether all of `other` are among them.
    pub fn have(self, other: Rights) -> bool {
        self.0 & other.0 == other.0
    }

    /// Reads `read,create,delete`, in any order; `None`: another word, or none.
    pub fn parse(text: &str) -> Option<Rights> {
        let mut rights = Rights::default();
        for word in text.split(',') {
            rights.0 |= match word.trim() {
                "read" => Rights::READ.0,
                "create" => Rights::CREATE.0,
                "delete" => Rights::DELETE.0,
                _ => return None,
            };
        }
        Some(rights)
    }
}

impl std::fmt::Display for Rights {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let named = [(Rights::READ, "read"), (Rights::CREATE, "create"), (Rights::DELETE, "delete")];
        let words: Vec<&str> =
            named.iter().filter(|(right, _)| self.have(*right)).map(|(_, word)| *word).collect();
        f.write_str(&words.join(","))
    }
}

/// What is signed of an encoded permit. It begins as no certificate does, which the authority's key signs,
/// too.
pub fn signed_part(permit: &[u8]) -> Vec<u8> {
    [b"copal permit 1\0", permit].concat()
}

/// Upper half of the incarnation with which a client of this name draws ids: what it buries is what a client
/// of its name has made.
pub fn incarnation_prefix(client: &str) -> u32 {
    // FNV-1a: names of one cluster are few, and whoever is named chose none of them.
    let hash = client
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    (hash >> 32) as u32 ^ hash as u32
}

/// The volume that a client's request to a data server is about; `None`: the bytes are no such request. The
/// number stands in the same field of all of them.
pub fn volume_of(request: &[u8]) -> Option<u64> {
    let read = messages::VolumeTotals::decode(request).ok()?;
    Some(read.volume)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    #[test]
    fn rights_are_read_as_they_are_shown() {
        let rights = Rights::parse("create, read").unwrap();
        assert!(rights.have(Rights::READ) && rights.have(Rights::CREATE) && !rights.have(Rights::DELETE));
        assert_eq!(rights.to_string(), "read,create");
        assert_eq!(Rights::parse(&Rights::ALL.to_string()), Some(Rights::ALL));
        assert_eq!(Rights::parse("admin"), None);
        assert_eq!(Rights::parse(""), None);
    }

    #[test]
    fn every_request_of_a_client_tells_its_volume_in_the_same_field() {
        let volume = 0x1234_5678_9abc;
        macro_rules! tells {
            ($($name:ident),*) => {$({
                let request = messages::$name { group: 1, epoch: 2, volume, ..Default::default() };
                assert_eq!(volume_of(&request.encode_to_vec()), Some(volume), stringify!($name));
            })*};
        }
        tells!(PutPiece, Put, Confirm, Delete, Get, Stat, List, Find, GetPiece);
        let body = messages::Put { volume, body: Bytes::from(vec![7; 100]), ..messages::Put::default() };
        assert_eq!(volume_of(&body.encode_to_vec()), Some(volume));
        assert_eq!(volume_of(b"\xff\xff"), None);
    }
}
