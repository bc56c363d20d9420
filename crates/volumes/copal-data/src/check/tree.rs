//! Check of volumes, names, and the rows that describe the store.

use super::{VolumeCheckReport, walk};
use crate::format::{
    IDENTITY_KEY, MARK_PREFIX, NEXT_VID_KEY, VolumeRow, VolumeState, parse_group_row, parse_identity,
    parse_mark, parse_name_row, parse_number_row,
};
use crate::keys::{self, GROUP};
use crate::keyspaces::DataKeyspaces;
use bytes::Bytes;
use copal_kv::Keyspace;
use copal_volume::VolumeId;

/// Checks one row under a fixed key.
fn fixed<T, E: std::fmt::Display>(
    space: &Keyspace,
    key: &[u8],
    what: &str,
    report: &mut VolumeCheckReport,
    parse: impl Fn(&[u8], &Bytes) -> Result<T, E>,
) -> Option<T> {
    match space.get(key) {
        Ok(Some(row)) => match parse(key, &row) {
            Ok(value) => Some(value),
            Err(error) => {
                report.found(None, None, format!("{what}: {error}"));
                None
            }
        },
        Ok(None) => {
            report.found(None, None, format!("{what} is missing"));
            None
        }
        Err(error) => {
            report.found(None, None, format!("{what} could not be read: {error}"));
            None
        }
    }
}

/// Checks identity, group and clock marks.
pub(super) fn check_node(spaces: &DataKeyspaces, report: &mut VolumeCheckReport) {
    let identity = "the identity of the store";
    fixed(&spaces.node, IDENTITY_KEY, identity, report, |_, row| parse_identity(row));
    let group = "the row of the group";
    fixed(&spaces.groups, &GROUP.to_be_bytes(), group, report, |key, row| parse_group_row(key, row));
    let range = keys::range(MARK_PREFIX, None);
    walk(&spaces.node, "clock marks", &range, false, report, &mut |key, row, report| {
        if let Err(error) = parse_mark(key, &row) {
            report.found(None, None, format!("a clock mark: {error}"));
        }
    });
}

/// Checks volumes against names. Returns the existing volumes, ascending.
pub(super) fn check(spaces: &DataKeyspaces, report: &mut VolumeCheckReport) -> Vec<VolumeId> {
    let next_vid = "the next volume id";
    let next = fixed(&spaces.node, NEXT_VID_KEY, next_vid, report, |key, row| parse_number_row(key, row));
    let mut volumes = Vec::new();
    let all = keys::range(b"", None);
    walk(&spaces.volumes, "the rows of volumes", &all, false, report, &mut |key, row, report| {
        let Some((vid, [])) = keys::split(key) else {
            let what = format!("a volume has the key \"{}\"", key.escape_ascii());
            return report.found(None, None, what);
        };
        match VolumeRow::parse(key, &row) {
            Ok(row) if row.state == VolumeState::Removing => {}
            Ok(row) => {
                volumes.push(vid);
                check_name(spaces, vid, &row, report);
            }
            Err(error) => {
                // Its files are checked nevertheless.
                volumes.push(vid);
                report.found(Some(vid), None, format!("the row of the volume: {error}"));
            }
        }
        if next.is_some_and(|next| vid.0 >= next) {
            let what = "its id is not below the next volume id and could be assigned again";
            report.found(Some(vid), None, what);
        }
    });
    volumes.sort_unstable();
    volumes.dedup();
    report.volumes = volumes.len() as u64;
    walk(&spaces.names, "the names of volumes", &all, false, report, &mut |key, row, report| {
        let Some((parent, name)) = keys::split(key) else {
            let what = format!("a name has the key \"{}\"", key.escape_ascii());
            return report.found(None, None, what);
        };
        let name = name.escape_ascii();
        match parse_name_row(key, &row) {
            Ok(vid) if volumes.binary_search(&vid).is_err() => {
                let what = format!("the name \"{name}\" leads to it, but it has no row");
                report.found(Some(vid), None, what);
            }
            Ok(_) => {}
            Err(error) => {
                let what = format!("the name \"{name}\" below it: {error}");
                report.found(Some(parent), None, what);
            }
        }
        if parent != VolumeId::ROOT && volumes.binary_search(&parent).is_err() {
            let what = format!("the name \"{name}\" is below it, but it has no row");
            report.found(Some(parent), None, what);
        }
    });
    volumes
}

/// Checks that the name in a volume's row leads back to the volume.
fn check_name(spaces: &DataKeyspaces, vid: VolumeId, row: &VolumeRow, report: &mut VolumeCheckReport) {
    let key = keys::named(row.parent, row.name.as_bytes());
    let leads = match spaces.names.get(&key) {
        Ok(Some(name)) => parse_name_row(&key, &name).map_err(|error| error.to_string()),
        Ok(None) => Err("is missing".to_owned()),
        Err(error) => Err(format!("could not be read: {error}")),
    };
    match leads {
        Ok(found) if found == vid => {}
        Ok(found) => {
            let what = format!("its name {:?} leads to volume {found}", row.name);
            report.found(Some(vid), None, what);
        }
        Err(why) => report.found(Some(vid), None, format!("its name {:?} {why}", row.name)),
    }
}
