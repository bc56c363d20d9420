//! The error of a call on the wire.
//!
//! Invariants
//! - A status has only codes that this release knows.
//!
//! Not here: the errors of group members (`copal_proto::failure_of`).

use copal_master::{MasterError, MetaError};
use copal_proto::{
    ChainError, failure_of,
    messages::{self, Failure, failure::Code},
    of_id,
};
use copal_volume::{VolumeError, group::MemberAnswer};

/// Error reply of a server.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.text)]
pub struct Status(Box<Failure>);

impl Status {
    /// An error with code and sentence.
    pub fn new(code: Code, text: impl Into<String>) -> Status {
        Status(Box::new(Failure { code: code.into(), text: text.into(), ..Failure::default() }))
    }

    /// Adds the numbers of the code.
    pub(crate) fn with_numbers(mut self, numbers: Vec<u64>) -> Status {
        self.0.numbers = numbers;
        self
    }

    /// Adds the newer view of the group.
    pub(crate) fn with_view(mut self, view: Option<messages::View>) -> Status {
        self.0.view = view;
        self
    }

    /// The kind of error.
    pub fn code(&self) -> Code {
        self.0.code()
    }

    /// The sentence.
    pub fn text(&self) -> &str {
        &self.0.text
    }
}

/// The deadline of the call has passed.
pub(crate) fn expired() -> Status {
    Status::new(Code::Expired, "the deadline of the call has passed")
}

impl From<Status> for Failure {
    fn from(status: Status) -> Failure {
        *status.0
    }
}

impl From<MemberAnswer> for Status {
    fn from(answer: MemberAnswer) -> Status {
        Status(Box::new(failure_of(&answer)))
    }
}

impl From<VolumeError> for Status {
    fn from(error: VolumeError) -> Status {
        let text = error.to_string();
        match error {
            VolumeError::Exists { fid } => {
                let mut taken = Status::new(Code::Exists, text);
                taken.0.fid = Some(of_id(fid.0));
                taken
            }
            VolumeError::VolumeExists { vid } => {
                Status::new(Code::VolumeExists, text).with_numbers(vec![vid.0])
            }
            VolumeError::NotFound => Status::new(Code::NotFound, text),
            VolumeError::NotEmpty => Status::new(Code::NotEmpty, text),
            VolumeError::Corrupt { what } => Status::new(Code::Corrupt, what),
            VolumeError::NoSpace => Status::new(Code::NoSpace, text),
            VolumeError::QuotaExceeded { quota, used, wanted } => {
                Status::new(Code::Quota, text).with_numbers(vec![quota, used, wanted])
            }
            VolumeError::VolumeGone => Status::new(Code::VolumeGone, text),
            VolumeError::Denied { reason } => Status::new(Code::Denied, reason),
            VolumeError::Unavailable { reason } => Status::new(Code::Unavailable, reason),
            VolumeError::Failed { reason } => Status::new(Code::Internal, reason),
            VolumeError::TooLarge { bytes, limit, .. } => {
                Status::new(Code::TooLarge, text).with_numbers(vec![bytes, limit])
            }
            VolumeError::InvalidName { reason } => Status::new(Code::Invalid, reason),
            _ => Status::new(Code::Unavailable, text),
        }
    }
}

impl From<MasterError> for Status {
    fn from(error: MasterError) -> Status {
        let text = error.to_string();
        match error {
            MasterError::Volume(error) => error.into(),
            MasterError::StaleTables(_) | MasterError::Meta(MetaError::Deposed) => {
                Status::new(Code::NotLeader, text)
            }
            MasterError::Meta(_) => Status::new(Code::Internal, text),
            MasterError::Denied(reason) => Status::new(Code::Denied, reason),
        }
    }
}

impl From<ChainError> for Status {
    fn from(error: ChainError) -> Status {
        let code = match error {
            ChainError::TooLong => Code::TooLarge,
            ChainError::Checksum => Code::Corrupt,
            ChainError::OutOfTurn | ChainError::Short | ChainError::Hops => Code::Invalid,
        };
        Status::new(code, error.to_string())
    }
}
