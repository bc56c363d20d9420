//! What is asked for: a VM that runs, and how its point in time is held.

use copal_backup::{Error, Repository};
use copal_disk::source::BitmapState;
use std::path::PathBuf;

/// A disk of a VM that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveDisk {
    /// Its name within the VM: `sda`.
    pub name: String,
    /// Its block node in QEMU, the one that keeps the dirty bitmaps: `vm0`.
    pub node: String,
    /// What tells it from another disk that may get its name; empty when nobody says.
    pub serial: String,
    /// The bitmap that began with the newest snapshot, as its manifest says.
    pub began_with_base: Option<String>,
    /// The bitmap that was made beside it and records nothing, and what it said then.
    pub sentinel: Option<BitmapState>,
}

/// Where what a guest overwrites is kept meanwhile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fleece {
    /// A directory that this process and QEMU may write.
    pub directory: PathBuf,
    /// Most that is kept, in millionths of the size of the disk. More ends the backup, and never a write of
    /// the guest.
    pub limit_millionths: u32,
}

impl Fleece {
    /// A tenth.
    pub const DEFAULT_LIMIT_MILLIONTHS: u32 = 100_000;
    /// On a disk, unlike `/tmp` of many systems.
    pub const DEFAULT_DIRECTORY: &str = "/var/tmp";
}

impl Default for Fleece {
    fn default() -> Fleece {
        Fleece {
            directory: Fleece::DEFAULT_DIRECTORY.into(),
            limit_millionths: Fleece::DEFAULT_LIMIT_MILLIONTHS,
        }
    }
}

/// How a guest is made to hold still at the point in time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Freeze {
    /// By its agent, through this socket, or the one that QEMU names.
    Agent(Option<PathBuf>),
}

/// A VM that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveVm {
    /// Its name, as it was typed.
    pub name: String,
    /// The QMP socket of its QEMU, or of the storage daemon that has its disks.
    pub qmp: PathBuf,
    /// At least one.
    pub disks: Vec<LiveDisk>,
    /// Where the NBD server of that QEMU listens, when it has one already.
    pub nbd_socket: Option<PathBuf>,
    /// Where overwritten blocks go.
    pub fleece: Fleece,
    /// Whether file systems are frozen; if not, the snapshot is as after a power cut.
    pub freeze: Option<Freeze>,
}

impl LiveVm {
    /// Looks up which bitmaps began with the newest snapshot: no other one is believed.
    /// # Errors
    /// `Damaged`: the catalog is; those of the store.
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
