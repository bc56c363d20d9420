//! Refusals: HTTP status, code of S3 and sentence.

use std::borrow::Cow;

/// One refusal. Answers carry it as XML, but for HEAD.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct S3Error {
    pub(super) status: u16,
    pub(super) code: Cow<'static, str>,
    pub(super) message: &'static str,
}

impl S3Error {
    /// A refusal with a fixed code.
    pub(super) const fn new(status: u16, code: &'static str, message: &'static str) -> S3Error {
        S3Error { status, code: Cow::Borrowed(code), message }
    }

    /// A refusal that a test asks for.
    pub(super) fn by_test(status: u16, code: String) -> S3Error {
        S3Error { status, code: Cow::Owned(code), message: "The test refuses this request." }
    }
}

/// 400 with a sentence.
pub(super) const fn bad_request(message: &'static str) -> S3Error {
    S3Error::new(400, "InvalidRequest", message)
}

/// 400 for a parameter with a malformed value.
pub(super) const fn invalid_argument(message: &'static str) -> S3Error {
    S3Error::new(400, "InvalidArgument", message)
}

pub(super) const ACCESS_DENIED: S3Error = S3Error::new(403, "AccessDenied", "Access Denied");
pub(super) const BUCKET_EXISTS: S3Error =
    S3Error::new(409, "BucketAlreadyOwnedByYou", "The bucket exists already.");
pub(super) const HEADERS_TOO_LARGE: S3Error =
    S3Error::new(400, "RequestHeaderSectionTooLarge", "The header section exceeds its limit.");
pub(super) const INCOMPLETE_BODY: S3Error = S3Error::new(
    400,
    "IncompleteBody",
    "The body is shorter than its headers say, or its chunks are malformed.",
);
pub(super) const INVALID_PART: S3Error =
    S3Error::new(400, "InvalidPart", "A part is missing, or its ETag differs.");
pub(super) const INVALID_PART_ORDER: S3Error =
    S3Error::new(400, "InvalidPartOrder", "The part numbers do not ascend.");
pub(super) const INVALID_RANGE: S3Error =
    S3Error::new(416, "InvalidRange", "The requested range is not satisfiable");
pub(super) const KEY_TOO_LONG: S3Error = S3Error::new(400, "KeyTooLongError", "Your key is too long.");
pub(super) const LENGTH_REQUIRED: S3Error =
    S3Error::new(411, "MissingContentLength", "The Content-Length header is missing.");
pub(super) const MALFORMED_XML: S3Error =
    S3Error::new(400, "MalformedXML", "The body is no XML of this operation.");
pub(super) const NOT_IMPLEMENTED: S3Error =
    S3Error::new(501, "NotImplemented", "This server does not implement the operation.");
pub(super) const NO_SUCH_BUCKET: S3Error =
    S3Error::new(404, "NoSuchBucket", "The specified bucket does not exist");
pub(super) const NO_SUCH_KEY: S3Error = S3Error::new(404, "NoSuchKey", "The specified key does not exist.");
pub(super) const NO_SUCH_UPLOAD: S3Error =
    S3Error::new(404, "NoSuchUpload", "The specified upload does not exist, or it was completed or aborted.");
pub(super) const PRECONDITION_FAILED: S3Error =
    S3Error::new(412, "PreconditionFailed", "At least one of the preconditions did not hold");
pub(super) const TOO_LARGE: S3Error =
    S3Error::new(413, "EntityTooLarge", "The body exceeds the limit of one request.");
pub(super) const UNKNOWN_KEY: S3Error =
    S3Error::new(403, "InvalidAccessKeyId", "The access key id is unknown.");
