//! Multipart uploads that are open: their keys and parts.

use super::errors::{INVALID_PART, INVALID_PART_ORDER, MALFORMED_XML, NO_SUCH_UPLOAD, S3Error};
use std::collections::BTreeMap;

/// Number and ETag of a part, as a request to complete names it.
pub(super) type NamedPart = (u32, String);

#[derive(Debug)]
struct UploadPart {
    etag: String,
    body: Vec<u8>,
}

/// An upload between its start and its completion.
#[derive(Debug)]
pub(super) struct OpenUpload {
    pub(super) key: String,
    /// Seconds since 1970.
    pub(super) started: i64,
    parts: BTreeMap<u32, UploadPart>,
}

/// Open uploads of a bucket by id. Ids ascend with the time of the start.
#[derive(Debug, Default)]
pub(super) struct UploadTable {
    by_id: BTreeMap<String, OpenUpload>,
}

impl UploadTable {
    pub(super) fn start(&mut self, id: String, key: &str, now: i64) {
        self.by_id.insert(id, OpenUpload { key: key.to_owned(), started: now, parts: BTreeMap::new() });
    }

    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Id and upload, ordered by key and start.
    pub(super) fn all(&self) -> Vec<(&str, &OpenUpload)> {
        let mut all: Vec<_> = self.by_id.iter().map(|(id, upload)| (id.as_str(), upload)).collect();
        all.sort_by(|(a, left), (b, right)| (&left.key, a).cmp(&(&right.key, b)));
        all
    }

    /// Stores a part; a part with the same number is replaced.
    pub(super) fn put_part(
        &mut self,
        place: (&str, &str),
        number: u32,
        etag: String,
        body: Vec<u8>,
    ) -> Result<(), S3Error> {
        let upload = self.find_mut(place)?;
        upload.parts.insert(number, UploadPart { etag, body });
        Ok(())
    }

    /// The bytes of the named parts. The upload stays open.
    pub(super) fn assemble(&self, (key, id): (&str, &str), named: &[NamedPart]) -> Result<Vec<u8>, S3Error> {
        let upload = self.by_id.get(id).filter(|upload| upload.key == key).ok_or(NO_SUCH_UPLOAD)?;
        if named.is_empty() {
            return Err(MALFORMED_XML);
        }
        if !named.windows(2).all(|pair| pair[0].0 < pair[1].0) {
            return Err(INVALID_PART_ORDER);
        }
        let mut body = Vec::new();
        for (number, etag) in named {
            let part = upload.parts.get(number).ok_or(INVALID_PART)?;
            if part.etag.trim_matches('"') != etag.trim().trim_matches('"') {
                return Err(INVALID_PART);
            }
            body.extend_from_slice(&part.body);
        }
        Ok(body)
    }

    /// Forgets an upload, after its completion or because it is aborted.
    pub(super) fn end(&mut self, place: (&str, &str)) -> Result<(), S3Error> {
        self.find_mut(place)?;
        self.by_id.remove(place.1);
        Ok(())
    }

    fn find_mut(&mut self, (key, id): (&str, &str)) -> Result<&mut OpenUpload, S3Error> {
        self.by_id.get_mut(id).filter(|upload| upload.key == key).ok_or(NO_SUCH_UPLOAD)
    }
}
