//! What can go wrong, as sentences a person can act on, and the exit codes they stand for.
//!
//! Exit codes: backup design, section 14; restic's where restic has one.

use crate::keys::role::KeyId;
use crate::request::open_session::OpenSession;
use copal_disk::source::SourceError;
use copal_disk::target::TargetError;
use copal_volume::VolumeError;

/// Every way an operation on a repository can end early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The store holds no repository.
    #[error("there is no repository here; make one with `copal init`")]
    NoRepository,
    /// The store already holds one.
    #[error("a repository exists here already; use it or make one elsewhere, nothing was changed")]
    RepositoryExists,
    /// No key slot opens with this password.
    #[error(
        "wrong password: it opens no key slot of this repository ({slots} tried); check the password and which repository it is for"
    )]
    WrongPassword {
        /// How many slots were tried.
        slots: usize,
    },
    /// No key slot is this key's.
    #[error(
        "wrong key: {id} is no key of this repository, or was removed; check --key and which repository it is for"
    )]
    WrongKey {
        /// What the key is called.
        id: KeyId,
    },
    /// The repository is encrypted and no password was given.
    #[error("this repository is encrypted: give its password with COPAL_PASSWORD_FILE or at the prompt")]
    PasswordNeeded,
    /// A password was given for a repository without one.
    #[error("this repository was made with --insecure-no-password; open it without a password")]
    PasswordNotUsed,
    /// The repository was written by a newer program, or needs a feature this one has not.
    #[error("{what} has version {found}, this program reads version {known}; use a newer copal")]
    Version {
        /// Which format.
        what: &'static str,
        /// Version in the file.
        found: u16,
        /// Newest version this program reads.
        known: u16,
    },
    /// Nothing of that name.
    #[error("no {what} named {name}; `{}` lists what there is", lister(.what))]
    NotFound {
        /// "VM", "snapshot", "disk", "key".
        what: &'static str,
        /// As the user wrote it.
        name: String,
    },
    /// A prefix that fits several.
    #[error("{name} fits {count} snapshots; write more of the id")]
    Ambiguous {
        /// As the user wrote it.
        name: String,
        /// How many it fits.
        count: usize,
    },
    /// `latest`, and several VMs have snapshots.
    #[error("`latest` of which VM? add --vm NAME; there are snapshots of {vms}")]
    WhichVm {
        /// Some of them, as a list in a sentence.
        vms: String,
    },
    /// The request itself makes no sense.
    #[error("{reason}")]
    Invalid {
        /// What and why.
        reason: String,
    },
    /// Somebody else works on it.
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
        /// The session, and who holds it.
        open: Box<OpenSession>,
    },
    /// The session was fenced: another operation ended it because it seemed dead.
    #[error("this backup was ended by another operation; nothing was published, run it again")]
    Fenced,
    /// A guard forbids it.
    #[error("denied: {reason}")]
    Denied {
        /// Which guard, and how to satisfy it.
        reason: String,
    },
    /// Stored bytes are not what was written.
    #[error("{what} is damaged: {detail}; run `copal check --read-data`")]
    Damaged {
        /// Which object.
        what: String,
        /// What does not fit.
        detail: String,
    },
    /// What a backup keeps in a file of its own between its two passes cannot be written or read.
    #[error(
        "the working file of this backup failed: {detail}; see whether its directory has room, and run it again"
    )]
    Spool {
        /// What the operating system said.
        detail: String,
    },
    /// Whoever runs several backups has ended this one.
    #[error("{reason}")]
    Ended {
        /// Why, and what to do.
        reason: String,
    },
    /// What was stored a moment ago did not open to the same bytes: bad memory or a broken processor.
    #[error(
        "a chunk changed between sealing and opening it; this machine's memory may be bad, stop using it"
    )]
    SelfCheck,
    /// The source could not be read.
    #[error("disk {disk}: {error}")]
    Source {
        /// Name of the disk.
        disk: String,
        /// Why.
        #[source]
        error: SourceError,
    },
    /// The target refused.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// `--strict-incremental` was given and a disk would have been read in full.
    #[error(
        "disk {disk} cannot be backed up incrementally: {reason}; leave --strict-incremental out to read all of it"
    )]
    FellBack {
        /// Name of the disk.
        disk: String,
        /// Why.
        reason: String,
    },
    /// Interrupted by the user. Finished packs of a backup are kept and used by the next one.
    #[error("interrupted before the end; the store is consistent, run the command again")]
    Cancelled {
        /// Stored bytes that the next backup finds again; `None` for what is no backup.
        kept_bytes: Option<u64>,
    },
    /// The store is full.
    #[error("the store is full and cannot grow; forget snapshots and run `copal prune`, or make room for it")]
    NoSpace,
    /// The store refused in another way.
    #[error("the store failed: {0}")]
    Volume(#[source] VolumeError),
    /// The index failed; it can be deleted and rebuilt.
    #[error("the chunk index failed: {0}; `copal repair index` rebuilds it")]
    Index(#[source] copal_kv::Error),
}

/// The command that lists them.
fn lister(what: &str) -> &'static str {
    match what {
        "key" => "copal key ls",
        _ => "copal snapshots",
    }
}

/// Result of everything here.
pub type Result<T> = std::result::Result<T, Error>;

impl From<VolumeError> for Error {
    fn from(error: VolumeError) -> Error {
        match error {
            VolumeError::NoSpace => Error::NoSpace,
            VolumeError::Corrupt { what } => Error::Damaged { what: "a stored file".into(), detail: what },
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
            Error::Source { .. } => 3,
            Error::NoRepository => 10,
            Error::Busy { .. } | Error::SessionOpen { .. } | Error::Fenced => 11,
            Error::WrongPassword { .. }
            | Error::WrongKey { .. }
            | Error::PasswordNeeded
            | Error::PasswordNotUsed => 12,
            Error::Damaged { .. } | Error::SelfCheck => 20,
            Error::Index(error) if error.is_corruption() => 20,
            Error::Denied { .. }
            | Error::Target(TargetError::Exists { .. })
            | Error::Volume(VolumeError::Denied { .. }) => 21,
            Error::FellBack { .. } => 22,
            Error::NoSpace => 28,
            // Of a cluster: too few servers, or no answer in time.
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
            Error::Volume(_) => "store",
            Error::Index(_) => "index",
        }
    }
    /// Stored bytes are wrong; `check` finds how much.
    pub fn is_corruption(&self) -> bool {
        match self {
            Error::Damaged { .. } | Error::SelfCheck => true,
            Error::Volume(error) => error.is_corruption(),
            Error::Index(error) => error.is_corruption(),
            _ => false,
        }
    }
    /// Trying again later may work.
    pub fn is_retryable(&self) -> bool {
        match self {
            Error::Busy { .. } | Error::SessionOpen { .. } | Error::Fenced => true,
            Error::Volume(error) => error.is_retryable(),
            _ => false,
        }
    }
}
