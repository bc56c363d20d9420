//! Meaning of a failed request, from the status and code of its answer.
//!
//! Invariant: no word of OpenDAL, which repeats headers, reaches an error.

use super::transport::AnswerFacts;
use crate::{
    error::{RemoteError, RemoteFailure},
    service::ServiceError,
    url::{CloudKind, RemoteUrl},
};
use opendal::ErrorKind;
use std::error::Error as _;

/// The meaning of `error`, the outcome of a request to `url`.
pub(super) fn meaning_of(url: &RemoteUrl, error: &opendal::Error, facts: &AnswerFacts) -> ServiceError {
    match facts.status {
        None => without_answer(url, error),
        Some(status) => of_answer(url, error, status, facts),
    }
}

/// Codes of session tokens that are not valid any more.
const EXPIRED: [&str; 4] = ["ExpiredToken", "ExpiredTokenException", "InvalidToken", "TokenRefreshRequired"];

/// Whether credentials that are read again may be valid.
pub(super) fn is_expired(kind: CloudKind, facts: &AnswerFacts) -> bool {
    EXPIRED.contains(&facts.code.as_str()) || (kind == CloudKind::Google && facts.status == Some(401))
}

fn fail(failure: RemoteFailure, sentence: String) -> ServiceError {
    ServiceError::Final(RemoteError::new(failure, sentence))
}

fn of_answer(url: &RemoteUrl, error: &opendal::Error, status: u16, facts: &AnswerFacts) -> ServiceError {
    let code = facts.code.as_str();
    let shown = if code.is_empty() { format!("status {status}") } else { format!("status {status}, {code}") };
    let bucket = &url.bucket;
    match (status, code) {
        (_, "NoSuchBucket" | "ContainerNotFound" | "InvalidBucketName" | "ContainerBeingDeleted") => fail(
            RemoteFailure::Bucket,
            format!(
                "{url}: there is no bucket `{bucket}`; make it with the tool of the provider, or correct the address"
            ),
        ),
        (
            _,
            "PermanentRedirect"
            | "AuthorizationHeaderMalformed"
            | "IllegalLocationConstraintException"
            | "TemporaryRedirect",
        )
        | (301 | 307, _) => {
            let place = match &facts.region {
                Some(region) if is_plain_word(region) => format!("in region {region}"),
                _ => "in another region".to_owned(),
            };
            fail(RemoteFailure::Bucket, format!("{url}: the bucket is {place}; add ?region= to the address"))
        }
        (_, code) if EXPIRED.contains(&code) => {
            fail(RemoteFailure::Credentials, format!("{url}: the session token has expired; get a new one"))
        }
        (_, "InvalidAccessKeyId" | "UnrecognizedClientException") => fail(
            RemoteFailure::Credentials,
            format!("{url}: the store does not know this access key ({shown}); check the credentials"),
        ),
        (_, "SignatureDoesNotMatch" | "AuthenticationFailed" | "InvalidAuthenticationInfo") => fail(
            RemoteFailure::Credentials,
            format!("{url}: the secret does not belong to this access key ({shown}); check the credentials"),
        ),
        (_, "RequestTimeTooSkewed" | "RequestExpired") => fail(
            RemoteFailure::Credentials,
            format!(
                "{url}: the clock of this machine differs from the store's by more than it permits; set the clock"
            ),
        ),
        (_, "InvalidObjectState" | "BlobArchived") => fail(
            RemoteFailure::Archived,
            format!(
                "{url}: an object is in an archive tier; restore it with the tool of the provider, and try again"
            ),
        ),
        (401, _) => {
            fail(RemoteFailure::Credentials, format!("{url}: the store asks for other credentials ({shown})"))
        }
        (
            403,
            "SlowDown"
            | "RequestLimitExceeded"
            | "Throttling"
            | "rateLimitExceeded"
            | "userRateLimitExceeded",
        )
        | (429, _)
        | (503, _) => ServiceError::Busy { reason: format!("{url} is busy ({shown})") },
        (403, _) => fail(
            RemoteFailure::Denied,
            format!("{url}: these credentials do not permit the request ({shown})"),
        ),
        (404, _) => ServiceError::NotFound,
        (409, "ConditionalRequestConflict" | "OperationAborted") => ServiceError::Conflict,
        // Azure says so for a name that is taken.
        (409, "BlobAlreadyExists") | (412, _) | (304, _) => ServiceError::Taken,
        (409, _) => ServiceError::Conflict,
        (408 | 500..=599, _) => ServiceError::Unanswered { reason: format!("{url} failed ({shown})") },
        // An answer of success whose body was cut, or that is no answer of a store.
        (200..=299, _) if error.kind() == ErrorKind::ConditionNotMatch => ServiceError::Taken,
        (200..=299, _) => ServiceError::Unanswered { reason: format!("the answer of {url} was incomplete") },
        _ => fail(RemoteFailure::Unsuitable, format!("{url} refuses a request ({shown})")),
    }
}

/// Whether a text from a server may be repeated.
fn is_plain_word(text: &str) -> bool {
    text.len() <= 64 && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
}

fn without_answer(url: &RemoteUrl, error: &opendal::Error) -> ServiceError {
    match error.kind() {
        ErrorKind::ConditionNotMatch => return ServiceError::Taken,
        ErrorKind::NotFound => return ServiceError::NotFound,
        _ => {}
    }
    let causes = causes_of(error);
    let has = |part: &str| causes.iter().any(|cause| cause.contains(part));
    let endpoint = url.endpoint.as_deref().unwrap_or("the provider's address");
    if has("invalid peer certificate") || has("certificate") {
        return fail(
            RemoteFailure::Network,
            format!(
                "{url}: the certificate of {endpoint} is not signed by an authority that this machine trusts; name its file \
                 with ?ca=FILE or SSL_CERT_FILE"
            ),
        );
    }
    if has("dns error") || has("failed to lookup") {
        return ServiceError::Unreachable {
            reason: format!(
                "{url}: the name of {endpoint} does not resolve; check the address and the DNS of this machine"
            ),
        };
    }
    if has("Connection refused") {
        return ServiceError::Unreachable {
            reason: format!(
                "{url}: {endpoint} refuses the connection; check the port, and whether the server runs"
            ),
        };
    }
    if has("tcp connect error") || has("client error (Connect)") {
        return ServiceError::Unreachable {
            reason: format!("{url}: no connection to {endpoint}; check the network"),
        };
    }
    if has("loading credential") || has("credential") || error.kind() == ErrorKind::PermissionDenied {
        let names = match url.kind {
            CloudKind::S3 => "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, ~/.aws",
            CloudKind::Azure => "AZURE_STORAGE_ACCOUNT_KEY",
            CloudKind::Google => "GOOGLE_APPLICATION_CREDENTIALS",
            CloudKind::Hdfs => "HADOOP_USER_NAME",
        };
        return fail(
            RemoteFailure::Credentials,
            format!("{url}: no credentials found; set {names}, or name a file with --credentials"),
        );
    }
    if error.kind() == ErrorKind::ConfigInvalid {
        return fail(
            RemoteFailure::Usage,
            format!("{url}: the address cannot be used; check bucket, region and endpoint"),
        );
    }
    ServiceError::Unanswered {
        reason: format!("{url}: the connection ended without an answer; check the network"),
    }
}

/// The sentences of an error and its sources; for a comparison only, never shown.
fn causes_of(error: &opendal::Error) -> Vec<String> {
    let mut causes = vec![error.message().to_owned()];
    let mut next = error.source();
    while let Some(cause) = next {
        causes.push(cause.to_string());
        next = cause.source();
    }
    causes
}
