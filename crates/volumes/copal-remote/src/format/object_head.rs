//! The head of a file's object, and the tail of a streamed one.
//!
//! | part | bytes |
//! |---|---|
//! | head | a multiple of 512: envelope, fields, metadata, zeros |
//! | checksums of the blocks | 4 for each 64 KiB; of a streamed file behind the body |
//! | body | |
//! | tail | 64, of a streamed file only: its size and checksum, which the head lacks |
//!
//! A tombstone object is a head alone: the name is settled, and no file has it.
//!
//! Invariant: a head is valid under one key only, since its checksum covers the key.

use super::block_sums::{BlockSums, sums_bytes};
use bytes::Bytes;
use copal_codec::{DecodeError, ENVELOPE_LEN, Envelope, Format, Put, Reader, crc32c};
use copal_volume::{FileId, FileInfo, MAX_FILE_BYTES, MAX_METADATA_BYTES};

const HEAD: Format =
    Format { magic: *b"COPALROB", name: "remote object", oldest: 1, version: 1, known_flags: 0 };
const TAIL: Format =
    Format { magic: *b"COPALROT", name: "tail of a remote object", oldest: 1, version: 1, known_flags: 0 };

/// Unit of a head's length, and the least length of an object.
pub(crate) const FRONT_BYTES: u64 = 512;
/// Bytes of a tail.
pub(crate) const TAIL_BYTES: u64 = 64;
/// Bytes of the fields of a head before the metadata.
const FIELDS: usize = 1 + 1 + 2 + 4 + 16 + 8 + 8 + 4;

/// Kind of an object with a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ObjectKind {
    /// A file.
    File,
    /// No file: its create was settled as aborted.
    Tombstone,
}

/// Place of the checksums of the blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SumsPlace {
    /// Behind the head: a body that was in memory as a whole.
    Front,
    /// Behind the body, with a tail: a streamed body.
    Behind,
}

/// The head of an object. Of a streamed file, size, checksum and time come from its tail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObjectHead {
    pub(crate) kind: ObjectKind,
    pub(crate) sums: SumsPlace,
    pub(crate) info: FileInfo,
}

/// Places of the parts of an object, in bytes from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeadPlaces {
    pub(crate) sums: u64,
    pub(crate) body: u64,
    /// Length of the object.
    pub(crate) total: u64,
}

/// Bytes of the head with `metadata`.
fn head_bytes(metadata: usize) -> u64 {
    (ENVELOPE_LEN + FIELDS + metadata) as u64
}

impl ObjectHead {
    /// Places of the object's parts.
    pub(crate) fn places(&self) -> HeadPlaces {
        let front = head_bytes(self.info.metadata.len()).next_multiple_of(FRONT_BYTES);
        let (size, sums) = (self.info.size, sums_bytes(self.info.size));
        match (self.kind, self.sums) {
            (ObjectKind::Tombstone, _) => HeadPlaces { sums: front, body: front, total: front },
            (ObjectKind::File, SumsPlace::Front) => {
                HeadPlaces { sums: front, body: front + sums, total: front + sums + size }
            }
            (ObjectKind::File, SumsPlace::Behind) => {
                HeadPlaces { sums: front + size, body: front, total: front + size + sums + TAIL_BYTES }
            }
        }
    }

    fn encode(&self, key: &str) -> Vec<u8> {
        let info = &self.info;
        let mut bytes = vec![0; ENVELOPE_LEN];
        bytes.put_u8(match self.kind {
            ObjectKind::File => 0,
            ObjectKind::Tombstone => 1,
        });
        bytes.put_u8(match self.sums {
            SumsPlace::Front => 0,
            SumsPlace::Behind => 1,
        });
        bytes.put_u16(info.metadata.len() as u16);
        bytes.put_u32(crc32c(0, key.as_bytes()));
        bytes.put_u128(info.fid.0);
        bytes.put_u64(info.created_ms);
        bytes.put_u64(info.size);
        bytes.put_u32(info.crc32c);
        bytes.put_bytes(&info.metadata);
        Envelope::seal(&HEAD, 0, 0, &mut bytes);
        bytes.resize((bytes.len() as u64).next_multiple_of(FRONT_BYTES) as usize, 0);
        bytes
    }

    /// Reads the head at the front of `bytes`, an object under `key`. `None`: more bytes are needed.
    /// # Errors
    /// Damage, or an object of another key, as a sentence.
    pub(crate) fn decode(key: &str, bytes: &[u8]) -> Result<Option<ObjectHead>, String> {
        let (envelope, body) = match Envelope::open(&HEAD, bytes) {
            Ok(opened) => opened,
            // A long head, of which only the front was read.
            Err(copal_codec::EnvelopeError::Truncated { wanted, .. })
                if bytes.len() as u64 >= FRONT_BYTES && wanted <= head_bytes(MAX_METADATA_BYTES) =>
            {
                return Ok(None);
            }
            Err(error) => return Err(error.to_string()),
        };
        let head = ObjectHead::fields(key, body)
            .map_err(|error| format!("the head of a remote object is damaged: {error}"))??;
        let front =
            (head_bytes(head.info.metadata.len()).next_multiple_of(FRONT_BYTES) as usize).min(bytes.len());
        envelope.check_padding(&HEAD, &bytes[..front]).map_err(|error| error.to_string())?;
        Ok(Some(head))
    }

    fn fields(key: &str, body: &[u8]) -> Result<Result<ObjectHead, String>, DecodeError> {
        let mut input = Reader::new(body);
        let (kind, sums) = (input.u8()?, input.u8()?);
        let metadata = input.u16()?;
        let key_sum = input.u32()?;
        let fid = FileId(input.u128()?);
        let (created_ms, size, crc32c_of_body) = (input.u64()?, input.u64()?, input.u32()?);
        let metadata = Bytes::copy_from_slice(input.bytes(usize::from(metadata))?);
        input.finish()?;
        let (kind, sums) = match (kind, sums) {
            (0, 0) => (ObjectKind::File, SumsPlace::Front),
            (0, 1) => (ObjectKind::File, SumsPlace::Behind),
            (1, 0) => (ObjectKind::Tombstone, SumsPlace::Front),
            _ => return Ok(Err(format!("a remote object has the unknown kind {kind}.{sums}"))),
        };
        if key_sum != crc32c(0, key.as_bytes()) {
            return Ok(Err("a remote object lies under another key".to_owned()));
        }
        if size > MAX_FILE_BYTES || metadata.len() > MAX_METADATA_BYTES {
            return Ok(Err(format!(
                "a remote object claims {size} bytes and {} of metadata",
                metadata.len()
            )));
        }
        if (kind, sums) != (ObjectKind::File, SumsPlace::Front) && size != 0 {
            return Ok(Err("a remote object without a size in its head has one".to_owned()));
        }
        let info = FileInfo { fid, size, crc32c: crc32c_of_body, created_ms, metadata };
        Ok(Ok(ObjectHead { kind, sums, info }))
    }

    /// Adds size, checksum and time, which the tail of a streamed file has.
    /// # Errors
    /// Damage, or the tail of another object, as a sentence.
    pub(crate) fn add_tail(&mut self, bytes: &[u8]) -> Result<(), String> {
        let (_, body) = Envelope::open(&TAIL, bytes).map_err(|error| error.to_string())?;
        let fields = || -> Result<(u64, u64, u32, u64), DecodeError> {
            let mut input = Reader::new(body);
            let read = (input.u64()?, input.u64()?, input.u32()?, u64::from(input.u32()?));
            input.finish()?;
            Ok(read)
        };
        let (created_ms, size, crc, fid_sum) =
            fields().map_err(|error| format!("the tail of a remote object is damaged: {error}"))?;
        if fid_sum != u64::from(fid_sum_of(self.info.fid)) {
            return Err("the tail of a remote object belongs to another".to_owned());
        }
        if size > MAX_FILE_BYTES {
            return Err(format!("a remote object claims {size} bytes"));
        }
        (self.info.created_ms, self.info.size, self.info.crc32c) = (created_ms, size, crc);
        Ok(())
    }
}

/// Decodes fields of a head and of a tail as if their checksums were right.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) fn fuzz_fields(key: &str, bytes: &[u8]) {
    let mut sealed = vec![0; ENVELOPE_LEN];
    sealed.extend_from_slice(bytes);
    if let Some(sum) = sealed.get_mut(ENVELOPE_LEN + 4..ENVELOPE_LEN + 8) {
        sum.copy_from_slice(&crc32c(0, key.as_bytes()).to_le_bytes());
    }
    let mut tail = sealed.clone();
    Envelope::seal(&HEAD, 0, 0, &mut sealed);
    sealed.resize((sealed.len() as u64).next_multiple_of(FRONT_BYTES) as usize, 0);
    if let Ok(Some(mut head)) = ObjectHead::decode(key, &sealed) {
        let _ = head.places();
        Envelope::seal(&TAIL, 0, 0, &mut tail);
        let _ = head.add_tail(&tail);
        let _ = head.places();
    }
}

fn fid_sum_of(fid: FileId) -> u32 {
    crc32c(0, &fid.0.to_le_bytes())
}

/// The whole object of a file whose body is in memory.
#[cfg(test)]
pub(crate) fn file_object(key: &str, info: &FileInfo, body: &[u8]) -> Vec<u8> {
    let mut object = file_front(key, info, body);
    object.reserve_exact(body.len());
    object.extend_from_slice(body);
    object
}

/// The bytes of the object of a file before its body, which is in memory: head and checksums.
pub(crate) fn file_front(key: &str, info: &FileInfo, body: &[u8]) -> Vec<u8> {
    let head = ObjectHead { kind: ObjectKind::File, sums: SumsPlace::Front, info: info.clone() };
    let mut sums = BlockSums::default();
    sums.add(body);
    let mut front = head.encode(key);
    front.extend_from_slice(&sums.finish());
    front
}

/// Length of the front of a file with metadata of this length and a body of up to `size` bytes, at most.
pub(crate) fn front_room(metadata: usize, size: u64) -> usize {
    (head_bytes(metadata).next_multiple_of(FRONT_BYTES) + sums_bytes(size)) as usize
}

/// The object of another file with the same body. `None`: it is no whole object.
pub(crate) fn renamed(key: &str, object: &[u8], fid: FileId, created_ms: u64) -> Option<Vec<u8>> {
    let mut head = ObjectHead::decode(key, object).ok()??;
    (head.info.fid, head.info.created_ms) = (fid, created_ms);
    let mut bytes = head.encode(key);
    bytes.extend_from_slice(object.get(bytes.len()..)?);
    Some(bytes)
}

/// The front of a streamed file's object.
pub(crate) fn stream_front(key: &str, fid: FileId, metadata: &Bytes) -> Vec<u8> {
    let info = FileInfo { fid, size: 0, crc32c: 0, created_ms: 0, metadata: metadata.clone() };
    ObjectHead { kind: ObjectKind::File, sums: SumsPlace::Behind, info }.encode(key)
}

/// The end of a streamed file's object, behind its body: checksums and tail.
pub(crate) fn stream_tail(info: &FileInfo, sums: BlockSums) -> Vec<u8> {
    let mut tail = vec![0; ENVELOPE_LEN];
    tail.put_u64(info.created_ms);
    tail.put_u64(info.size);
    tail.put_u32(info.crc32c);
    tail.put_u32(fid_sum_of(info.fid));
    Envelope::seal(&TAIL, 0, 0, &mut tail);
    tail.resize(TAIL_BYTES as usize, 0);
    let mut end = sums.finish();
    end.extend_from_slice(&tail);
    end
}

/// The tombstone object of a create that was settled as aborted.
pub(crate) fn tombstone_object(key: &str, fid: FileId, now_ms: u64) -> Vec<u8> {
    let info = FileInfo { fid, size: 0, crc32c: 0, created_ms: now_ms, metadata: Bytes::new() };
    ObjectHead { kind: ObjectKind::Tombstone, sums: SumsPlace::Front, info }.encode(key)
}

#[cfg(test)]
mod tests;
