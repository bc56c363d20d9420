//! Dumps the contents of a store's objects in readable form, for a store that does not open, and for the
//! study of a format.
//!
//! Works on the object store alone: nothing is opened, replayed or repaired, and damage is shown at its
//! place.
//!
//! Formats: docs/formats/kv-manifest.md, kv-log.md, kv-page-cache-log.md, kv-table.md,
//! kv-filter-page.md, kv-values.md
//!
//! Invariants
//! - Reads only. Memory: the manifest, one partition of a table, one group of a log.
//! - An unreadable part is a [`DumpItem`] of kind `damage`, never a silent end.
//!
//! Not here: checking (`verify`), wording of the command line.

mod log;
mod manifest;
mod outline;
mod page_cache_log;
mod table;
mod values;

use crate::{
    Error,
    format::entry::{KEYSPACE_LEN, keyspace_of},
    tree::manifest::{MANIFEST, ObjectRole, parse_label, read::EditReader},
};
use bytes::Bytes;
use copal_device::IoClass;
use copal_object::{DumpField, DumpItem, DumpSink, ObjectId, Store as Objects};

/// Options of a dump.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DumpOptions {
    /// Show the entries of tables, the operations of logs, the values that point into a value object.
    pub entries: bool,
    /// Show only this partition of a table.
    pub partition: Option<u32>,
}

/// Shows the parts of a store: keyspaces, runs and their tables, value objects, logs, and objects without a
/// name. Blocks.
/// # Errors
/// The device failed. Damage is shown.
pub fn outline(objects: &Objects, sink: &mut DumpSink<'_>) -> Result<(), Error> {
    outline::outline(objects, sink)
}

/// Shows one object of a store, by the role in its label. Blocks.
/// # Errors
/// `NoObject`: it does not exist, or does not belong to a key-value store. Otherwise the device failed.
/// Damage is shown.
pub fn object(
    objects: &Objects,
    object: u64,
    options: &DumpOptions,
    sink: &mut DumpSink<'_>,
) -> Result<(), Error> {
    let id = ObjectId(object);
    let stat = objects.stat(id).ok_or(Error::NoObject { object })?;
    let Some((role, generation)) = parse_label(&stat.label) else {
        return Err(Error::NoObject { object });
    };
    let header = DumpItem::new(0, role.word())
        .number("object", object)
        .number("bytes", stat.len)
        .number("allocated_bytes", stat.allocated_bytes);
    match role {
        ObjectRole::Manifest => sink(header) && manifest::dump(objects, id, sink)?,
        ObjectRole::Log => {
            sink(header.number("generation", generation))
                && log::dump(objects, id, generation, options, sink)?
        }
        ObjectRole::Table => sink(header) && table::dump(objects, id, options, sink)?,
        ObjectRole::Value => sink(header) && values::dump(objects, id, options, sink)?,
        ObjectRole::PageCacheLog => sink(header) && page_cache_log::dump(objects, id, sink)?,
    };
    Ok(())
}

/// The manifest's state as far as it is readable, and the error that ended the reading.
fn state(
    objects: &Objects,
) -> Result<(crate::tree::manifest::state::ManifestState, u64, Option<Error>), Error> {
    let mut state = crate::tree::manifest::state::ManifestState::default();
    let mut edits = match EditReader::open(objects, MANIFEST, IoClass::Background) {
        Err(error) if error.is_corruption() => return Ok((state, 0, Some(error))),
        edits => edits?,
    };
    let seed = edits.header.1;
    loop {
        match edits.next(&mut |_| Ok(())) {
            Ok(Some(edit)) => edit.records().for_each(|record| state.apply(&record)),
            Ok(None) => return Ok((state, seed, None)),
            Err(error) if error.is_corruption() => return Ok((state, seed, Some(error))),
            Err(error) => return Err(error),
        }
    }
}

/// A field with a key, which is preceded by the four bytes of its keyspace's id.
fn key_field(key: &[u8]) -> DumpField {
    match keyspace_of(key) {
        Some(id) => DumpField::Below(id.0.to_string(), Bytes::copy_from_slice(&key[KEYSPACE_LEN..])),
        None => DumpField::Bytes(Bytes::copy_from_slice(key)),
    }
}
