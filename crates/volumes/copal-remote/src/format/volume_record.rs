//! The record of a volume: its id, under the key of its path.

use copal_codec::{ENVELOPE_LEN, Envelope, Format, Put, Reader, crc32c};
use copal_volume::VolumeId;

const FORMAT: Format =
    Format { magic: *b"COPALRVR", name: "volume record", oldest: 1, version: 1, known_flags: 0 };

/// The object of a volume record.
pub(crate) fn volume_record(key: &str, vid: VolumeId) -> Vec<u8> {
    let mut bytes = vec![0; ENVELOPE_LEN];
    bytes.put_u64(vid.0);
    bytes.put_u32(crc32c(0, key.as_bytes()));
    Envelope::seal(&FORMAT, 0, 0, &mut bytes);
    bytes
}

/// The volume that a record names, read under `key`.
/// # Errors
/// Damage, or a record of another key, as a sentence.
pub(crate) fn open_record(key: &str, bytes: &[u8]) -> Result<VolumeId, String> {
    let (_, body) = Envelope::open(&FORMAT, bytes).map_err(|error| error.to_string())?;
    let mut input = Reader::new(body);
    let decode = |error: copal_codec::DecodeError| format!("a volume record is damaged: {error}");
    let vid = VolumeId(input.u64().map_err(decode)?);
    let key_sum = input.u32().map_err(decode)?;
    input.finish().map_err(decode)?;
    if key_sum != crc32c(0, key.as_bytes()) {
        return Err("a volume record lies under another key".to_owned());
    }
    if vid == VolumeId::ROOT {
        return Err("a volume record names the root".to_owned());
    }
    Ok(vid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_under_its_own_key_only() {
        let bytes = volume_record("n/61", VolumeId(9));
        assert_eq!(open_record("n/61", &bytes), Ok(VolumeId(9)));
        assert!(open_record("n/62", &bytes).is_err());
        assert!(open_record("n/61", &volume_record("n/61", VolumeId::ROOT)).is_err());
        for cut in 0..bytes.len() {
            assert!(open_record("n/61", &bytes[..cut]).is_err());
        }
    }
}
