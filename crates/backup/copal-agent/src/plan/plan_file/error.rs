//! Reasons why a plan file is refused: one sentence each, with the file, the fault, and the remedy.

use std::io;
use std::path::{Path, PathBuf};

/// Longest plan file.
pub const MAX_PLAN_BYTES: u64 = 16 << 20;
/// Most VMs of a plan.
pub const MAX_VMS: usize = 10_000;
/// Most disks of a VM.
pub const MAX_DISKS: usize = 128;
/// Longest name of a VM, a disk or a node.
pub(super) const MAX_NAME_BYTES: usize = 255;

/// Reason why a plan file is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// It cannot be read.
    #[error("cannot read the plan file {path}: {source}; name an existing, readable file")]
    Read {
        /// The plan file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// It is longer than a plan may be.
    #[error("the plan file {path} is longer than {MAX_PLAN_BYTES} bytes; divide it")]
    TooLong {
        /// The plan file.
        path: PathBuf,
    },
    /// It is not a plan.
    #[error("the plan file {path} is not a plan: {source}; correct it there")]
    Json {
        /// The plan file.
        path: PathBuf,
        /// Place and error.
        source: serde_json::Error,
    },
    /// Its version is unknown.
    #[error(
        "the plan file {path} has version {found}, and this build reads 1; write \"v\":1 or use a newer copal"
    )]
    Version {
        /// The plan file.
        path: PathBuf,
        /// Its version.
        found: u64,
    },
    /// It has too many VMs.
    #[error("the plan file {path} has {found} VMs; list at most {MAX_VMS}")]
    Vms {
        /// The plan file.
        path: PathBuf,
        /// Number of VMs.
        found: usize,
    },
    /// A name is empty, too long, or has control characters.
    #[error("the plan file {path} has the name {name:?}; use 1 to 255 bytes without control characters")]
    Name {
        /// The plan file.
        path: PathBuf,
        /// The name, shortened.
        name: String,
    },
    /// A VM is listed twice.
    #[error("the plan file {path} lists the VM {vm:?} twice; remove one")]
    VmTwice {
        /// The plan file.
        path: PathBuf,
        /// The VM.
        vm: String,
    },
    /// A VM has no disks, or too many.
    #[error("the plan file {path} gives the VM {vm:?} {found} disks; list 1 to {MAX_DISKS}")]
    Disks {
        /// The plan file.
        path: PathBuf,
        /// The VM.
        vm: String,
        /// Number of disks.
        found: usize,
    },
    /// A path is empty.
    #[error("the plan file {path} has an empty path for the VM {vm:?}; name the file or socket")]
    EmptyPath {
        /// The plan file.
        path: PathBuf,
        /// The VM.
        vm: String,
    },
    /// A path has the form of an address.
    #[error(
        "the plan file {path} names {word:?} for the VM {vm:?}, and a plan has files and sockets, no addresses; give a path, and write one of this name as \"./{word}\""
    )]
    Scheme {
        /// The plan file.
        path: PathBuf,
        /// The VM.
        vm: String,
        /// The text in place of a path.
        word: String,
    },
    /// The source of a VM's disks is ambiguous.
    #[error(
        "the plan file {path} must say of the VM {vm:?} either \"disks\", or both \"qmp\" and \"nodes\" with what else there is of QEMU; write one of the two"
    )]
    Source {
        /// The plan file.
        path: PathBuf,
        /// The VM.
        vm: String,
    },
    /// The socket of a guest agent without a use.
    #[error(
        "the plan file {path} gives the VM {vm:?} an \"agent_socket\" that is not used; add \"freeze\":\"agent\", or leave it out"
    )]
    AgentSocket {
        /// The plan file.
        path: PathBuf,
        /// The VM.
        vm: String,
    },
}

/// Two plans have the same VM, which would be backed up twice at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the plan files {first} and {second} both list the VM {vm:?}; remove it from one", first = first.display(), second = second.display())]
pub struct VmInTwoPlans<'a> {
    /// The VM.
    pub vm: &'a str,
    /// One plan file.
    pub first: &'a Path,
    /// The other.
    pub second: &'a Path,
}
