//! The range in which a probe may write: a file without a name beside another file, or a block device that a
//! person gives up.
//!
//! Invariants
//! - The file has no name from its first moment on, so a killed probe leaves nothing.
//! - Without `overwrite`, nothing is written to a block device; a store on it is never overwritten.
//!
//! Not here: the measurements (`copal_device::probe`).

use crate::{
    device_signature,
    error::NodeError,
    location::{StoreOptions, is_block_device, refuse_taken},
};
use copal_device::{
    Device, DeviceOpenError, DiskCommands, FileOptions,
    probe::{
        DeviceKind, DeviceProbe, DeviceProfile, PROBE_BYTES_MIN, ProbeError, ProbeOptions, ProbeProgress,
    },
};
use copal_object::{Store, StoreOpenError};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

/// Longest file of a probe.
const FILE_BYTES_MAX: u64 = 512 << 20;

/// A device and the range of a probe on it.
pub struct ProbePlace {
    device: Arc<dyn Device>,
    kind: DeviceKind,
    /// A path on the same disk, for the counts of its commands.
    path: PathBuf,
}

impl ProbePlace {
    /// The place for a probe of `path`: the block device itself, or a file of at most the same length beside a
    /// file. Blocks on the device.
    /// # Errors
    /// `Objects` (`Open`): it cannot be opened, is in use, or is neither. `ReadOnly`. `NotProbed`: a block device
    /// without `overwrite`, or with a store on it. `TooShort`.
    pub fn find(path: &Path, options: &StoreOptions, overwrite: bool) -> Result<ProbePlace, NodeError> {
        if is_block_device(path) {
            return ProbePlace::on_device(path, options, overwrite);
        }
        // Finds out that it is no file, or in use.
        let file = FileOptions { read_only: true, ..options.of_file() };
        let bytes = copal_device::open_file(path, &file).map_err(cannot_open(path))?.geometry().size;
        if path.metadata().is_ok_and(|meta| meta.permissions().readonly()) {
            return Err(NodeError::ReadOnly { path: path.to_owned() });
        }
        if bytes < PROBE_BYTES_MIN {
            return Err(NodeError::TooShort { path: path.to_owned(), bytes, least: PROBE_BYTES_MIN });
        }
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        ProbePlace::in_directory(directory.unwrap_or(Path::new(".")), options, bytes)
    }

    /// A file without a name in a directory, of at most `bytes` and a quarter of the free space.
    fn in_directory(directory: &Path, options: &StoreOptions, bytes: u64) -> Result<ProbePlace, NodeError> {
        let name = directory.join(format!(".copal-probe-{}", std::process::id()));
        let free = rustix::fs::statvfs(directory)
            .map_or(u64::MAX, |stat| stat.f_bavail.saturating_mul(stat.f_frsize));
        let size = bytes.min(FILE_BYTES_MAX).min(free / 4).max(PROBE_BYTES_MIN);
        let file = FileOptions {
            create_size: Some(size >> 20 << 20),
            unnamed: true,
            punch_holes: false,
            ..options.of_file()
        };
        let device = copal_device::open_file(&name, &file).map_err(cannot_open(directory))?;
        Ok(ProbePlace { device, kind: DeviceKind::File, path: directory.to_owned() })
    }

    /// The place for a probe before a store is made at `named`: an empty block device or one that may be
    /// overwritten, the directory, or the nearest one above it. Blocks on the device.
    /// # Errors
    /// `Taken`, `NotEmpty`, `TooShort`, `Objects` (`Open`).
    pub fn of_new_store(
        named: &Path,
        options: &StoreOptions,
        overwrite: bool,
    ) -> Result<ProbePlace, NodeError> {
        if is_block_device(named) {
            let failed = |source| NodeError::System { path: named.to_owned(), action: "read", source };
            let found = if overwrite { None } else { device_signature::find(named).map_err(failed)? };
            return match found {
                Some(found) => Err(NodeError::NotEmpty { path: named.to_owned(), found }),
                None => ProbePlace::of_device(named, options),
            };
        }
        refuse_taken(named)?;
        let mut above = named.ancestors();
        let directory = above.find(|path| path.is_dir()).unwrap_or(Path::new("."));
        ProbePlace::in_directory(directory, options, FILE_BYTES_MAX)
    }

    /// The whole of a block device.
    fn of_device(path: &Path, options: &StoreOptions) -> Result<ProbePlace, NodeError> {
        let device = copal_device::open_file(path, &options.of_file()).map_err(cannot_open(path))?;
        if is_read_only(path) {
            return Err(NodeError::ReadOnly { path: path.to_owned() });
        }
        let bytes = device.geometry().size;
        if bytes < PROBE_BYTES_MIN {
            return Err(NodeError::TooShort { path: path.to_owned(), bytes, least: PROBE_BYTES_MIN });
        }
        Ok(ProbePlace { device, kind: DeviceKind::Block, path: path.to_owned() })
    }

    fn on_device(path: &Path, options: &StoreOptions, overwrite: bool) -> Result<ProbePlace, NodeError> {
        let place = ProbePlace::of_device(path, options)?;
        let failed =
            |source| NodeError::Objects { path: path.to_owned(), source: StoreOpenError::Device(source) };
        let holds_store = Store::is_on(place.device.as_ref()).map_err(failed)?;
        if holds_store || !overwrite {
            return Err(NodeError::NotProbed { path: path.to_owned(), holds_store });
        }
        Ok(place)
    }

    /// Probes the range; its contents are lost. Blocks for up to 30 seconds.
    /// # Errors
    /// See [`ProbeError`].
    pub fn probe(
        &self,
        is_ended: Box<dyn Fn() -> bool + Send>,
        progress: &mut dyn FnMut(ProbeProgress),
    ) -> Result<DeviceProfile, ProbeError> {
        let counts = DiskCommands::of(&self.path);
        let options = ProbeOptions {
            kind: self.kind,
            is_ended,
            disk_commands: counts.map(|counts| Box::new(move || counts.writes()) as _),
            ..ProbeOptions::of(self.device.as_ref())
        };
        DeviceProbe::new(self.device.as_ref(), options).run(progress)
    }
}

/// Whether the system refuses writes to a block device; it opens one for writing all the same.
fn is_read_only(device: &Path) -> bool {
    let Ok(stat) = rustix::fs::stat(device) else { return false };
    let (major, minor) = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
    let text = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/ro"));
    text.is_ok_and(|text| text.trim() == "1")
}

fn cannot_open(path: &Path) -> impl Fn(DeviceOpenError) -> NodeError {
    move |error| NodeError::Objects { path: path.to_owned(), source: StoreOpenError::from(error) }
}
