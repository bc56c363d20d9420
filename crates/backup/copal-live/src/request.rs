//! Request for a point in time: a running VM, its disks and options.

use copal_backup::{Error, Repository};
use copal_disk::source::BitmapState;
use std::path::PathBuf;

/// A disk of a running VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveDisk {
    /// Name of the disk in the VM, such as `sda`.
    pub name: String,
    /// Block node in QEMU that has the dirty bitmaps, such as `vm0`.
    pub node: String,
    /// Serial number, which tells the disk from another one under its name; empty if unknown.
    pub serial: String,
    /// The bitmap that began with the newest snapshot, from its manifest.
    pub began_with_base: Option<String>,
    /// The sentinel of that bitmap, from the same manifest.
    pub sentinel: Option<BitmapState>,
}

/// Storage for the data that a guest overwrites during a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FleeceOptions {
    /// A directory that this process and QEMU may write.
    pub directory: PathBuf,
    /// Capacity in millionths of the disk size. If it is exceeded, the backup fails, and no write of the
    /// guest does.
    pub limit_millionths: u32,
}

impl FleeceOptions {
    /// A tenth.
    pub const DEFAULT_LIMIT_MILLIONTHS: u32 = 100_000;
    /// On a disk, unlike `/tmp` on many systems.
    pub const DEFAULT_DIRECTORY: &str = "/var/tmp";
}

impl Default for FleeceOptions {
    fn default() -> FleeceOptions {
        FleeceOptions {
            directory: FleeceOptions::DEFAULT_DIRECTORY.into(),
            limit_millionths: FleeceOptions::DEFAULT_LIMIT_MILLIONTHS,
        }
    }
}

/// Method of freezing a guest at the point in time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FreezeMethod {
    /// Through the guest agent at this socket, or at the socket that QEMU lists.
    Agent(Option<PathBuf>),
}

/// A running VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveVm {
    /// Name as the user gave it.
    pub name: String,
    /// QMP socket of its QEMU, or of the storage daemon with its disks.
    pub qmp: PathBuf,
    /// At least one.
    pub disks: Vec<LiveDisk>,
    /// Socket of QEMU's NBD server, if one runs already.
    pub nbd_socket: Option<PathBuf>,
    /// Storage for overwritten data.
    pub fleece: FleeceOptions,
    /// Whether file systems are frozen; without a freeze the snapshot is as after a power cut.
    pub freeze: Option<FreezeMethod>,
}

impl LiveVm {
    /// Looks up the bitmaps that began with the newest snapshot. No other bitmap is used.
    /// # Errors
    /// `Damaged`: the catalog is damaged. Those of the store.
    pub fn look_up_bitmaps(&mut self, repository: &Repository) -> Result<(), Error> {
        let newest = match repository.resolve_damaged("latest", Some(&self.name)) {
            Ok(newest) => newest,
            Err(Error::NotFound { .. }) => return Ok(()),
            Err(error) => return Err(error),
        };
        for disk in &mut self.disks {
            let before = newest.disks.iter().find(|before| before.name == disk.name);
            disk.began_with_base = before.and_then(|before| before.bitmap.clone());
            disk.sentinel = before.and_then(|before| before.sentinel.clone());
        }
        Ok(())
    }
}
