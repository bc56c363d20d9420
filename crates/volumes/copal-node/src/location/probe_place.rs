//! The range in which a probe may write: a file without a name beside another file, a block device that a person
//! gives up, or free space of the store on it.
//!
//! Invariants
//! - The file has no name from its first moment on, so a killed probe leaves nothing.
//! - Without `overwrite`, nothing is written to a block device without a store.
//! - A store on it is never overwritten: the probe keeps to pages that the opened store lends, and no record names
//!   them. So a killed probe leaves them free.
//!
//! Not here: the measurements (`copal_device::probe`).

use crate::{
    device_signature,
    error::NodeError,
    location::{Access, StoreOptions, is_block_device, refuse_read_only_device, refuse_taken},
};
use copal_device::{
    Device, DeviceOpenError, DiskCommands, FileOptions,
    probe::{
        DeviceKind, DeviceProbe, DeviceProfile, PROBE_BYTES_MIN, ProbeError, ProbeOptions, ProbeProgress,
    },
};
use copal_object::{FreeRange, Store, StoreOpenError};
use std::{
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Longest file of a probe.
const FILE_BYTES_MAX: u64 = 512 << 20;
/// A range in a store begins and ends at multiples of this, as its sequential commands do.
const RANGE_STEP: u64 = 1 << 20;

/// A device and the range of a probe on it.
pub struct ProbePlace {
    device: Arc<dyn Device>,
    kind: DeviceKind,
    /// A path on the same disk, for the counts of its commands.
    path: PathBuf,
    /// The store on the device, and its free space that is probed.
    within: Option<StoreRange>,
}

/// Free space of an open store. Field order: the range goes back before the store.
struct StoreRange {
    free: FreeRange,
    store: Store,
}

impl ProbePlace {
    /// The place for a probe of `path`: the block device itself, free space of the store on it, or a file of at most
    /// the same length beside a file. Blocks on the device.
    /// # Errors
    /// `Objects`: it cannot be opened, is in use, or is neither; its store does not open. `ReadOnly`, `ReadOnlyDevice`. `NotProbed`: a
    /// block device without a store and without `overwrite`. `TooShort`. `NoFreeRange`.
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
        Ok(ProbePlace { device, kind: DeviceKind::File, path: directory.to_owned(), within: None })
    }

    /// The place for a probe before a store is made at `named`: an empty block device or one that may be
    /// overwritten, the directory, or the nearest one above it. Blocks on the device.
    /// # Errors
    /// `Taken`, `Occupied`, `NotEmpty`, `ReadOnlyDevice`, `TooShort`, `Objects` (`Open`).
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
        refuse_read_only_device(path)?;
        let device = copal_device::open_file(path, &options.of_file()).map_err(cannot_open(path))?;
        let bytes = device.geometry().size;
        if bytes < PROBE_BYTES_MIN {
            return Err(NodeError::TooShort { path: path.to_owned(), bytes, least: PROBE_BYTES_MIN });
        }
        Ok(ProbePlace { device, kind: DeviceKind::Block, path: path.to_owned(), within: None })
    }

    fn on_device(path: &Path, options: &StoreOptions, overwrite: bool) -> Result<ProbePlace, NodeError> {
        let place = ProbePlace::of_device(path, options)?;
        let failed =
            |source| NodeError::Objects { path: path.to_owned(), source: StoreOpenError::Device(source) };
        match Store::is_on(place.device.as_ref()).map_err(failed)? {
            true => place.within_store(options),
            false if overwrite => Ok(place),
            false => Err(NodeError::NotProbed { path: path.to_owned() }),
        }
    }

    /// Half of the free space of the store on the device at most, in one piece.
    fn within_store(mut self, options: &StoreOptions) -> Result<ProbePlace, NodeError> {
        let opened = Store::open(Arc::clone(&self.device), &options.of_objects(Access::Write));
        let (store, _) = opened.map_err(|source| NodeError::Objects { path: self.path.clone(), source })?;
        let least = PROBE_BYTES_MIN + 2 * RANGE_STEP;
        let most = (store.space().free_bytes / 2).max(least);
        match store.free_range(least..most) {
            Ok(free) => {
                self.within = Some(StoreRange { free, store });
                Ok(self)
            }
            Err(source) => {
                close(&store);
                Err(NodeError::NoFreeRange { path: self.path, source })
            }
        }
    }

    /// The block device whose former data the probe overwrites; `None`: it leaves nothing behind.
    #[must_use]
    pub fn overwrites(&self) -> Option<&Path> {
        (self.kind == DeviceKind::Block && self.within.is_none()).then_some(self.path.as_path())
    }

    /// The probe's own bytes.
    fn range(&self) -> Range<u64> {
        let Some(within) = &self.within else { return 0..self.device.geometry().size };
        let Range { start, end } = within.free.bytes();
        start.next_multiple_of(RANGE_STEP)..end / RANGE_STEP * RANGE_STEP
    }

    /// Probes the range, whose contents are lost, and closes the store around it. Blocks for up to 30 seconds.
    /// # Errors
    /// See [`ProbeError`].
    pub fn probe(
        self,
        is_ended: Box<dyn Fn() -> bool + Send>,
        progress: &mut dyn FnMut(ProbeProgress),
    ) -> Result<DeviceProfile, ProbeError> {
        let counts = DiskCommands::of(&self.path);
        let options = ProbeOptions {
            kind: self.kind,
            is_ended,
            disk_commands: counts.map(|counts| Box::new(move || counts.writes()) as _),
            range: self.range(),
            ..ProbeOptions::of(self.device.as_ref())
        };
        let profile = DeviceProbe::new(self.device.as_ref(), options).run(progress);
        if let Some(StoreRange { free, store }) = self.within {
            drop(free);
            close(&store);
        }
        profile
    }
}

/// Closes a store to which the probe has committed nothing: without the close, its next opening only takes longer.
fn close(store: &Store) {
    if let Err(error) = store.close() {
        tracing::warn!(%error, "the probed store was not closed; its next opening recovers it");
    }
}

fn cannot_open(path: &Path) -> impl Fn(DeviceOpenError) -> NodeError {
    move |error| NodeError::Objects { path: path.to_owned(), source: StoreOpenError::from(error) }
}
