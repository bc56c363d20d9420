//! Checkpoints of logs: the state after all records below a number, as bytes.
//!
//! Format: docs/formats/backup-checkpoint.md v3
//! A checkpoint replaces all records before it. So in a repository that has had role keys only the delete
//! role writes checkpoints, and signs them (BAK-19).
//! Not here: writing of checkpoints and removal of the records before them (`replay`), the states (`domain`,
//! `vm`).

use super::fold::LogState;
use super::record::split_signature;
use crate::keys::{DomainKeys, MAC_BYTES};
use copal_codec::{DecodeError, ENVELOPE_LEN, Envelope, Format, Put, Reader};

pub(crate) const FORMAT: Format =
    Format { magic: *b"COPALCKP", name: "catalog checkpoint", oldest: 1, version: 3, known_flags: 0 };

/// Checkpoints without a signature keep the older version, so their bytes do not change.
const UNSIGNED: Format = Format { version: 2, ..FORMAT };

/// Largest checkpoint: 200,000 VMs with names of full length. A log that would need more gets no checkpoint.
pub(crate) const MAX_CHECKPOINT_BYTES: u64 = 64 << 20;

/// Encodes the checkpoint file named `place`.
pub(crate) fn encode<S: LogState>(state: &S, place: &str, keys: &DomainKeys) -> Vec<u8> {
    let mut bytes = vec![0; ENVELOPE_LEN];
    bytes.put_u8(S::KIND);
    bytes.put_zeros(3);
    bytes.put_u64(state.next_number());
    state.put(&mut bytes);
    let format = match keys.sign(place, &bytes[ENVELOPE_LEN..]) {
        Some(signature) => {
            bytes.put_bytes(&signature);
            &FORMAT
        }
        None => &UNSIGNED,
    };
    let mac = keys.mac(place, &bytes[ENVELOPE_LEN..]);
    bytes.put_bytes(&mac);
    Envelope::seal(format, 0, 0, &mut bytes);
    bytes
}

/// Decodes the checkpoint file named `place`, which must be that of record `number`.
pub(crate) fn decode<S: LogState>(
    bytes: &[u8],
    place: &str,
    number: u64,
    keys: &DomainKeys,
) -> Result<S, String> {
    let (version, content) = open(bytes, place, keys)?;
    let mut input = Reader::new(content);
    let state: S = parse(&mut input, version)?;
    input.finish().map_err(|error| error.to_string())?;
    if state.next_number() != number {
        return Err(format!("it is that of record {}", state.next_number()));
    }
    Ok(state)
}

/// Whether the bytes are a valid checkpoint file named `place`.
pub(crate) fn counts(bytes: &[u8], place: &str, keys: &DomainKeys) -> bool {
    open(bytes, place, keys).is_ok()
}

/// Checks MAC and signature of a checkpoint; returns its version and its fields.
fn open<'a>(bytes: &'a [u8], place: &str, keys: &DomainKeys) -> Result<(u16, &'a [u8]), String> {
    let (envelope, body) = Envelope::open(&FORMAT, bytes).map_err(|error| error.to_string())?;
    let at = body.len().checked_sub(MAC_BYTES).ok_or("it is too short for a checkpoint")?;
    let (content, mac) = body.split_at(at);
    if !keys.mac_fits(place, content, mac) {
        return Err("its MAC does not match: it was changed, or moved from another place".into());
    }
    let (content, signature) = split_signature(content, envelope.version >= FORMAT.version)?;
    if !keys.counts(place, content, signature) {
        return Err("it lacks the signature of the delete role, so it is none; if `copal key add` was interrupted, run it again".into());
    }
    Ok((envelope.version, content))
}

/// Parses the fields between the envelope and the signature or MAC.
pub(crate) fn parse<S: LogState>(input: &mut Reader<'_>, version: u16) -> Result<S, String> {
    let text = |error: DecodeError| error.to_string();
    let kind = input.u8().map_err(text)?;
    if kind != S::KIND {
        return Err(format!("it is of kind {kind}, not of {}", S::KIND));
    }
    input.zeros(3).map_err(text)?;
    let number = input.u64().map_err(text)?;
    S::parse(number, input, version)
}
