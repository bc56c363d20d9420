//! Lists of objects (`ListObjectsV2`) and of open uploads, in pages.

use super::{
    dates::iso_date,
    encoding::url_encode,
    errors::{S3Error, invalid_argument},
    objects::{BucketObjects, ServerTime, StoredObject},
    requests::S3Request,
    xml,
};
use std::ops::Bound;

/// Most entries of a page.
const MOST_ENTRIES: usize = 1000;

/// An entry of a page of objects.
enum PageEntry<'a> {
    Object(&'a str, &'a StoredObject),
    /// Stands for all keys that begin with it.
    CommonPrefix(&'a str),
}

impl PageEntry<'_> {
    /// Token from which the next page continues behind this entry: its kind, and its key in hex.
    fn token(&self) -> String {
        let (kind, key) = match self {
            PageEntry::Object(key, _) => ('k', key),
            PageEntry::CommonPrefix(key) => ('p', key),
        };
        key.bytes().fold(kind.to_string(), |token, byte| token + &format!("{byte:02x}"))
    }
}

/// The place where a page begins.
struct PageStart {
    /// Keys up to this one are left out.
    after: String,
    /// Keys with this beginning are left out too.
    group: Option<String>,
}

impl PageStart {
    fn of(request: &S3Request) -> Result<PageStart, S3Error> {
        let Some(token) = request.parameter("continuation-token") else {
            let after = request.parameter("start-after").unwrap_or_default().to_owned();
            return Ok(PageStart { after, group: None });
        };
        let key = |hex: &str| {
            let digits: Option<Vec<u32>> = hex.chars().map(|letter| letter.to_digit(16)).collect();
            let digits = digits.filter(|digits| digits.len().is_multiple_of(2))?;
            String::from_utf8(digits.chunks(2).map(|pair| (pair[0] * 16 + pair[1]) as u8).collect()).ok()
        };
        let start = match (token.strip_prefix('k').and_then(key), token.strip_prefix('p').and_then(key)) {
            (Some(after), _) => Some(PageStart { after, group: None }),
            (_, Some(group)) => Some(PageStart { after: group.clone(), group: Some(group) }),
            _ => None,
        };
        start.ok_or(invalid_argument("The continuation token is unknown."))
    }
}

/// A page of objects as XML.
pub(super) fn list_objects(
    objects: &BucketObjects,
    request: &S3Request,
    now: ServerTime,
) -> Result<String, S3Error> {
    let start = PageStart::of(request)?;
    let most = request.number("max-keys")?.unwrap_or(MOST_ENTRIES).min(MOST_ENTRIES);
    let prefix = request.parameter("prefix").unwrap_or_default();
    let delimiter = request.parameter("delimiter").filter(|delimiter| !delimiter.is_empty());
    let mut entries: Vec<PageEntry> = Vec::new();
    let mut next = None;
    let from = match start.after.as_str() < prefix || start.after.is_empty() {
        true => Bound::Included(prefix),
        false => Bound::Excluded(start.after.as_str()),
    };
    let left_out = |key: &str| start.group.as_ref().is_some_and(|group| key.starts_with(group.as_str()));
    let keys = objects.listed(from, now.instant).take_while(|(key, _)| key.starts_with(prefix));
    for (key, object) in keys.filter(|(key, _)| !left_out(key)) {
        let group = delimiter.and_then(|delimiter| {
            let at = key[prefix.len()..].find(delimiter)?;
            Some(&key[..prefix.len() + at + delimiter.len()])
        });
        let last = entries.last();
        if group.is_some() && matches!(last, Some(PageEntry::CommonPrefix(before)) if group == Some(*before))
        {
            continue;
        }
        if entries.len() == most {
            next = last.map(PageEntry::token);
            break;
        }
        entries.push(group.map_or(PageEntry::Object(key, object), PageEntry::CommonPrefix));
    }
    Ok(xml::document("ListBucketResult", &page(request, &entries, most, next)))
}

fn page(request: &S3Request, entries: &[PageEntry], most: usize, next: Option<String>) -> String {
    let encode = encoder(request);
    let mut page = String::new();
    xml::push(&mut page, "Name", &request.bucket);
    xml::push(&mut page, "Prefix", &encode(request.parameter("prefix").unwrap_or_default()));
    for (name, tag) in [("delimiter", "Delimiter"), ("start-after", "StartAfter")] {
        if let Some(value) = request.parameter(name) {
            xml::push(&mut page, tag, &encode(value));
        }
    }
    for (name, tag) in [("continuation-token", "ContinuationToken"), ("encoding-type", "EncodingType")] {
        if let Some(value) = request.parameter(name) {
            xml::push(&mut page, tag, value);
        }
    }
    xml::push(&mut page, "MaxKeys", &most.to_string());
    xml::push(&mut page, "KeyCount", &entries.len().to_string());
    xml::push(&mut page, "IsTruncated", if next.is_some() { "true" } else { "false" });
    if let Some(token) = next {
        xml::push(&mut page, "NextContinuationToken", &token);
    }
    for entry in entries {
        let mut content = String::new();
        match entry {
            PageEntry::Object(key, object) => {
                xml::push(&mut content, "Key", &encode(key));
                xml::push(&mut content, "LastModified", &iso_date(object.modified));
                xml::push(&mut content, "ETag", &object.etag);
                xml::push(&mut content, "Size", &object.body.len().to_string());
                xml::push(&mut content, "StorageClass", "STANDARD");
                page += &format!("<Contents>{content}</Contents>");
            }
            PageEntry::CommonPrefix(prefix) => {
                xml::push(&mut content, "Prefix", &encode(prefix));
                page += &format!("<CommonPrefixes>{content}</CommonPrefixes>");
            }
        }
    }
    page
}

/// Keys are listed as they are or percent-encoded.
fn encoder(request: &S3Request) -> impl Fn(&str) -> String {
    let is_encoded = request.parameter("encoding-type") == Some("url");
    move |text: &str| if is_encoded { url_encode(text) } else { text.to_owned() }
}

/// A page of open uploads as XML, ordered by key and start.
pub(super) fn list_uploads(objects: &BucketObjects, request: &S3Request) -> Result<String, S3Error> {
    let encode = encoder(request);
    let most = request.number("max-uploads")?.unwrap_or(MOST_ENTRIES).min(MOST_ENTRIES);
    let prefix = request.parameter("prefix").unwrap_or_default();
    let key_marker = request.parameter("key-marker").unwrap_or_default();
    let id_marker = request.parameter("upload-id-marker").filter(|_| !key_marker.is_empty());
    let mut uploads = objects.uploads.all();
    uploads.retain(|(id, upload)| {
        let is_behind = match id_marker {
            Some(marker) => (upload.key.as_str(), *id) > (key_marker, marker),
            None => upload.key.as_str() > key_marker || key_marker.is_empty(),
        };
        is_behind && upload.key.starts_with(prefix)
    });
    let is_truncated = most > 0 && uploads.len() > most;
    uploads.truncate(most);
    let mut page = String::new();
    xml::push(&mut page, "Bucket", &request.bucket);
    xml::push(&mut page, "Prefix", &encode(prefix));
    xml::push(&mut page, "KeyMarker", &encode(key_marker));
    xml::push(&mut page, "UploadIdMarker", id_marker.unwrap_or_default());
    xml::push(&mut page, "MaxUploads", &most.to_string());
    xml::push(&mut page, "IsTruncated", if is_truncated { "true" } else { "false" });
    if let Some((id, upload)) = uploads.last().filter(|_| is_truncated) {
        xml::push(&mut page, "NextKeyMarker", &encode(&upload.key));
        xml::push(&mut page, "NextUploadIdMarker", id);
    }
    for (id, upload) in uploads {
        let mut content = String::new();
        xml::push(&mut content, "Key", &encode(&upload.key));
        xml::push(&mut content, "UploadId", id);
        xml::push(&mut content, "Initiated", &iso_date(upload.started));
        page += &format!("<Upload>{content}</Upload>");
    }
    Ok(xml::document("ListMultipartUploadsResult", &page))
}
