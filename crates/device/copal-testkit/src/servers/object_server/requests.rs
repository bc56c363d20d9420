//! A request of S3 in path style: bucket, key, parameters, conditions and range.

use super::{
    encoding::{percent_decode, query_parameters},
    errors::{INCOMPLETE_BODY, INVALID_RANGE, NOT_IMPLEMENTED, S3Error, bad_request, invalid_argument},
    http::{HttpRequest, ReadFailure, read_chunks},
    objects::ObjectCondition,
};

/// Parts of S3 that have the address of an object or a bucket and are not implemented.
const OTHER_RESOURCES: [&str; 16] = [
    "accelerate",
    "acl",
    "attributes",
    "cors",
    "encryption",
    "legal-hold",
    "lifecycle",
    "location",
    "object-lock",
    "policy",
    "restore",
    "retention",
    "tagging",
    "versionId",
    "versioning",
    "versions",
];

/// A request with its address decoded.
#[derive(Debug)]
pub(super) struct S3Request {
    pub(super) http: HttpRequest,
    pub(super) bucket: String,
    pub(super) key: String,
    parameters: Vec<(String, String)>,
}

impl S3Request {
    /// Decodes address and query, and removes the chunk framing of a signed upload.
    pub(super) fn new(mut http: HttpRequest) -> Result<S3Request, S3Error> {
        let parameters = query_parameters(&http.query).ok_or(bad_request("malformed query"))?;
        let path = http.path.strip_prefix('/').unwrap_or(&http.path);
        let (bucket, key) = path.split_once('/').unwrap_or((path, ""));
        let decode = |text| percent_decode(text, false).ok_or(bad_request("malformed path"));
        let (bucket, key) = (decode(bucket)?, decode(key)?);
        if http.header("x-amz-content-sha256").is_some_and(|value| value.starts_with("STREAMING-")) {
            http.body = without_framing(&http)?;
        }
        Ok(S3Request { http, bucket, key, parameters })
    }

    /// Value of a parameter of the query.
    pub(super) fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    /// A parameter that is a number.
    pub(super) fn number(&self, name: &str) -> Result<Option<usize>, S3Error> {
        let number = |text: &str| text.parse().map_err(|_| invalid_argument("A parameter is no number."));
        self.parameter(name).map(number).transpose()
    }

    /// Bucket and key.
    pub(super) fn place(&self) -> (&str, &str) {
        (&self.bucket, &self.key)
    }

    /// Whether it asks for a part of S3 that the server lacks.
    pub(super) fn is_of_other_resource(&self) -> bool {
        let copies = self.http.header("x-amz-copy-source").is_some();
        copies || OTHER_RESOURCES.iter().any(|name| self.parameter(name).is_some())
    }

    /// Its conditions.
    pub(super) fn condition(&self) -> ObjectCondition {
        let header = |name| self.http.header(name).map(str::to_owned);
        ObjectCondition { if_match: header("if-match"), if_none_match: header("if-none-match") }
    }

    /// Conditions of a write: `If-None-Match` takes nothing but `*`.
    pub(super) fn write_condition(&self) -> Result<ObjectCondition, S3Error> {
        let condition = self.condition();
        match condition.if_none_match.as_deref() {
            None | Some("*") => Ok(condition),
            Some(_) => Err(NOT_IMPLEMENTED),
        }
    }

    /// First byte and length of the requested range; nothing if the whole object is to be sent. A malformed
    /// range and several ranges are ignored.
    pub(super) fn range(&self, size: usize) -> Result<Option<(usize, usize)>, S3Error> {
        let bounds = self.http.header("range").and_then(|value| value.strip_prefix("bytes="));
        let Some((first, last)) = bounds.and_then(|bounds| bounds.split_once('-')) else { return Ok(None) };
        let range = match (number(first), number(last)) {
            (Some(first), None) if last.is_empty() => first..size,
            (Some(first), Some(last)) if first <= last => first..size.min(last.saturating_add(1)),
            (None, Some(len)) if first.is_empty() => size - len.min(size)..size,
            _ => return Ok(None),
        };
        match range.is_empty() {
            true => Err(INVALID_RANGE),
            false => Ok(Some((range.start, range.len()))),
        }
    }
}

/// Decimal digits as a number; larger ones are the largest number.
fn number(text: &str) -> Option<usize> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().unwrap_or(usize::MAX))
}

/// The content of an `aws-chunked` body. Signatures of chunks and trailers are not checked.
fn without_framing(http: &HttpRequest) -> Result<Vec<u8>, S3Error> {
    // Signed chunks end without an empty line behind the last one if there is no trailer.
    let mut framed = http.body.clone();
    framed.extend_from_slice(b"\r\n\r\n");
    let content = read_chunks(&mut framed.as_slice()).map_err(|failure| match failure {
        ReadFailure::Closed => INCOMPLETE_BODY,
        ReadFailure::Refused(error) => error,
    })?;
    let named = http.header("x-amz-decoded-content-length");
    match named.is_none_or(|length| number(length) == Some(content.len())) {
        true => Ok(content),
        false => Err(INCOMPLETE_BODY),
    }
}
