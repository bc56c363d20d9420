//! Meaning of a failed request to HDFS, from the class of its exception.
//!
//! Invariant: no text of a server reaches an error, only the name of a class.

use crate::{
    error::{RemoteError, RemoteFailure},
    service::ServiceError,
    url::RemoteUrl,
};
use hdfs_native::HdfsError;
use std::io::{Error as IoError, ErrorKind};

/// The meaning of `error`, the outcome of a request to `url`.
pub(super) fn meaning_of(url: &RemoteUrl, error: &HdfsError) -> ServiceError {
    match error {
        HdfsError::IOError(error) => of_connection(url, error),
        HdfsError::AlreadyExists(_) => ServiceError::Taken,
        HdfsError::FileNotFound(_) => ServiceError::NotFound,
        HdfsError::RPCError(class, _) | HdfsError::FatalRPCError(class, _) => of_exception(url, class),
        HdfsError::SASLError(_) | HdfsError::GSSAPIError(..) | HdfsError::NoSASLMechanism => fail(
            RemoteFailure::Credentials,
            format!("{url}: no Kerberos ticket that HDFS takes; get one with kinit, and set HADOOP_CONF_DIR"),
        ),
        HdfsError::UnsupportedFeature(_)
        | HdfsError::UnsupportedErasureCodingPolicy(_)
        | HdfsError::ErasureCodingError(_) => fail(
            RemoteFailure::Unsuitable,
            format!(
                "{url}: the directory is in an encryption zone, or has erasure coding that is not supported"
            ),
        ),
        HdfsError::InvalidPath(_)
        | HdfsError::InvalidArgument(_)
        | HdfsError::UrlParseError(_)
        | HdfsError::XmlParseError(_) => fail(
            RemoteFailure::Usage,
            format!("{url}: the address cannot be used; check it, and the files in HADOOP_CONF_DIR"),
        ),
        _ => ServiceError::Unanswered {
            reason: format!("{url}: the data nodes did not carry out a request; check whether they run"),
        },
    }
}

fn fail(failure: RemoteFailure, sentence: String) -> ServiceError {
    ServiceError::Final(RemoteError::new(failure, sentence))
}

fn of_connection(url: &RemoteUrl, error: &IoError) -> ServiceError {
    let host = &url.bucket;
    match error.kind() {
        ErrorKind::ConnectionRefused => ServiceError::Unreachable {
            reason: format!(
                "{url}: {host} refuses the connection; check the port, and whether the name node and its data nodes run"
            ),
        },
        ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable | ErrorKind::AddrNotAvailable => {
            ServiceError::Unreachable { reason: format!("{url}: no connection to {host}; check the network") }
        }
        // The system names this failure by its text alone.
        _ if error.to_string().contains("failed to lookup") => ServiceError::Unreachable {
            reason: format!(
                "{url}: the name of {host} does not resolve; check the address and the DNS of this machine"
            ),
        },
        _ => ServiceError::Unanswered {
            reason: format!("{url}: the connection ended without an answer; check the network"),
        },
    }
}

/// The meaning of an exception of the name node.
fn of_exception(url: &RemoteUrl, class: &str) -> ServiceError {
    let class = class.rsplit(['.', '$']).next().unwrap_or_default();
    let user = std::env::var("HADOOP_USER_NAME").unwrap_or_else(|_| "this user".to_owned());
    match class {
        "FileNotFoundException" => ServiceError::NotFound,
        "FileAlreadyExistsException" => ServiceError::Taken,
        // The file that is being written is gone, or the directory has got files.
        "LeaseExpiredException" | "PathIsNotEmptyDirectoryException" => ServiceError::Conflict,
        "AccessControlException" => fail(
            RemoteFailure::Denied,
            format!(
                "{url}: HDFS does not permit the request to {user}; name another user with HADOOP_USER_NAME, or change \
                 the owner of the directory"
            ),
        ),
        "AuthorizationException" | "InvalidToken" | "SaslException" | "GSSException" => fail(
            RemoteFailure::Credentials,
            format!(
                "{url}: HDFS does not take {user} as a user ({class}); check HADOOP_USER_NAME and Kerberos"
            ),
        ),
        "ParentNotDirectoryException" => fail(
            RemoteFailure::Bucket,
            format!("{url}: a file has the place of a directory of this path; correct the address"),
        ),
        "InvalidPathException" => {
            fail(RemoteFailure::Usage, format!("{url}: HDFS takes no such path; correct the address"))
        }
        "NSQuotaExceededException" | "DSQuotaExceededException" | "QuotaByStorageTypeExceededException" => {
            fail(
                RemoteFailure::Denied,
                format!(
                    "{url}: the quota of the directory is used up ({class}); raise it with hdfs dfsadmin"
                ),
            )
        }
        "MaxDirectoryItemsExceededException" | "PathComponentTooLongException" => fail(
            RemoteFailure::Unsuitable,
            format!("{url}: HDFS limits names or directories to less than is needed ({class})"),
        ),
        "StandbyException" => ServiceError::Unreachable {
            reason: format!(
                "{url}: this name node is a standby; give the active one, or the name of the service with HADOOP_CONF_DIR"
            ),
        },
        // Safe mode, no data nodes, and other states that pass.
        _ => ServiceError::Busy {
            reason: format!("{url} does not carry out the request now ({})", shown(class)),
        },
    }
}

/// A name of a class that may be repeated.
fn shown(class: &str) -> &str {
    let is_plain = class.len() <= 64 && class.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if is_plain { class } else { "unknown exception" }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url() -> RemoteUrl {
        RemoteUrl::parse("hdfs://127.0.0.1:8020/vms/office").unwrap().unwrap()
    }

    fn of_class(class: &str) -> ServiceError {
        meaning_of(&url(), &HdfsError::RPCError(class.to_owned(), "hush".to_owned()))
    }

    #[test]
    fn exceptions_of_the_name_node() {
        assert_eq!(of_class("java.io.FileNotFoundException"), ServiceError::NotFound);
        assert_eq!(meaning_of(&url(), &HdfsError::AlreadyExists("hush".to_owned())), ServiceError::Taken);
        for (class, failure) in [
            ("org.apache.hadoop.security.AccessControlException", RemoteFailure::Denied),
            ("org.apache.hadoop.security.token.SecretManager$InvalidToken", RemoteFailure::Credentials),
            ("org.apache.hadoop.fs.ParentNotDirectoryException", RemoteFailure::Bucket),
            ("org.apache.hadoop.hdfs.protocol.DSQuotaExceededException", RemoteFailure::Denied),
        ] {
            let ServiceError::Final(error) = of_class(class) else { panic!("{class} passes") };
            assert_eq!(error.failure, failure, "{error}");
            assert!(!error.to_string().contains("hush"), "{error}");
        }
        for class in ["org.apache.hadoop.hdfs.server.namenode.SafeModeException", "a\nb"] {
            let ServiceError::Busy { reason } = of_class(class) else { panic!("{class} is final") };
            assert!(!reason.contains('\n') && !reason.contains("hush"), "{reason}");
        }
    }

    #[test]
    fn only_a_connection_that_was_not_made_is_without_effect() {
        let of_kind = |kind| meaning_of(&url(), &HdfsError::IOError(kind));
        let refused = of_kind(IoError::from(ErrorKind::ConnectionRefused));
        assert!(matches!(refused, ServiceError::Unreachable { .. }), "{refused:?}");
        let unknown =
            of_kind(IoError::other("failed to lookup address information: Name or service not known"));
        assert!(matches!(unknown, ServiceError::Unreachable { .. }), "{unknown:?}");
        let lost = of_kind(IoError::from(ErrorKind::ConnectionAborted));
        assert!(matches!(lost, ServiceError::Unanswered { .. }), "{lost:?}");
    }
}
