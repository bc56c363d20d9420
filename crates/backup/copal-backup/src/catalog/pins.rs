//! Pins: files that protect exported snapshots from being forgotten.
//!
//! Files `p.<shown>.<holder>.<number>`; the name holds all information. The store's stamp gives the age. A
//! pin only asks others not to forget, and no safety depends on it, so a clock may decide its age.
//!
//! Format: docs/formats/backup-catalog.md v4
//! Not here: setting and obeying pins (`serve::pins`).

use super::files::CatalogFiles;
use crate::keys::random;
use crate::request::SnapshotId;
use crate::request::error::Result;
use crate::request::open_session::HolderId;
use bytes::Bytes;
use copal_volume::{FileId, VolumeError};
use uuid::Uuid;

const PREFIX: &str = "p.";
/// Prefix of files that are created only to get a stamp of the store; they are no pins.
const STAMP_PREFIX: &str = "p.now.";
/// Content of a pin, for a person who finds one.
const BODY: &[u8] = b"copal door 1\n";

/// Scope of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// One snapshot.
    Snapshot(SnapshotId),
    /// All snapshots of a VM.
    Vm(Uuid),
    /// All snapshots.
    All,
}

impl Shown {
    fn name(self) -> String {
        match self {
            Shown::Snapshot(id) => format!("s{id}"),
            Shown::Vm(vm) => format!("v{}", vm.simple()),
            Shown::All => "all".to_owned(),
        }
    }

    fn parse(name: &str) -> Option<Shown> {
        let number = |digits| Some(u128::from_str_radix(digits, 16).ok()?.to_be_bytes());
        match name.split_at_checked(1)? {
            _ if name == "all" => Some(Shown::All),
            ("s", digits) => Some(Shown::Snapshot(SnapshotId(number(digits)?))),
            ("v", digits) => Some(Shown::Vm(Uuid::from_bytes(number(digits)?))),
            _ => None,
        }
    }
}

/// A pin file in the catalog.
pub(crate) struct StoredPin {
    pub(crate) shown: Shown,
    pub(crate) created_ms: u64,
    pub(crate) file: (Bytes, FileId),
}

/// All pins.
/// # Errors
/// Errors of the store.
pub(crate) fn list_pins(files: &CatalogFiles) -> Result<Vec<StoredPin>> {
    let mut found = Vec::new();
    files.for_each(PREFIX, |name, info| {
        let text = std::str::from_utf8(name).ok().and_then(|text| text.strip_prefix(PREFIX));
        // A file with another kind of name is ignored.
        if let Some(shown) = text.and_then(|text| Shown::parse(text.split('.').next()?)) {
            let file = (Bytes::copy_from_slice(name), info.fid);
            found.push(StoredPin { shown, created_ms: info.created_ms, file });
        }
        Ok(())
    })?;
    Ok(found)
}

/// Sets a pin; durable on return.
/// # Errors
/// `Denied`: this client may not create files. Errors of the store.
pub(crate) fn set_pin(
    files: &CatalogFiles,
    shown: Shown,
    holder: HolderId,
    number: u64,
) -> Result<(Bytes, FileId)> {
    let place = Bytes::from(format!("{PREFIX}{}.{holder}.{number:016x}", shown.name()));
    let put = files.put(&place, Bytes::from_static(BODY));
    Ok((place, put?.fid))
}

/// The store's present stamp in ms, comparable with those of pins. `None`: this client may not create
/// files.
/// # Errors
/// Errors of the store.
pub(crate) fn draw_stamp(files: &CatalogFiles) -> Result<Option<u64>> {
    let place = Bytes::from(format!("{STAMP_PREFIX}{}", HolderId(random()?)));
    let body = Bytes::from_static(BODY);
    match files.put(&place, body) {
        Ok(info) => {
            drop_pins(files, &[(place, info.fid)])?;
            Ok(Some(info.created_ms))
        }
        Err(VolumeError::Denied { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Deletes pins. A process without the right to delete leaves them to another.
/// # Errors
/// Errors of the store.
pub(crate) fn drop_pins(files: &CatalogFiles, pins: &[(Bytes, FileId)]) -> Result<()> {
    files.delete_unneeded(pins)
}
