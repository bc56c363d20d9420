//! Decoders of packs, recipes, manifests, catalog and key slots, by name: for the fuzz targets, and a short
//! run of each here.
//!
//! If a checksum guards a structure, the part behind it is listed too, since random bytes do not pass a
//! checksum. Built for tests and fuzzing only.

use crate::{
    catalog::{checkpoint, domain::DomainState, fold::LogState, popular::PopularState, record, vm::VmState},
    delete::summary,
    index::{self, dead_frames, moved_frames},
    keys::{DomainKeys, SignatureState, key_slot, role_key},
    packs::pack::{PackNumber, format as pack},
    snapshot::{manifest, recipe},
};
use copal_codec::{ENVELOPE_LEN, Envelope, Format, Put, Reader};
use copal_disk::source::parse_changed_extents;
use uuid::Uuid;

/// A decoder takes any bytes and must not panic.
pub type Decoder = fn(&[u8]);

/// Names and decoders.
pub const DECODERS: &[(&str, Decoder)] = &[
    ("pack header", |bytes| {
        let _ = pack::PackHeader::decode(bytes);
    }),
    ("pack header behind its sum", |bytes| {
        let _ = pack::PackHeader::decode(&enveloped(&pack::FORMAT, bytes));
    }),
    ("pack trailer", |bytes| {
        // The size comes from the trailer itself, so that random bytes pass the check.
        let size = |trailer: &[u8; pack::TRAILER_BYTES]| {
            let lengths = trailer[16..28].as_chunks::<4>().0.iter();
            lengths.map(|len| u64::from(u32::from_le_bytes(*len))).sum::<u64>() + trailer.len() as u64
        };
        if let Some(trailer) = bytes.first_chunk() {
            let _ = pack::PackTrailer::decode(trailer, size(trailer));
            let _ = pack::trailer_fits(&bytes[trailer.len()..], trailer);
        }
    }),
    ("pack name", |bytes| {
        let _ = PackNumber::from_file_name(bytes);
    }),
    ("pack footer", |bytes| {
        let _ = pack::decode_rows(bytes, 1 << 24);
    }),
    ("segment recipe", |bytes| {
        let _ = recipe::SegmentRecipe::decode(bytes, 2 << 20, Uuid::nil());
    }),
    ("recipe page", |bytes| {
        let _ = recipe::RecipePage::decode(bytes, 512, Uuid::nil());
    }),
    ("disk root", |bytes| {
        let _ = recipe::DiskRoot::decode(bytes, Uuid::nil());
    }),
    ("manifest body", |bytes| {
        for version in [2, 4, manifest::FORMAT.version] {
            let _ = manifest::parse(&mut Reader::new(bytes), version);
        }
    }),
    ("catalog record body", |bytes| {
        let _ = record::parse(&mut Reader::new(bytes), record::FORMAT.version);
    }),
    ("catalog checkpoint body", |bytes| {
        let version = checkpoint::FORMAT.version;
        let _ = checkpoint::parse::<DomainState>(&mut Reader::new(bytes), version);
        let _ = checkpoint::parse::<VmState>(&mut Reader::new(bytes), version);
        let _ = checkpoint::parse::<PopularState>(&mut Reader::new(bytes), version);
        let _ = DomainState::parse(0, &mut Reader::new(bytes), version);
        let _ = VmState::parse(0, &mut Reader::new(bytes), version);
    }),
    ("summary vector", |bytes| {
        let _ = summary::format::parse(bytes);
    }),
    ("list of dead frames", |bytes| {
        let _ = dead_frames::parse(bytes);
    }),
    ("list of moved frames", |bytes| {
        let _ = moved_frames::parse(bytes);
    }),
    ("key slot", |bytes| {
        let _ = key_slot::decode(bytes);
    }),
    ("key slot behind its sum", |bytes| {
        let _ = key_slot::decode(&enveloped(&key_slot::FORMAT, bytes));
    }),
    ("slot of a role key", |bytes| {
        let _ = role_key::decode(bytes);
    }),
    ("slot of a role key behind its sum", |bytes| {
        // Random bytes hit no valid kind and role.
        for role in 1..=3 {
            let body = [&[3, role, 0, 0], bytes.get(4..).unwrap_or_default()].concat();
            let _ = role_key::decode(&enveloped(&role_key::FORMAT, &body));
        }
    }),
    ("key file", |bytes| {
        let text = String::from_utf8_lossy(bytes);
        let _ = crate::keys::role::RoleKey::parse(&text);
        let _ = crate::keys::role::RoleKey::parse(&format!("copal-key 1 backup {text}"));
        let _ = crate::keys::role::KeyId::of_file_name(bytes);
    }),
    ("signed record and checkpoint", |bytes| {
        let keys = DomainKeys::derive(&[7; 32]);
        keys.set_signatures(SignatureState::Needed);
        for format in [&record::FORMAT, &checkpoint::FORMAT] {
            // A valid MAC over any content, so that the check of the signature is reached.
            let mut body = bytes.to_vec();
            body.extend_from_slice(&keys.mac("d.0", bytes));
            let file = enveloped(format, &body);
            let _ = record::Record::decode(&file, "d.0", &keys);
            let _ = checkpoint::decode::<DomainState>(&file, "d.0", 0, &keys);
        }
    }),
    ("rows of the chunk index", |bytes| {
        let _ = index::decode_rows(bytes);
        let _ = index::decode_pack(bytes);
    }),
    ("changed extents", |bytes| {
        let _ = parse_changed_extents(bytes);
    }),
];

/// Any bytes as a body under the right envelope.
fn enveloped(format: &Format, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; ENVELOPE_LEN];
    bytes.put_bytes(body);
    Envelope::seal(format, 0, 0, &mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    #[test]
    fn no_decoder_panics_on_any_bytes() {
        copal_testkit::decoders_survive(super::DECODERS, 4000);
    }
}
