//! Errors as sentences that a person can act on, with their exit codes.
//!
//! Exit codes are those of restic where restic has one.

use crate::keys::role::KeyId;
use crate::request::open_session::OpenSession;
use copal_disk::source::SourceError;
use copal_disk::target::TargetError;
use copal_volume::{RefusalCause, VolumeError};

/// Every way in which an operation on a repository can end early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The store holds no repository.
    #[error("there is no repository here; make one with `copal init`")]
    NoRepository,
    /// The store already holds one.
    #[error("a repository exists here already; use it or make one elsewhere, nothing was changed")]
    RepositoryExists,
    /// The password opens no key slot.
    #[error(
        "wrong password: it opens no key slot of this repository ({slots} tried); check the password and which repository it is for"
    )]
    WrongPassword {
        /// Number of slots that were tried.
        slots: usize,
    },
    /// The key has no slot.
    #[error(
        "wrong key: {id} is no key of this repository, or was removed; check --key and which repository it is for"
    )]
    WrongKey {
        /// Identifier of the key.
        id: KeyId,
    },
    /// The repository is encrypted and no password was given.
    #[error("this repository is encrypted: give its password with COPAL_PASSWORD_FILE or at the prompt")]
    PasswordNeeded,
    /// A password was given for a repository without one.
    #[error("this repository was made with --insecure-no-password; open it without a password")]
    PasswordNotUsed,
    /// The repository was written by a newer program, or needs a feature that this program lacks.
    #[error("{what} has version {found}, this program reads version {known}; use a newer copal")]
    Version {
        /// The format.
        what: &'static str,
        /// Version in the file.
        found: u16,
        /// Newest version that this program reads.
        known: u16,
    },
    /// Nothing has that name.
    #[error("no {what} named {name}; `{}` lists what there is", lister(.what))]
    NotFound {
        /// "VM", "snapshot", "disk", "key".
        what: &'static str,
        /// As the user wrote it.
        name: String,
    },
    /// The prefix fits several snapshots.
    #[error("{name} fits {count} snapshots; write more of the id")]
    Ambiguous {
        /// As the user wrote it.
        name: String,
        /// Number of snapshots that it fits.
        count: usize,
    },
    /// `latest` without a VM, while several VMs have snapshots.
    #[error("`latest` of which VM? add --vm NAME; there are snapshots of {vms}")]
    WhichVm {
        /// Some of the VMs, as a list in a sentence.
        vms: String,
    },
    /// The request is invalid.
    #[error("{reason}")]
    Invalid {
        /// The violated rule and the reason.
        reason: String,
    },
    /// Another operation uses the object.
    #[error("{what} is in use by another operation; wait for it to end and try again")]
    Busy {
        /// "VM web", "the repository".
        what: String,
    },
    /// In a fleet on several servers: another backup of the VM has begun and not ended.
    #[error("{}", open.in_the_way_of(vm))]
    SessionOpen {
        /// Name of the VM.
        vm: String,
        /// The session and its holder.
        open: Box<OpenSession>,
    },
    /// Another operation ended the session because it seemed dead.
    #[error("this backup was ended by another operation; nothing was published, run it again")]
    Fenced,
    /// A guard forbids the operation.
    #[error("denied: {reason}")]
    Denied {
        /// The guard, and how to satisfy it.
        reason: String,
    },
    /// Stored bytes are damaged.
    #[error("{what} is damaged: {detail}; run `copal check --read-data`")]
    Damaged {
        /// The damaged object.
        what: String,
        /// The mismatch.
        detail: String,
    },
    /// The spool of a backup, which it keeps between its two passes, cannot be written or read.
    #[error(
        "the working file of this backup failed: {detail}; see whether its directory has room, and run it again"
    )]
    Spool {
        /// The error of the operating system.
        detail: String,
    },
    /// The owner of several backups has ended this one.
    #[error("{reason}")]
    Ended {
        /// The reason, and advice.
        reason: String,
    },
    /// A chunk that was just encrypted did not decrypt to the same bytes: bad memory or a broken processor.
    #[error(
        "a chunk changed between sealing and opening it; this machine's memory may be bad, stop using it"
    )]
    SelfCheck,
    /// The source could not be read.
    #[error("disk {disk}: {error}")]
    Source {
        /// Name of the disk.
        disk: String,
        /// The reason.
        #[source]
        error: SourceError,
    },
    /// The target cannot be written.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// `--strict-incremental` was given, and the disk would have been read whole.
    #[error(
        "disk {disk} cannot be backed up incrementally: {reason}; leave --strict-incremental out to read all of it"
    )]
    FellBack {
        /// Name of the disk.
        disk: String,
        /// The reason.
        reason: String,
    },
    /// Interrupted by the user. The next backup uses the finished packs of an interrupted one.
    #[error("interrupted before the end; the store is consistent, run the command again")]
    Cancelled {
        /// Stored bytes that the next backup finds again; `None` for other operations.
        kept_bytes: Option<u64>,
    },
    /// The store is full.
    #[error("the store is full and cannot grow; forget snapshots and run `copal prune`, or make room for it")]
    NoSpace,
    /// An object store of other people serves nothing until a person has acted.
    #[error("{reason}")]
    Refused {
        /// Kind of reason.
        cause: RefusalCause,
        /// The reason, and the act that helps.
        reason: String,
    },
    /// Another error of the store.
    #[error("{}", sentence_of(.0))]
    Volume(#[source] VolumeError),
    /// The index failed; it can be deleted and rebuilt.
    #[error("the chunk index failed: {0}; `copal repair index` rebuilds it")]
    Index(#[source] copal_kv::Error),
}

/// A store that refuses has not failed.
fn sentence_of(error: &VolumeError) -> String {
    match error {
        VolumeError::Denied { reason } => format!("the store does not permit it: {reason}"),
        error => format!("the store failed: {error}"),
    }
}

/// The command that lists objects of this kind.
fn lister(what: &str) -> &'static str {
    match what {
        "key" => "copal key ls",
        _ => "copal snapshots",
    }
}

/// Result of the operations of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl From<VolumeError> for Error {
    fn from(error: VolumeError) -> Error {
        match error {
            VolumeError::NoSpace => Error::NoSpace,
            VolumeError::Corrupt { what } => Error::Damaged { what: "a stored file".into(), detail: what },
            VolumeError::Refused { cause, reason } => Error::Refused { cause, reason },
            other => Error::Volume(other),
        }
    }
}

impl From<copal_kv::Error> for Error {
    fn from(error: copal_kv::Error) -> Error {
        match error {
            copal_kv::Error::NoSpace => Error::NoSpace,
            full if full.is_host_full() => Error::NoSpace,
            other => Error::Index(other),
        }
    }
}

impl Error {
    /// The process exit code of this error.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Ambiguous { .. } | Error::WhichVm { .. } => 2,
            Error::Source { .. } | Error::Refused { cause: RefusalCause::Archived, .. } => 3,
            Error::NoRepository | Error::Refused { cause: RefusalCause::Bucket, .. } => 10,
            Error::Busy { .. } | Error::SessionOpen { .. } | Error::Fenced => 11,
            Error::WrongPassword { .. }
            | Error::WrongKey { .. }
            | Error::PasswordNeeded
            | Error::PasswordNotUsed
            | Error::Refused { cause: RefusalCause::Credentials, .. } => 12,
            Error::Damaged { .. } | Error::SelfCheck => 20,
            Error::Index(error) if error.is_corruption() => 20,
            Error::Denied { .. }
            | Error::Target(TargetError::Exists { .. })
            | Error::Volume(VolumeError::Denied { .. }) => 21,
            Error::FellBack { .. } => 22,
            Error::NoSpace => 28,
            // In a cluster: too few servers, or no answer in time.
            Error::Volume(
                VolumeError::Degraded { .. } | VolumeError::Incomplete { .. } | VolumeError::Deadline { .. },
            ) => 42,
            Error::Volume(VolumeError::Unknown { .. }) => 43,
            Error::Cancelled { .. } => 130,
            _ => 1,
        }
    }
    /// A short stable word for machines, as in `"code":"wrong_password"`.
    pub fn code(&self) -> &'static str {
        match self {
            Error::NoRepository => "no_repository",
            Error::RepositoryExists => "repository_exists",
            Error::WrongPassword { .. } => "wrong_password",
            Error::WrongKey { .. } => "wrong_key",
            Error::PasswordNeeded => "password_needed",
            Error::PasswordNotUsed => "password_not_used",
            Error::Version { .. } => "version",
            Error::NotFound { .. } => "not_found",
            Error::Ambiguous { .. } | Error::WhichVm { .. } => "ambiguous",
            Error::Invalid { .. } => "invalid",
            Error::Busy { .. } | Error::SessionOpen { .. } => "busy",
            Error::Fenced => "fenced",
            Error::Denied { .. } | Error::Volume(VolumeError::Denied { .. }) => "denied",
            Error::Damaged { .. } => "damaged",
            Error::SelfCheck => "self_check",
            Error::Spool { .. } => "spool",
            Error::Ended { .. } => "ended",
            Error::Source { .. } => "source",
            Error::Target(_) => "target",
            Error::FellBack { .. } => "fell_back",
            Error::Cancelled { .. } => "cancelled",
            Error::NoSpace => "no_space",
            Error::Refused { cause: RefusalCause::Credentials, .. } => "credentials",
            Error::Refused { cause: RefusalCause::Bucket, .. } => "no_bucket",
            Error::Refused { cause: RefusalCause::Archived, .. } => "archived",
            Error::Volume(_) => "store",
            Error::Index(_) => "index",
        }
    }
    /// Whether stored bytes are damaged; `check` reports the extent.
    pub fn is_corruption(&self) -> bool {
        match self {
            Error::Damaged { .. } | Error::SelfCheck => true,
            Error::Volume(error) => error.is_corruption(),
            Error::Index(error) => error.is_corruption(),
            _ => false,
        }
    }
    /// Whether a later attempt may succeed.
    pub fn is_retryable(&self) -> bool {
        match self {
            Error::Busy { .. } | Error::SessionOpen { .. } | Error::Fenced => true,
            Error::Volume(error) => error.is_retryable(),
            _ => false,
        }
    }
}
