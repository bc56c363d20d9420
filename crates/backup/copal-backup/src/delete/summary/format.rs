//! Byte format of a summary vector.
//!
//! Format: docs/formats/backup-summary.md v2

use super::Geometry;
use crate::keys::signature::SIGNATURE_BYTES;
use crate::keys::{DomainKeys, MAC_BYTES};
use crate::request::SnapshotId;
use copal_codec::{DecodeError, ENVELOPE_LEN, Envelope, Format, Put, Reader};
use uuid::Uuid;

pub(crate) const FORMAT: Format =
    Format { magic: *b"COPALSUM", name: "summary vector", oldest: 1, version: 2, known_flags: 0 };

/// Vectors without a signature behind their blocks.
const UNSIGNED: Format = Format { version: 1, ..FORMAT };

/// Bytes of envelope and header.
pub(crate) const HEADER_BYTES: usize = ENVELOPE_LEN + 56 + MAC_BYTES;
/// Bytes of the MAC behind the bits of each block.
pub(crate) const BLOCK_MAC_BYTES: usize = 16;

/// Header of a vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VectorHeader {
    pub(crate) vm: Uuid,
    pub(crate) snapshot: SnapshotId,
    pub(crate) geometry: Geometry,
    /// Number of added references, counted as often as they occur.
    pub(crate) references: u64,
    /// Whether a signature of the delete role follows the blocks.
    pub(crate) is_signed: bool,
}

impl VectorHeader {
    /// Size of the file.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.block_at(self.geometry.blocks) + if self.is_signed { SIGNATURE_BYTES as u64 } else { 0 }
    }

    /// Offset of block `number`; behind the last one, of the signature.
    pub(crate) fn block_at(&self, number: u32) -> u64 {
        HEADER_BYTES as u64 + u64::from(number) * (self.bits_bytes() + BLOCK_MAC_BYTES as u64)
    }

    /// Bytes of a block, before its MAC.
    pub(crate) fn bits_bytes(&self) -> u64 {
        u64::from(self.geometry.block_words) * 8
    }

    /// Encodes the header of file `name`.
    pub(crate) fn encode(&self, name: &str, keys: &DomainKeys) -> Vec<u8> {
        let mut bytes = vec![0; ENVELOPE_LEN];
        bytes.put_bytes(self.vm.as_bytes());
        bytes.put_bytes(&self.snapshot.0);
        bytes.put_u32(self.geometry.blocks);
        bytes.put_u32(self.geometry.block_words);
        bytes.put_u8(self.geometry.hashes);
        bytes.put_zeros(7);
        bytes.put_u64(self.references);
        let mac = keys.mac(name, &bytes[ENVELOPE_LEN..]);
        bytes.put_bytes(&mac);
        let format = if self.is_signed { &FORMAT } else { &UNSIGNED };
        Envelope::seal(format, 0, 0, &mut bytes);
        bytes
    }

    /// Decodes the header of file `name`.
    pub(crate) fn decode(bytes: &[u8], name: &str, keys: &DomainKeys) -> Result<VectorHeader, String> {
        let (envelope, body) = Envelope::open(&FORMAT, bytes).map_err(|error| error.to_string())?;
        let at = body.len().checked_sub(MAC_BYTES).ok_or("it is too short for a vector")?;
        let (content, mac) = body.split_at(at);
        if !keys.mac_fits(name, content, mac) {
            return Err("its MAC does not match: it was changed, or moved from another place".into());
        }
        let header = parse(content)?;
        Ok(VectorHeader { is_signed: envelope.version >= FORMAT.version, ..header })
    }
}

/// Parses the content between the envelope and the MAC.
pub(crate) fn parse(content: &[u8]) -> Result<VectorHeader, String> {
    let text = |error: DecodeError| error.to_string();
    let mut input = Reader::new(content);
    let vm = Uuid::from_bytes(input.array().map_err(text)?);
    let snapshot = SnapshotId(input.array().map_err(text)?);
    let (blocks, words) = (input.u32().map_err(text)?, input.u32().map_err(text)?);
    let hashes = input.u8().map_err(text)?;
    input.zeros(7).map_err(text)?;
    let references = input.u64().map_err(text)?;
    input.finish().map_err(text)?;
    let geometry =
        Geometry::checked(blocks, words, hashes).ok_or_else(|| "no vector has such a geometry".to_owned())?;
    Ok(VectorHeader { vm, snapshot, geometry, references, is_signed: false })
}

/// The MAC of a block.
pub(crate) type BlockMac = [u8; BLOCK_MAC_BYTES];

/// Digest of a vector, over its encoded header and the MACs of its blocks. The manifest names it, or the
/// delete role signs it.
pub(crate) fn digest(header: &[u8], macs: &[BlockMac]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(header);
    for mac in macs {
        hasher.update(mac);
    }
    *hasher.finalize().as_bytes()
}

/// The MAC behind the bits of block `number` of file `name`.
pub(crate) fn block_mac(name: &str, number: u32, bits: &[u8], keys: &DomainKeys) -> BlockMac {
    let mut short = [0; BLOCK_MAC_BYTES];
    short.copy_from_slice(&keys.mac(&block_name(name, number), bits)[..BLOCK_MAC_BYTES]);
    short
}

fn block_name(name: &str, number: u32) -> String {
    format!("{name}/{number:08x}")
}
