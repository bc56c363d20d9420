//! One entry of the cache: the first bytes of an object, with its key and tag.

use crate::service::ObjectFront;
use bytes::Bytes;
use copal_codec::{DecodeError, ENVELOPE_LEN, Envelope, Format, Put, Reader};

const FORMAT: Format =
    Format { magic: *b"COPALRCE", name: "cached object", oldest: 1, version: 1, known_flags: 0 };

/// Longest key and longest tag of an entry.
const MAX_TEXT_BYTES: usize = 1024;
/// Bytes of an entry beside the object's.
pub(super) const ENTRY_BYTES: u64 = ENVELOPE_LEN as u64 + 2 * (2 + MAX_TEXT_BYTES as u64) + 8;

/// The bytes of an entry; `None`: key or tag is too long for one.
pub(crate) fn encode(key: &str, front: &ObjectFront) -> Option<Vec<u8>> {
    if key.len() > MAX_TEXT_BYTES || front.tag.len() > MAX_TEXT_BYTES || front.tag.is_empty() {
        return None;
    }
    let mut bytes = vec![0; ENVELOPE_LEN];
    for text in [key, &front.tag] {
        bytes.put_u16(text.len() as u16);
        bytes.put_bytes(text.as_bytes());
    }
    bytes.put_u64(front.total);
    bytes.put_bytes(&front.bytes);
    Envelope::seal(&FORMAT, 0, 0, &mut bytes);
    Some(bytes)
}

/// The object in an entry of this key; `None`: the entry is damaged, or belongs to another key.
pub(crate) fn decode(key: &str, bytes: &[u8]) -> Option<ObjectFront> {
    let (_, body) = Envelope::open(&FORMAT, bytes).ok()?;
    fields(key, body).ok().flatten()
}

/// Key and length of the entry at the start of these bytes; `None`: it is cut, or damaged.
pub(crate) fn first(bytes: &[u8]) -> Option<(String, usize)> {
    let (_, body) = Envelope::open(&FORMAT, bytes).ok()?;
    let mut input = Reader::new(body);
    let of_key = usize::from(input.u16().ok()?);
    let key = std::str::from_utf8(input.bytes(of_key).ok()?).ok()?;
    Some((key.to_owned(), ENVELOPE_LEN + body.len()))
}

/// Decodes the contents of an entry, whose checksum is right.
pub(crate) fn fields(key: &str, body: &[u8]) -> Result<Option<ObjectFront>, DecodeError> {
    let mut input = Reader::new(body);
    let of_key = usize::from(input.u16()?);
    let is_of_key = input.bytes(of_key)? == key.as_bytes();
    let of_tag = usize::from(input.u16()?);
    let tag = std::str::from_utf8(input.bytes(of_tag)?).map(str::to_owned);
    let total = input.u64()?;
    let front = Bytes::copy_from_slice(input.rest());
    Ok(match tag {
        Ok(tag) if is_of_key && front.len() as u64 <= total => Some(ObjectFront { bytes: front, total, tag }),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_believed_under_its_own_key_only() {
        let front = ObjectFront { bytes: Bytes::from_static(b"abc"), total: 9, tag: "\"t\"".to_owned() };
        let bytes = encode("f/1/61", &front).unwrap();
        assert!(bytes.len() as u64 <= ENTRY_BYTES + 3);
        assert_eq!(decode("f/1/61", &bytes), Some(front.clone()));
        assert_eq!(decode("f/1/62", &bytes), None);
        for cut in 0..bytes.len() {
            assert_eq!(decode("f/1/61", &bytes[..cut]), None);
            let mut changed = bytes.clone();
            changed[cut] ^= 1;
            assert_eq!(decode("f/1/61", &changed), None, "byte {cut}");
        }
        let longer = ObjectFront { total: 2, ..front.clone() };
        assert_eq!(decode("f/1/61", &encode("f/1/61", &longer).unwrap()), None);
        assert_eq!(encode("k", &ObjectFront { tag: String::new(), ..front }), None);
    }
}
