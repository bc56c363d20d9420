//! Header of an overlay file, and the layout of bitmap and blocks.
//!
//! Format: docs/formats/overlay.md v1
//! Not here: the order of writes (`overlay`).

use copal_codec::{ENVELOPE_LEN, Envelope, EnvelopeError, Format, Put, Reader};

pub(crate) const FORMAT: Format =
    Format { magic: *b"COPALOVL", name: "overlay of a disk", oldest: 1, version: 1, known_flags: 0 };

/// Unit of a disk that the overlay stores.
pub(super) const BLOCK_BYTES: u64 = 64 << 10;
/// Length of the header, padded with zeroes; the bitmap follows it.
pub(super) const HEAD_BYTES: u64 = 4096;
/// The bitmap is written in pages of this length.
pub(super) const PAGE_BYTES: u64 = 4096;
/// Largest disk: 64 TiB, as in a snapshot. Its bitmap has 128 MiB.
const MAX_DISK_BYTES: u64 = 64 << 40;
/// Longest name of a disk.
const MAX_NAME_BYTES: usize = 1024;

/// Identity of the disk below an overlay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OverlayHeader {
    pub(super) size_bytes: u64,
    pub(super) snapshot: [u8; 16],
    pub(super) disk: String,
}

impl OverlayHeader {
    /// Encodes the padded header.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; ENVELOPE_LEN];
        bytes.put_u64(self.size_bytes);
        bytes.put_bytes(&self.snapshot);
        bytes.put_prefixed(self.disk.as_bytes());
        Envelope::seal(&FORMAT, 0, 0, &mut bytes);
        bytes.resize(HEAD_BYTES as usize, 0);
        bytes
    }

    /// Decodes a header.
    /// # Errors
    /// The reason, as text.
    pub(crate) fn decode(bytes: &[u8]) -> Result<OverlayHeader, String> {
        let text = |error: EnvelopeError| error.to_string();
        let (_, body) = Envelope::open(&FORMAT, bytes).map_err(text)?;
        let mut input = Reader::new(body);
        let mut read = || {
            let size_bytes = input.u64()?;
            let mut snapshot = [0; 16];
            snapshot.copy_from_slice(input.bytes(16)?);
            let len = input.bounded(MAX_NAME_BYTES)?;
            let disk = input.bytes(len)?.to_vec();
            Ok::<_, copal_codec::DecodeError>((size_bytes, snapshot, disk))
        };
        let (size_bytes, snapshot, disk) = read().map_err(|error| error.to_string())?;
        input.finish().map_err(|error| error.to_string())?;
        if size_bytes > MAX_DISK_BYTES {
            return Err(format!("no disk has {size_bytes} bytes"));
        }
        Ok(OverlayHeader {
            size_bytes,
            snapshot,
            disk: String::from_utf8(disk).map_err(|_| "the name of its disk is not UTF-8")?,
        })
    }

    /// Number of blocks; the last one may be short.
    pub(super) fn blocks(&self) -> u64 {
        self.size_bytes.div_ceil(BLOCK_BYTES)
    }

    /// Length of the bitmap, in whole pages.
    pub(crate) fn bitmap_bytes(&self) -> u64 {
        self.blocks().div_ceil(8).next_multiple_of(PAGE_BYTES)
    }

    /// Offset of block 0 in the file.
    pub(crate) fn blocks_at(&self) -> u64 {
        (HEAD_BYTES + self.bitmap_bytes()).next_multiple_of(BLOCK_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> OverlayHeader {
        OverlayHeader { size_bytes: 3 << 30, snapshot: *b"0123456789abcdef", disk: "sda".to_owned() }
    }

    #[test]
    fn the_example_of_the_format_page_is_encoded_exactly() {
        let page = include_str!("../../../../../docs/formats/overlay.md");
        let example_bytes = example().encode();
        let hex: String = page
            .lines()
            .skip_while(|line| !line.starts_with("## Example"))
            .filter_map(|line| line.strip_prefix("    "))
            .flat_map(|line| line.split_whitespace())
            .collect();
        let written: String =
            example_bytes[..hex.len() / 2].iter().map(|byte| format!("{byte:02x}")).collect();
        assert!(hex.len() > 100, "the page has no example");
        assert_eq!(hex, written);
        assert!(example_bytes[hex.len() / 2..].iter().all(|byte| *byte == 0));
        assert_eq!(OverlayHeader::decode(&example_bytes), Ok(example()));
        assert_eq!(example().bitmap_bytes(), 8192);
        assert_eq!(example().blocks_at(), 65536);
    }

    #[test]
    fn damaged_headers_are_refused() {
        let good = example().encode();
        for at in 0..60 {
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert!(OverlayHeader::decode(&bad).is_err(), "byte {at}");
        }
        assert!(OverlayHeader::decode(&good[..40]).is_err());
        assert!(OverlayHeader::decode(&[]).is_err());
    }
}
